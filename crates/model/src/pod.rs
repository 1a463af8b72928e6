//! Pods of runs.

use std::fmt;

use alustan_api::report::{Failure, RunResult};
use alustan_api::run::{Claim, RunInputs, RunRecord, RunSpec, StateLock};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::objects::Job;
use crate::shared::Shared;

/// A pod of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) job: String,
    pub(crate) job_uid: String,
    pub(crate) number: i64,
    pub(crate) decision: String,
    pub(crate) stage: Stage,
    /// Whether the Job is deleted, so that the pod receives SIGTERM.
    pub(crate) is_terminating: bool,
    /// Whether the pod has begun to change real objects.
    pub(crate) has_begun: bool,
}

/// Progress of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The pod has sent no request.
    Created,
    /// The pod has read the run record.
    Read(Shared<Run>),
    /// The pod holds the claim.
    Planning(Shared<Run>),
    /// The start of the changes is stored. The engine has no lock yet.
    Begun(Shared<Run>),
    /// The engine changes real objects.
    Changing(Shared<Run>),
    /// The engine has ended. The report is not stored yet.
    Ending(Shared<Run>, Shared<Outcome>),
    /// The report is stored.
    Reported,
    /// The container has ended.
    Ended,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "reads the run record",
            Self::Read(_) => "claims the run",
            Self::Planning(_) => "plans and begins",
            Self::Begun(_) => "locks the state",
            Self::Changing(_) => "changes objects",
            Self::Ending(..) => "reports",
            Self::Reported | Self::Ended => "ends",
        })
    }
}

/// What a pod reads from the run record.
#[derive(Serialize)]
pub(crate) struct Run {
    pub(crate) record: RunRecord,
    pub(crate) spec: RunSpec,
    pub(crate) inputs: RunInputs,
}

/// Result of a run, before it is reported.
#[derive(Clone, Serialize)]
pub(crate) struct Outcome {
    pub(crate) result: RunResult,
    pub(crate) failure: Option<Failure>,
    /// Id of a plan that waits for approval.
    pub(crate) asks: Option<String>,
    /// Whether the engine refused to start, because the state was locked.
    pub(crate) is_refused: bool,
}

impl Outcome {
    pub(crate) fn of(result: RunResult) -> Self {
        Self {
            result,
            failure: None,
            asks: None,
            is_refused: false,
        }
    }

    pub(crate) fn failed(failure: Failure) -> Self {
        Self {
            failure: Some(failure),
            ..Self::of(RunResult::Failed)
        }
    }
}

impl Pod {
    pub(crate) fn of(name: &str, job: &Job, index: usize) -> Self {
        Self {
            name: format!("{name}-p{index}"),
            job: name.to_owned(),
            job_uid: job.uid.clone(),
            number: job.number,
            decision: job.decision.clone(),
            stage: Stage::Created,
            is_terminating: false,
            has_begun: false,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.stage != Stage::Ended
    }

    /// Whether the engine of the pod changes real objects.
    pub(crate) fn is_changing(&self) -> bool {
        matches!(self.stage, Stage::Changing(_))
    }

    /// Whether the pod has claimed its run, and has not reported yet.
    pub(crate) fn is_working(&self) -> bool {
        matches!(
            self.stage,
            Stage::Planning(_) | Stage::Begun(_) | Stage::Changing(_) | Stage::Ending(..)
        )
    }

    /// Whether the pod acquired `lock`, and its engine may still run.
    pub(crate) fn may_hold(&self, lock: &StateLock) -> bool {
        lock.is_of_pod(&self.name)
            && matches!(
                self.stage,
                Stage::Planning(_) | Stage::Begun(_) | Stage::Changing(_)
            )
    }

    /// The name is unique, so it is also the uid.
    pub(crate) fn claim(&self, at: Timestamp) -> Claim {
        Claim {
            pod_uid: self.name.clone(),
            pod: self.name.clone(),
            at,
        }
    }

    pub(crate) fn lock(&self) -> StateLock {
        StateLock {
            id: self.name.clone(),
            operation: "OperationTypeApply".to_owned(),
            who: format!("alustan@{}", self.name),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    /// Whether the next request of the pod writes the run report.
    pub(crate) fn writes_report(&self) -> bool {
        matches!(
            self.stage,
            Stage::Read(_) | Stage::Planning(_) | Stage::Ending(..)
        )
    }
}
