//! Status of a `Terraform` resource.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::anything::Anything;
use crate::engine::Engine;
use crate::output_value::OutputValue;
use crate::run_kind::RunKind;
use crate::stack::BlockedBy;

/// State of a resource.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
pub enum State {
    /// No run has started yet, or the resource waits for another object or for a slot.
    #[default]
    Pending,
    /// The runner image is being built.
    Building,
    /// A run creates a plan.
    Planning,
    /// A plan waits for approval.
    AwaitingApproval,
    /// A run applies a plan.
    Applying,
    /// The configuration is applied.
    Success,
    /// A plan has changes, which `spec.mode: PlanOnly` does not apply.
    Planned,
    /// The real objects differ from the configuration, and the drift is not corrected.
    Drifted,
    /// The last attempt failed, and the operator retries.
    Failed,
    /// The operator does not retry until the resource, the repository or the cluster changes.
    Stalled,
    /// The resource is deleted, and its managed objects are being destroyed.
    Destroying,
}

impl State {
    /// Returns the value of `status.state`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Building => "Building",
            Self::Planning => "Planning",
            Self::AwaitingApproval => "AwaitingApproval",
            Self::Applying => "Applying",
            Self::Success => "Success",
            Self::Planned => "Planned",
            Self::Drifted => "Drifted",
            Self::Failed => "Failed",
            Self::Stalled => "Stalled",
            Self::Destroying => "Destroying",
        }
    }
}

/// Observed state of a `Terraform` resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct TerraformStatus {
    /// Generation of the resource that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the current state. Condition `Ready` has the details.
    #[serde(default)]
    pub state: State,
    /// Human-readable message: current activity, next step with its time, and commands to act.
    #[serde(default)]
    pub message: String,
    /// Conditions with types `Ready`, `Reconciling`, `Stalled`, `SourceReady`, `ImageReady`, `InSync` and `DependenciesReady`.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Revision and context in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// Runner image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// Engine in the runner image, from the catalogue of the operator. If the catalogue does not contain the image: engine of the last
    /// apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Last plan with changes, or the plan that waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// Last successful apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied: Option<AppliedStatus>,
    /// Differences between the real objects and the configuration, if a drift check found any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftStatus>,
    /// State lock that the last run could not acquire, because another process holds the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockStatus>,
    /// Consecutive failures with the current configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryStatus>,
    /// Position in the queue of runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
    /// Dependencies that are not ready. If this resource is deleted: dependents that must be destroyed first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// Managed objects in the state. `kubectl alustan resources NAME` lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inventory: Option<InventoryStatus>,
    /// Secret and ConfigMap with the outputs, and the values of the outputs in `spec.outputs.status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<OutputsStatus>,
    /// Address of the state. Example: `s3://bucket/key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_address: Option<String>,
    /// Number of the last run. Drift checks without differences do not change this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
    /// Active run, while `state` is `Planning`, `Applying` or `Destroying`. Absent for a run that waits for a slot, and for a drift check of the
    /// applied configuration. To cancel the run: `kubectl alustan cancel NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_run: Option<ActiveRun>,
    /// The last ten runs, newest first. Drift checks without differences are omitted. Plans of `spec.mode: PlanOnly` and requested plans
    /// (`kubectl alustan plan --now`) have kind `drift`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunStatus>,
}

impl TerraformStatus {
    /// Returns the plan that waits for approval, and its id.
    pub fn pending_plan(&self) -> Option<(&PlanStatus, &str)> {
        let plan = self.plan.as_ref().filter(|plan| plan.pending_approval)?;
        Some((plan, plan.id.as_deref()?))
    }
}

/// Revision and context in use.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Commit id of a git repository, else a digest (`sha256:…`): of the manifest for `source.oci`, of the files for `source.module` and
    /// `source.inline`.
    pub revision: String,
    /// Digest of the files that the module needs at this revision. Commits that do not change these files have the same digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Runner image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// Tag of the image: a digest of the inputs of the build, such as context, base image and engine.
    pub tag: String,
    /// Digest of the image. Absent: the image is not in the registry yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Base image, by digest.
    pub base: String,
}

/// Last plan.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// Summary of the changes: add, change, destroy. Example: `+2 ~1 -0`.
    pub summary: String,
    /// Id of a plan that needs approval. To approve the plan, set `spec.approval.plan` to this value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether the plan waits for approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pending_approval: bool,
    /// User who approved this plan, authenticated by the API server: the value of `spec.approval.by`. Absent: the approval did not set that field.
    /// The audit log of the API server contains the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// Field manager that set `spec.approval.plan`. Example: `kubectl-patch`. Clients choose this name: it does not identify a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_field_manager: Option<String>,
    /// Time of the approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Time>,
    /// Number of objects to create, including replaced objects.
    pub add: i64,
    /// Number of objects to update in place.
    pub change: i64,
    /// Number of objects to destroy, including replaced objects.
    pub destroy: i64,
}

/// Successful apply.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedStatus {
    /// Applied revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Digest of everything that an apply depends on: image inputs, variables, backend, scripts, engine, and identity and environment of
    /// the runner.
    pub config_hash: String,
    /// Time at which the result was recorded.
    pub time: Time,
}

/// Differences between the real objects and the configuration.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftStatus {
    /// Time at which a drift check first found differences.
    pub since: Time,
    /// Number of objects to create, including replaced objects.
    pub add: i64,
    /// Number of objects to update in place.
    pub change: i64,
    /// Number of objects to destroy, including replaced objects.
    pub destroy: i64,
    /// Changed resources, at most 20, destroyed and replaced ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<crate::change_set::ChangedResource>,
}

/// State lock that another process holds.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// Lock id of the engine, for `terraform force-unlock`.
    pub id: String,
    /// Holder of the lock, as `user@host`.
    pub who: String,
    /// Operation that holds the lock. Example: `OperationTypeApply`.
    pub operation: String,
    /// Time at which the lock was acquired.
    pub since: Time,
}

/// Consecutive failures with the current configuration.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryStatus {
    /// Number of consecutive failures, for comparison with `spec.retry.limit`. Transient failures are not included.
    pub failures: i32,
    /// Time of the next attempt. Absent: no attempt is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Time>,
}

/// Position in the queue of runs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Position in the queue, refreshed every 5 minutes. The run at position 1 starts next. Positions from 100 on are rounded up to two
    /// significant digits. Example: 130 for position 123.
    pub position: i32,
}

/// Managed objects in the state.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryStatus {
    /// Number of managed objects, including deposed ones. Data sources are not included.
    pub count: i64,
    /// Number of the run at whose end the objects were counted. Later changes by other clients of the state are not included.
    pub run: i64,
}

/// Secret and ConfigMap with the outputs, and the values of the outputs in `spec.outputs.status`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputsStatus {
    /// Name of the Secret.
    pub secret_name: String,
    /// Name of the ConfigMap, if `spec.outputs.configMapName` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<String>,
    /// Values of the outputs in `spec.outputs.status`, with their JSON types, by name of the output, as of the last successful apply.
    /// Example: `url: https://web.test`. Absent before the first apply.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Anything>", extend("maxProperties" = 64, "x-kubernetes-map-type" = "atomic"))]
    pub values: BTreeMap<String, OutputValue>,
    /// Outputs in `spec.outputs.status` that `values` does not contain, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<OmittedOutput>,
}

/// An output in `spec.outputs.status` whose value is not in the status.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OmittedOutput {
    /// Name of the output.
    pub name: String,
    /// `OutputSensitive`: the module marks the output as sensitive. `OutputNotFound`: the module has no such output, or its value is null.
    /// `OutputsTooLarge`: the value exceeds the limits of `spec.outputs.status`.
    pub reason: String,
}

/// Run that has started and not ended.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActiveRun {
    /// Number of the run, counted per resource from 1. Value of annotation `alustan.io/cancel-run`.
    pub number: i64,
    /// Kind of the run.
    pub kind: RunKind,
    /// Name of the Job. `kubectl logs -f job/<name>` prints the output of the engine.
    pub job: String,
    /// Start time.
    pub started_at: Time,
}

/// Result of a run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Number of the run, counted per resource from 1.
    pub number: i64,
    /// Kind of the run.
    pub kind: RunKind,
    /// Cause of the run. Example: `commit 1a2b3c4..5d6e7f8`, `input Secret db`, `retry 2`.
    pub trigger: String,
    /// Result of the run: `NoChanges`, `Changes`, `Done`, `Failed` or `Cancelled`.
    pub result: String,
    /// Summary of the changes in the plan: add, change, destroy. Example: `+2 ~1 -0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message of the failure, with the last lines of the engine's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// End time of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Duration of the run, in seconds.
    pub seconds: i64,
    /// Name of the Job. `kubectl logs job/<name>` prints the output of the engine until the Job is deleted.
    pub job: String,
}
