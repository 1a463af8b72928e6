//! The status of a `Terraform` resource.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::run_kind::RunKind;
use crate::stack::BlockedBy;

/// What goes on, in one word.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
pub enum State {
    /// Nothing has begun, or something is waited for.
    #[default]
    Pending,
    /// The runner image is being built.
    Building,
    /// A plan is being made.
    Planning,
    /// A plan waits for a person.
    AwaitingApproval,
    /// A plan is being applied.
    Applying,
    /// The configuration is applied.
    Success,
    /// The real objects differ from the configuration, and nothing is done about it.
    Drifted,
    /// Something failed and is tried again.
    Failed,
    /// Nothing more happens until a person changes something.
    Stalled,
    /// The resource is deleted; what it manages is being destroyed.
    Destroying,
}

/// What the operator knows and does.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TerraformStatus {
    /// The generation of the resource that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What goes on, in one word.
    #[serde(default)]
    pub state: State,
    /// What goes on, what comes next and when, and what a person can do.
    #[serde(default)]
    pub message: String,
    /// `Ready`, `Reconciling`, `Stalled`, `SourceReady`, `ImageReady`, `InSync`, `DependenciesReady`.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The commit in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// The runner image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// The engine in it: as the operator's catalogue says, else as the last apply told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// The last plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The last apply that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied: Option<AppliedStatus>,
    /// How the real objects differ from the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftStatus>,
    /// The lock of somebody else that stands in the way, as the engine tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockStatus>,
    /// Failures in a row with the present configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryStatus>,
    /// Place in the queue of runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
    /// The resources that this one depends on and that are not ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// Where the outputs are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<OutputsStatus>,
    /// Where the state is, as the engine resolved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_address: Option<String>,
    /// The number of the last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
    /// The last ten runs, newest first, but for looks for drift that found none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunStatus>,
}

/// The commit in use.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// The commit's id.
    pub revision: String,
    /// Digest of what the module needs at that commit. Commits that do not touch the module
    /// have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// The runner image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// Its tag: a digest over everything that goes into it.
    pub tag: String,
    /// Its digest, once it is in the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The image it is built from, by digest.
    pub base: String,
}

/// The last plan.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// For example `+2 ~1 -0`.
    pub summary: String,
    /// Its id, where a person has a say: what `spec.approval.plan` must be for it to be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether it waits for a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pending_approval: bool,
    /// User of the API server who approved the plan that was applied last, from `spec.approval.by`. Absent: the user who approved did
    /// not set that field; the API server's audit log has the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// Field manager that set `spec.approval.plan`, such as `kubectl-patch`. Clients choose this name: it does not identify a
    /// user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_field_manager: Option<String>,
    /// When it was approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Time>,
    /// Resources to create, replaced ones included.
    pub add: i64,
    /// Resources to update in place.
    pub change: i64,
    /// Resources to destroy, replaced ones included.
    pub destroy: i64,
}

/// A successful apply.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedStatus {
    /// The commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Digest of everything the result depends on: image, variables, backend, scripts.
    pub config_hash: String,
    /// When.
    pub time: Time,
}

/// How the real objects differ from the configuration.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftStatus {
    /// When it was first seen.
    pub since: Time,
    /// Resources to create.
    pub add: i64,
    /// Resources to update in place.
    pub change: i64,
    /// Resources to destroy.
    pub destroy: i64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<crate::report::ResourceChange>,
}

/// A lock on the state that somebody else holds.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// The engine's lock id, as `terraform force-unlock` wants it.
    pub id: String,
    /// Who holds it: `user@host`.
    pub who: String,
    /// What for: `OperationTypeApply` and the like.
    pub operation: String,
    /// Since when.
    pub since: Time,
}

/// Failures in a row.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryStatus {
    /// Failures that count against `spec.retry.limit`.
    pub failures: i32,
    /// When the next try is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Time>,
}

/// Place in the queue of runs.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Position in the queue, refreshed every 5 minutes. 1 starts next; from 100 on it is rounded up to two digits. Example: 12.
    pub position: i32,
}

/// Where the outputs are.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputsStatus {
    /// The Secret.
    pub secret_name: String,
    /// The ConfigMap, if `spec.outputs` wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<String>,
}

/// One run.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Its number.
    pub number: i64,
    /// What it did.
    pub kind: RunKind,
    /// Why it was started.
    pub trigger: String,
    /// How it ended: `NoChanges`, `Changes`, `Done`, `Failed` or `Cancelled`.
    pub result: String,
    /// Changes of its plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last lines of the engine's own text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// How long it took, in seconds.
    pub seconds: i64,
    /// Its Job: `kubectl logs job/<name>` shows the engine's text while the Job is kept.
    pub job: String,
}
