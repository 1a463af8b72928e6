//! Results that a run collects for its report, and causes for which a run ends without a result.

use alustan_api::change_set::ChangeSet;
use alustan_api::report::{Failure, PlanAsks, StepTimes, Undeclared, UnsavedPlace};
use alustan_api::run::{Inventory, Outputs, OwnBackend, RunRecord, StateLock};
use alustan_api::{Engine, Reason};

use crate::failure::transient;
use crate::record::RecordError;
use crate::secrets::redact::Redactor;

/// Why a run ended without a result.
pub(crate) enum Ended {
    /// The run failed.
    Failed(Failure),
    /// The controller cancelled the run before the run changed objects.
    Cancelled,
    /// This pod no longer holds the claim of the run; contains the reason.
    NotOurs(String),
}

impl Ended {
    /// Masks secret values in the message.
    pub(crate) fn redacted(self, redactor: &Redactor) -> Self {
        match self {
            Self::Failed(failure) => Self::Failed(redactor.failure(failure)),
            Self::Cancelled => Self::Cancelled,
            Self::NotOurs(why) => Self::NotOurs(redactor.text(&why)),
        }
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<RecordError> for Ended {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::NotOurs(why) => Self::NotOurs(why),
            other => Self::Failed(transient(Reason::RecordUnavailable, other.to_string())),
        }
    }
}

/// Results that a run collects for its report.
#[derive(Default)]
pub(crate) struct Findings {
    /// Change set with details, without secret values.
    pub(crate) changes: Option<ChangeSet>,
    /// Redactor that also knows the values that the plan marks as sensitive.
    pub(crate) redactor: Option<Redactor>,
    pub(crate) asks: Option<PlanAsks>,
    /// Lineage of the state, if the state belongs to the resource.
    pub(crate) lineage: Option<String>,
    /// Whether the run started to change objects.
    pub(crate) began: bool,
    /// Run record at the time of the claim, if the run reported the start of changes and the engine then refused to start. Lineage and
    /// address of the state are copied from this run record to the run report.
    pub(crate) refused: Option<RunRecord>,
    /// Whether the resource has no state.
    pub(crate) stateless: bool,
    /// State lock of another client that blocked the run.
    pub(crate) lock: Option<StateLock>,
    pub(crate) outputs: Option<Outputs>,
    /// Managed objects in the state at the end of the run, if the run read the state.
    pub(crate) inventory: Option<Inventory>,
    pub(crate) state_address: Option<String>,
    /// Previous address of the state, if this run copied the state.
    pub(crate) moved_from: Option<String>,
    /// Location of the state, if the run could not save the state to its backend.
    pub(crate) unsaved: Option<UnsavedPlace>,
    /// Whether no unsaved state of an earlier run is left to push: the unsaved state was pushed, is older than the state in the backend, or
    /// did not exist.
    pub(crate) recovered: bool,
    /// Backend block of the module, if the state is in that backend.
    pub(crate) own_backend: Option<OwnBackend>,
    pub(crate) engine: Option<Engine>,
    /// Variables of the resource that the module does not declare.
    pub(crate) undeclared: Vec<Undeclared>,
    /// Hosts of the registries of which the module uses modules or providers; `None` if they are not known.
    pub(crate) registry_hosts: Option<Vec<String>>,
    pub(crate) abandoned_lock: Option<String>,
    pub(crate) took: StepTimes,
}
