//! Findings of a run, and why it ended without a result.

use alustan_api::Engine;
use alustan_api::report::{ChangeSet, Failure, PlanAsks, StepTimes, Undeclared, UnsavedPlace};
use alustan_api::run::{Outputs, OwnBackend, RunRecord, StateLock};

use crate::failure::world;
use crate::record::RecordError;
use crate::redact::Redactor;

/// Why a run ended without a result.
pub(crate) enum Ended {
    /// It failed.
    Failed(Failure),
    /// The controller cancelled it before anything was changed.
    Cancelled,
    /// It is not ours any more.
    NotOurs(String),
}

impl Ended {
    /// The same without the secret values.
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
            other => Self::Failed(world("RecordUnavailable", other.to_string())),
        }
    }
}

/// What a run found out on its way.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) changes: Option<ChangeSet>,
    pub(crate) asks: Option<PlanAsks>,
    /// The lineage of the state, where it is ours.
    pub(crate) lineage: Option<String>,
    /// Whether it came to change things.
    pub(crate) began: bool,
    /// The record as it was claimed, where the engine then refused to begin.
    pub(crate) refused: Option<RunRecord>,
    /// Whether there is no state of ours.
    pub(crate) stateless: bool,
    /// The lock of somebody else.
    pub(crate) lock: Option<StateLock>,
    pub(crate) outputs: Option<Outputs>,
    pub(crate) state_address: Option<String>,
    /// Where the state was copied from.
    pub(crate) moved_from: Option<String>,
    /// Where the state is kept if it could not be saved.
    pub(crate) unsaved: Option<UnsavedPlace>,
    /// Whether no unsaved state of an earlier run is left.
    pub(crate) recovered: bool,
    /// The module's own backend, with the state.
    pub(crate) own_backend: Option<OwnBackend>,
    pub(crate) engine: Option<Engine>,
    /// Variables of the resource that the module does not declare.
    pub(crate) undeclared: Vec<Undeclared>,
    pub(crate) abandoned_lock: Option<String>,
    pub(crate) took: StepTimes,
}
