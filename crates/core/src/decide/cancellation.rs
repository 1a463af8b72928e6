//! Cancellation of the active run by a user: annotation `alustan.io/cancel-run`.

use alustan_api::report::{Failure, RunReport, RunResult};
use alustan_api::run::{RunPhase, RunRecord, RunSpec};
use alustan_api::{CANCEL_RUN, DISCARD_PLAN, Reason};

use crate::decide::case::ReconcileCase;
use crate::decide::start_run;
use crate::model::{facts, progress, user_request};
use crate::step::{Step, Swap};

/// Returns the cancellation of the current run by a user, if `record` contains one.
pub(super) fn by_user(record: &RunRecord) -> Option<&Failure> {
    record.given_up.as_ref().filter(|cause| is_by_user(cause))
}

/// Whether `failure` is a cancellation by a user.
pub(super) fn is_by_user(failure: &Failure) -> bool {
    failure.reason == Reason::RunCancelled
}

/// Changes `report`, the report of a run that a user cancelled, if the run did not end successfully before. The failure is not retried
/// until a user requests it, or the configuration changes. `has_begun`: whether the run began to change objects.
pub(super) fn record_cancellation(report: &mut RunReport, cancellation: &Failure, has_begun: bool) {
    let message = &cancellation.message;
    match report.result {
        RunResult::NoChanges | RunResult::Changes | RunResult::Done => {}
        RunResult::Failed | RunResult::Cancelled if !has_begun => {
            let message = format!("{message} before it changed any object");
            report.result = RunResult::Cancelled;
            report.failure = Some(Failure::user(Reason::RunCancelled, message));
        }
        RunResult::Failed | RunResult::Cancelled => {
            let cause = report.failure.take();
            let is_unsaved = cause
                .as_ref()
                .is_some_and(|cause| cause.reason == Reason::StateNotSaved);
            let reason = if is_unsaved {
                Reason::StateNotSaved
            } else {
                Reason::RunCancelled
            };
            let cause = cause.map_or_else(String::new, |cause| format!("; {}", cause.message));
            let message = format!(
                "{message} while it changed objects; the next plan shows what is missing{cause}"
            );
            report.result = RunResult::Failed;
            report.failure = Some(progress::failure(Failure::user(reason, message)));
        }
    }
}

impl ReconcileCase<'_> {
    /// Returns the cancellation of the active run by a user. `None` without an active run, or if the annotation names another run.
    pub(super) fn user_cancellation(&self) -> Option<Failure> {
        let run = facts::open_run(&self.current)?;
        if let Some(recorded) = by_user(&self.current) {
            return Some(recorded.clone());
        }
        let number = self.current.number;
        let requested = user_request::cancellation(self.tf, &self.history)?;
        (requested == number.to_string()).then(|| {
            let message = format!("run {number} ({}) was cancelled by a user", run.kind);
            Failure::user(Reason::RunCancelled, message)
        })
    }

    /// Creates the missing objects of the active run `run`. If a user cancels the run, ends it instead: a run that has not begun to change
    /// objects is cancelled, and the engine of any other run is interrupted by the deletion of its Job. The pod then has its termination
    /// grace period to save the state.
    pub(super) fn continue_or_cancel(&mut self, run: &RunSpec) {
        let cancellation = self.user_cancellation();
        if cancellation.is_some() && self.current.phase < RunPhase::Applying {
            return self.cancel(&run.job, cancellation);
        }
        let is_recorded = cancellation.is_none() || by_user(&self.current).is_some();
        if is_recorded {
            // An interrupted engine may need more state slots to save its state.
            let steps = start_run::ensure_missing_objects(self);
            self.steps.extend(steps);
        } else {
            self.current.given_up.clone_from(&cancellation);
            let swap = Swap::unchanged(&self.current);
            self.steps.push(Step::SwapRecord(Box::new(swap)));
        }
        if cancellation.is_some() {
            self.delete_job(&run.job);
        }
    }

    /// Returns a message suffix with the annotations `alustan.io/cancel-run` and `alustan.io/discard-plan` that have no effect.
    pub(super) fn ignored_requests(&self) -> String {
        let active = facts::open_run(&self.current).map(|_| self.current.number.to_string());
        let cancelled = user_request::cancellation(self.tf, &self.history)
            .filter(|run| active.as_ref() != Some(run))
            .map(|run| {
                format!(
                    "; annotation {CANCEL_RUN} is {run:?} and has no effect: no run with this \
                     number is active"
                )
            });
        let discarded = user_request::value(self.tf, DISCARD_PLAN)
            .filter(|plan| !self.history.has_discarded(plan))
            .map(|plan| {
                format!(
                    "; annotation {DISCARD_PLAN} is {plan:?} and has no effect: no plan with this \
                     id waits for approval"
                )
            });
        cancelled.into_iter().chain(discarded).collect()
    }
}
