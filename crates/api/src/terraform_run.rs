//! `TerraformRun`: the record of a finished run.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::CustomResourceExt as _;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change_set::ChangeSet;
use crate::engine::Engine;
use crate::report::StepTimes;
use crate::run_kind::RunKind;

/// Maximum size of a `TerraformRun` as JSON, in bytes.
pub const MAX_RUN_BYTES: usize = 96 * 1024;

/// Maximum length of the text of a plan, in bytes.
pub const MAX_PLAN_BYTES: usize = 20 * 1024;

/// Maximum length of the beginning of a log, in bytes.
pub const MAX_LOG_HEAD_BYTES: usize = 8 * 1024;

/// Maximum length of the end of a log, in bytes.
pub const MAX_LOG_TAIL_BYTES: usize = 24 * 1024;

/// Specification of a finished run.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = r#"x_kube(crates(kube_core = "::kube_core"))"#,
    group = "alustan.io",
    version = "v1alpha1",
    kind = "TerraformRun",
    namespaced,
    status = "TerraformRunStatus",
    shortname = "altrun",
    category = "alustan",
    derive = "PartialEq",
    doc = "The record of a finished run of a Terraform resource: its cause, plan, result and log. The operator writes it, and deletes it according to spec.history of the Terraform resource.",
    validation = Rule::new("self.spec == oldSelf.spec").message("spec: the record of a run cannot be changed"),
    printcolumn(name = "Terraform", type_ = "string", json_path = ".spec.terraform.name", description = "Name of the Terraform resource"),
    printcolumn(name = "Run", type_ = "integer", json_path = ".spec.number", description = "Number of the run"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind", description = "plan, apply, drift or destroy"),
    printcolumn(name = "Result", type_ = "string", json_path = ".status.result", description = "NoChanges, Changes, Done, Failed or Cancelled"),
    printcolumn(name = "Changes", type_ = "string", json_path = ".status.summary", description = "Changes in the plan: add, change, destroy"),
    printcolumn(name = "Cause", type_ = "string", json_path = ".spec.trigger", description = "Cause of the run"),
    printcolumn(name = "Finished", type_ = "date", json_path = ".status.finishedAt"),
    printcolumn(name = "Count", type_ = "integer", json_path = ".status.count", description = "Number of runs that this object records", priority = 1),
    printcolumn(name = "Seconds", type_ = "integer", json_path = ".status.seconds", description = "Duration of the run", priority = 1),
    printcolumn(name = "Revision", type_ = "string", json_path = ".spec.revision", description = "Git commit, or digest of the source", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", description = "Reason of the failure", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunSpec {
    /// `Terraform` resource of the run.
    pub terraform: TerraformRef,
    /// Number of the run, counted per resource from 1.
    pub number: i64,
    /// Kind of the run: `plan`, `apply`, `drift` or `destroy`.
    pub kind: RunKind,
    /// Cause of the run. Example: `commit 1a2b3c4..5d6e7f8`, `input Secret db`, `retry 2`.
    pub trigger: String,
    /// Commit id of a git repository, or a digest (`sha256:…`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Commit of `revision`, if the source is a git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// Image of the pod, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Approval because of which the run was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<RunApproval>,
    /// Name of the Job.
    pub job: String,
    /// Start time.
    pub started_at: Time,
}

/// Reference to the `Terraform` resource of a run.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRef {
    /// Name of the resource, in the namespace of the run.
    pub name: String,
    /// Uid of the resource. A resource that was deleted and created again has another uid.
    pub uid: String,
}

/// Commit of a git repository.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Commit {
    /// First line of the message, at most 200 bytes.
    pub subject: String,
    /// Name of the author, at most 100 bytes. The author of a commit is not verified.
    pub author: String,
}

/// Approval of a plan.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunApproval {
    /// Id of the approved plan.
    pub plan: String,
    /// User who approved the plan, authenticated by the API server: the value of `spec.approval.by`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Time of the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// Result of a run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformRunStatus {
    /// Result of the run: `NoChanges`, `Changes`, `Done`, `Failed` or `Cancelled`.
    pub result: String,
    /// Reason of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message of the failure, with the last lines of the engine's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of consecutive retries with the same failure, or of drift checks with the same differences, that this object records. `spec`
    /// describes the first of them, `status` the last.
    pub count: i64,
    /// Number of the last run that this object records. Equal to `spec.number` if `count` is 1.
    pub last_number: i64,
    /// End time.
    pub finished_at: Time,
    /// Duration of the run, in seconds.
    pub seconds: i64,
    /// Durations of the steps.
    #[serde(default)]
    pub steps: StepTimes,
    /// Engine of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Summary of the changes in the plan: add, change, destroy. Example: `+2 ~1 -0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Reasons why the plan needs approval, in addition to `approval.mode: Manual`. Example: a matching rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approval_reasons: Vec<String>,
    /// Id of the plan, if the plan waits for approval at the end of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_id: Option<String>,
    /// Changes in the plan. Sensitive values are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangeSet>,
    /// Text of the plan, as the engine prints it, at most 20 KiB. Known secret values are masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Log of the run. Known secret values are masked.
    #[serde(default)]
    pub log: RunLog,
}

/// Beginning and end of a log.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunLog {
    /// Beginning of the log, at most 8 KiB.
    pub head: String,
    /// End of the log, at most 24 KiB. Empty if `head` is the whole log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Number of bytes between `head` and `tail` that are not stored.
    #[serde(default)]
    pub omitted_bytes: i64,
}

impl RunLog {
    /// Returns beginning and end of the log, with a line in place of the part that is not stored.
    pub fn text(&self) -> String {
        let Self {
            head,
            tail,
            omitted_bytes,
        } = self;
        match omitted_bytes {
            0 => format!("{head}{tail}"),
            bytes => format!("{head}\n[{bytes} bytes are not stored]\n{tail}"),
        }
    }
}

impl TerraformRun {
    /// Whether this is the record of run `number`. One record describes consecutive retries with the same failure, or drift checks with the
    /// same differences. Between two such drift checks there may be others without a record.
    pub fn describes(&self, number: i64) -> bool {
        let first = self.spec.number;
        let (count, last) = match &self.status {
            Some(status) => (status.count, status.last_number),
            None => (1, first),
        };
        let is_gapless = last.saturating_sub(first).saturating_add(1) == count;
        number == first || number == last || (is_gapless && (first..=last).contains(&number))
    }
}

/// Returns the CRD. It has no status subresource: the operator writes the record of a run with one request.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = TerraformRun::crd();
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    crd
}

/// Returns the name of the record of run `number` of the resource with `name` and `uid`. The beginning of the uid distinguishes a resource
/// from an earlier one of the same name.
pub fn run_name(name: &str, uid: &str, number: i64) -> String {
    let uid: String = uid.chars().take(5).collect();
    format!("{name}-{uid}-{number}")
}
