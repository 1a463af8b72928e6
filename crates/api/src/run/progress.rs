//! Progress and outputs of a run, which the runner writes to the run report.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::state_lock::StateLock;

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunPhase {
    /// The controller started the run, and no pod has claimed it.
    #[default]
    Starting,
    /// A pod claimed the run. No object is changed yet.
    Planning,
    /// The run may be changing objects. It can no longer be cancelled.
    Applying,
    /// The runner has written its report.
    Reported,
    /// The report is in the history. The next run may start.
    Recorded,
}

impl RunPhase {
    /// Whether a run in this phase changes no objects: it has not reached [`Self::Applying`], or its report is recorded.
    pub fn is_harmless(self) -> bool {
        self < Self::Applying || self == Self::Recorded
    }
}

/// Progress of a run, in the run report. The controller resets it for each run, and sets [`Self::cancel`] and [`Self::closed`]. The runner
/// writes all other fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunProgress {
    /// Number of the run, see [`RunRecord::number`](super::RunRecord::number).
    pub number: i64,
    /// [`RunSpec::trace_id`](super::RunSpec::trace_id) of the run. Identifies the run if run numbers restart after the loss of the run record.
    pub trace_id: String,
    /// Phase of the run, at most [`RunPhase::Reported`].
    pub phase: RunPhase,
    /// Pod that claimed the run.
    pub claimed_by: Option<Claim>,
    /// Set by the controller to stop a run before [`RunPhase::Applying`].
    pub cancel: bool,
    /// Set by the controller when the run has ended. No pod may claim or continue the run.
    pub closed: bool,
    /// Whether the run may have changed objects. False before [`RunPhase::Applying`], and if the engine refused to start because of a
    /// locked state or a stale plan.
    pub began: bool,
    /// Lock of the managed state, while the engine holds it.
    pub lock: Option<StateLock>,
    /// Highest number of state slots that a run requested because the existing slots were too few. 0 without a request. The controller
    /// limits it to [`MAX_SLOTS`](super::MAX_SLOTS).
    pub slots_wanted: u32,
    /// See [`RunRecord::lineage`](super::RunRecord::lineage).
    pub lineage: Lineage,
    /// See [`RunRecord::state_address`](super::RunRecord::state_address).
    pub state_address: Option<String>,
    /// See [`RunRecord::own_backend`](super::RunRecord::own_backend).
    pub own_backend: Option<OwnBackend>,
}

/// Claim of a run by a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Uid of the pod.
    pub pod_uid: String,
    /// Name of the pod.
    pub pod: String,
    /// Time of the claim.
    pub at: Timestamp,
}

/// `backend` block of a module, as the engine resolved it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnBackend {
    /// Type of the backend.
    pub kind: String,
    /// Configuration of the backend.
    pub config: BTreeMap<String, Value>,
}

impl fmt::Debug for OwnBackend {
    /// Omits the configuration, which may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnBackend")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Known lineage of the state of a resource (rule 11).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lineage {
    /// No run has read the state yet.
    #[default]
    Unknown,
    /// The run record of earlier runs was lost and created again, so the lineage of the state is unknown.
    Lost,
    /// No state existed when a run of this resource started to change objects. A state that was created later belongs to the resource.
    New,
    /// Lineage of the state.
    Of(String),
}

/// Outputs of the module by name, in the format of `output -json`.
pub type Outputs = BTreeMap<String, Output>;

/// Output of the module.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Value with its JSON type, as in `output -json`.
    pub value: Value,
    /// Whether the module marks the output as sensitive.
    #[serde(default)]
    pub sensitive: bool,
}
