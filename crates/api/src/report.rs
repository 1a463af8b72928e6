//! What a run and a build report.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::run_kind::RunKind;
use crate::state_lock::StateLock;

/// How many characters of the engine's own text a report carries. The copy of a report in the
/// termination message must stay below 4096 bytes (kubelet's limit).
pub const MAX_TEXT: usize = 2000;

/// How many changed resources a report names.
pub const MAX_CHANGES: usize = 20;

/// What a run found or did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// The run's number.
    pub number: i64,
    /// What it was to do.
    pub kind: RunKind,
    /// How it ended.
    pub result: RunResult,
    /// Why it was started, as in `status.runs[]`; filled in by the controller.
    #[serde(default)]
    pub trigger: String,
    /// Its Job; filled in by the controller.
    #[serde(default)]
    pub job: String,
    /// What the plan says, where there was one.
    pub changes: Option<ChangeSet>,
    /// The plan that waits for a person; with [`RunResult::Changes`] only.
    #[serde(default)]
    pub asks: Option<PlanAsks>,
    /// The lineage of the state that it ended with.
    #[serde(default)]
    pub lineage: Option<String>,
    /// The lock of somebody else that stood in its way.
    #[serde(default)]
    pub lock: Option<StateLock>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// Where its state is kept if it could not be saved.
    #[serde(default)]
    pub unsaved: Option<UnsavedPlace>,
    /// Whether no unsaved state of an earlier run is left in the report Secret and on the cache volume, if that was mounted.
    #[serde(default)]
    pub recovered: bool,
    /// Where the state lives, as the engine resolved it.
    pub state_address: Option<String>,
    /// Where it was copied from.
    #[serde(default)]
    pub moved_from: Option<String>,
    /// The engine that it ran with.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// Names in `spec.variables` that the module does not declare, at most [`MAX_CHANGES`].
    #[serde(default)]
    pub undeclared: Vec<Undeclared>,
    /// How long its steps took.
    #[serde(default)]
    pub took: StepTimes,
    /// When the runner began.
    pub started_at: Timestamp,
    /// When it was done.
    pub finished_at: Timestamp,
}

/// Where a run kept a state that it could not save. The next run saves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnsavedPlace {
    /// The report Secret.
    Report,
    /// The cache volume alone.
    CacheVolume,
    /// Possibly the cache volume: the run was interrupted while it applied.
    Unknown,
}

/// A variable that the module does not declare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Undeclared {
    /// Name in `spec.variables`.
    pub name: String,
    /// Declared variable with a similar name.
    pub similar: Option<String>,
}

impl std::fmt::Display for Undeclared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.similar {
            Some(similar) => write!(f, "{} (did you mean {similar}?)", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// How long the steps of a run took, in milliseconds; none for a step that did not come up. What is
/// done more than once is summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepTimes {
    /// `init`, where the image was not prepared for the backend, and `scripts.init`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<u64>,
    /// `plan`, or the script in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<u64>,
    /// `apply` or `destroy`, or the script in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply: Option<u64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunResult {
    /// There was nothing to do.
    NoChanges,
    /// Changes were found and nothing was applied: a look for drift, or a plan that waits for a
    /// person.
    Changes,
    /// The plan was applied, or everything was destroyed.
    Done,
    /// It failed; [`RunReport::failure`] says why.
    Failed,
    /// It obeyed a cancellation before it changed anything.
    Cancelled,
}

impl RunResult {
    /// The word used in `status` and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoChanges => "NoChanges",
            Self::Changes => "Changes",
            Self::Done => "Done",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }
}

/// The changes of a plan, normalised: reads and no-ops left out, order fixed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeSet {
    /// Resources to create, replaced ones included.
    pub add: i64,
    /// Resources to update in place.
    pub change: i64,
    /// Resources to destroy, replaced ones included.
    pub destroy: i64,
    /// The first [`MAX_CHANGES`] of them: destroyed and replaced ones first.
    pub resources: Vec<ResourceChange>,
    /// HMAC over all of them with the resource's key: equal for equal change sets.
    pub digest: String,
    /// The same without values: over addresses, actions and the attributes that change. A diff that
    /// never ends, as of `timestamp()`, has the same each time (rule 7).
    #[serde(default)]
    pub shape: String,
}

/// A plan that is not applied until a person says so (rule 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanAsks {
    /// The plan's id: a keyed digest over its changes, the context, the variables, the state's
    /// lineage and serial, and the number of the last run that began to change things. So no two
    /// applies share one.
    pub id: String,
    /// Why a person is asked, besides `approval.mode: Manual`: rules that match, an adopted state.
    pub because: Vec<String>,
}

/// One resource of a change set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ResourceChange {
    /// Its address in the module, such as `module.dns.aws_route53_record.a["www"]`.
    pub address: String,
    /// `create`, `update`, `replace` or `delete`.
    pub action: String,
}

/// The reason where another engine than that of the last apply is refused.
pub const ENGINE_SWITCH: &str = "EngineSwitch";
/// The reason where another place of the state than that of the last apply is refused.
pub const BACKEND_CHANGED: &str = "BackendChanged";

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Who can do something about it.
    pub class: FailureClass,
    /// A stable `PascalCase` word.
    pub reason: String,
    /// What was tried and what came of it, with the last lines of the engine's own text; at
    /// most [`MAX_TEXT`] characters.
    pub message: String,
}

/// Who can do something about a failure (rule 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureClass {
    /// Network, throttling, quota, eviction, a lock held by somebody: it passes by itself and
    /// costs no retry budget.
    #[serde(rename = "World")]
    Transient,
    /// The module, its values or what it manages: tried again within the budget.
    Module,
    /// The user must change something first: no retry helps.
    User,
}

/// What the `prepare` container says in its termination message when it fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrepareReport {
    /// Why it failed.
    pub failure: Failure,
}
