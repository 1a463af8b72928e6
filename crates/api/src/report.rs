//! Reports of runs and builds.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::change_set::ChangeSet;
use crate::engine::Engine;
use crate::reason::ReasonText;
use crate::run_kind::RunKind;
use crate::state_lock::StateLock;

/// Maximum size of the engine's output in a report, in characters. The copy of the report in the termination message has at most 4096 bytes
/// (limit of the kubelet).
pub const MAX_TEXT: usize = 2000;

/// Maximum number of undeclared variables in a report.
pub const MAX_UNDECLARED: usize = 20;

/// Maximum number of hosts of registries in a report.
pub const MAX_REGISTRY_HOSTS: usize = 32;

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// Number of the run.
    pub number: i64,
    /// Kind of the run.
    pub kind: RunKind,
    /// Result of the run.
    pub result: RunResult,
    /// Cause of the run, as in `status.runs[].trigger`. Set by the controller.
    #[serde(default)]
    pub trigger: String,
    /// Name of the Job. Set by the controller.
    #[serde(default)]
    pub job: String,
    /// Changes in the plan. `None` without a plan.
    pub changes: Option<ChangeSet>,
    /// Plan that waits for approval. Only with [`RunResult::Changes`].
    #[serde(default)]
    pub asks: Option<PlanAsks>,
    /// Lineage of the state at the end of the run, if the lineage is known and the state belongs to the resource.
    #[serde(default)]
    pub lineage: Option<String>,
    /// State lock that the run could not acquire, because another process holds the lock.
    #[serde(default)]
    pub lock: Option<StateLock>,
    /// Failure of the run, with [`RunResult::Failed`]. With [`RunResult::Cancelled`], the cancellation by a user, set by the controller.
    pub failure: Option<Failure>,
    /// Location of the unsaved state, if the run could not write the state to its backend.
    #[serde(default)]
    pub unsaved: Option<UnsavedPlace>,
    /// If true, the run report contains no unsaved state of an earlier run. If the pod mounted the cache volume, the volume contains none
    /// either.
    #[serde(default)]
    pub recovered: bool,
    /// Address of the state, as the engine resolved it.
    pub state_address: Option<String>,
    /// Address from which the run copied the state (`spec.backend.migrate`).
    #[serde(default)]
    pub moved_from: Option<String>,
    /// Engine of the run.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// Number of managed objects in the state at the end of the run. `None` if the run did not read the state.
    #[serde(default)]
    pub inventory: Option<i64>,
    /// Names in `spec.variables` that the module does not declare, at most [`MAX_UNDECLARED`].
    #[serde(default)]
    pub undeclared: Vec<Undeclared>,
    /// Hosts of the registries of which the module uses modules or providers, at most [`MAX_REGISTRY_HOSTS`]. `None` if they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_hosts: Option<Vec<String>>,
    /// Durations of the steps.
    #[serde(default)]
    pub took: StepTimes,
    /// Start time of the runner.
    pub started_at: Timestamp,
    /// End time of the run.
    pub finished_at: Timestamp,
}

impl RunReport {
    /// Returns a report without details: no trigger, no Job, no changes, and none of the optional fields.
    pub fn new(
        number: i64,
        kind: RunKind,
        result: RunResult,
        started_at: Timestamp,
        finished_at: Timestamp,
    ) -> Self {
        Self {
            number,
            kind,
            result,
            trigger: String::new(),
            job: String::new(),
            changes: None,
            asks: None,
            lineage: None,
            lock: None,
            failure: None,
            unsaved: None,
            recovered: false,
            state_address: None,
            moved_from: None,
            engine: None,
            inventory: None,
            undeclared: Vec::new(),
            registry_hosts: None,
            took: StepTimes::default(),
            started_at,
            finished_at,
        }
    }

    /// Returns the report of a run that was cancelled before it changed objects: a failure is a consequence of the cancellation.
    #[must_use]
    pub fn as_cancelled(&self) -> Self {
        match self.result {
            RunResult::Failed => Self {
                result: RunResult::Cancelled,
                failure: None,
                ..self.clone()
            },
            RunResult::NoChanges | RunResult::Changes | RunResult::Done | RunResult::Cancelled => {
                self.clone()
            }
        }
    }
}

/// Location of an unsaved state. The next run saves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnsavedPlace {
    /// Report Secret.
    Report,
    /// Cache volume only.
    CacheVolume,
    /// The run was interrupted during an apply: the cache volume may contain an unsaved state.
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

/// Duration of the steps of a run, in milliseconds. `None` for a step that did not run. Durations of repeated steps are added.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct StepTimes {
    /// Duration of `init`, if the run executed it, plus the duration of `scripts.init`, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<u64>,
    /// Duration of `plan` or of `scripts.plan`, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<u64>,
    /// Duration of `apply` or `destroy`, or of the script that replaces the command, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply: Option<u64>,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunResult {
    /// The plan has no changes.
    NoChanges,
    /// The plan has changes, and nothing was applied: the run is a drift check, or the plan waits for approval.
    Changes,
    /// The plan was applied, or all managed objects were destroyed.
    Done,
    /// The run failed, see [`RunReport::failure`].
    Failed,
    /// The run was cancelled before it changed objects.
    Cancelled,
}

impl RunResult {
    /// Returns the name of the result in `status` and in metrics.
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

/// Plan that waits for approval (rule 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanAsks {
    /// Plan id: HMAC of changes, output changes, context, variables, scripts, and lineage and serial of the state. The HMAC also includes
    /// the number of the last run that started to change objects, and the time of a restore. So plans of two applies never have the same
    /// id.
    pub id: String,
    /// Reasons why the plan needs approval, in addition to `approval.mode: Manual`: matching rules, an adopted state, removal of every
    /// managed object.
    pub because: Vec<String>,
}

/// Failure of a run or a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Whether the failure is retried, and whether retries use the retry budget (`spec.retry.limit`).
    pub class: FailureClass,
    /// [`Reason`](crate::Reason) as a string.
    #[serde(deserialize_with = "crate::reason::deserialize")]
    pub reason: String,
    /// Failed operation and its error, with the last lines of the engine's output. At most [`MAX_TEXT`] characters.
    pub message: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(class: FailureClass, reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self {
            class,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Creates a transient failure.
    pub fn transient(reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self::new(FailureClass::Transient, reason, message)
    }

    /// Creates a failure of the module, its variables or the managed objects.
    pub fn module(reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self::new(FailureClass::Module, reason, message)
    }

    /// Creates a failure that requires a change by the user.
    pub fn user(reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self::new(FailureClass::User, reason, message)
    }
}

/// Retry behaviour of a failure (rule 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureClass {
    /// Failure caused by network, throttling, quota, eviction or a held lock. Retries do not use the retry budget (`spec.retry.limit`).
    #[serde(rename = "World")]
    Transient,
    /// Failure of the module, its variables or the managed objects. Retries use the retry budget (`spec.retry.limit`).
    Module,
    /// Failure that requires a change by the user. Not retried.
    User,
}

/// Termination message of a runner container in a build pod, if the container fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrepareReport {
    /// Failure of the container.
    pub failure: Failure,
}
