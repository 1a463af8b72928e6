//! Decisions that keep the previous status: after a restart of the operator until git and registry answer, and while they are unreachable.

use alustan_api::conditions::update;
use alustan_api::report::FailureClass;
use alustan_api::{Reason, State, TerraformStatus};

use crate::decide::case::ReconcileCase;
use crate::decide::source::fetching;
use crate::model::facts;
use crate::model::image::ImagePlan;
use crate::model::summary::Summary;
use crate::observed::Answer;
use crate::step::Decision;

impl ReconcileCase<'_> {
    /// Returns the status to keep while the commit is unknown: the query to the repository is pending, or failed without an earlier result.
    /// So a ready resource stays ready after a restart of the operator, and while the git server is unreachable. `None` if the status must
    /// be computed again.
    pub(super) fn unchanged(&self) -> Option<TerraformStatus> {
        if let Some(status) = self.waiting_status_while_querying() {
            return Some(status);
        }
        let source_unknown = match &self.image.source {
            Answer::Pending => true,
            Answer::Failed {
                failure,
                last: None,
                ..
            } => failure.class == FailureClass::Transient,
            Answer::Known(_) | Answer::Failed { .. } => false,
        };
        let pending = source_unknown && self.seen.inputs.is_ok();
        let quiet = match facts::open_run(&self.current) {
            Some(run) => self.keeps_ready(run.kind, &run.trigger, &run.config_hash),
            None => self
                .baseline()
                .is_some_and(|baseline| self.is_current(baseline.config_hash)),
        };
        let status = self.tf.status.as_ref().filter(|_| pending && quiet)?;
        let generation_observed = status.observed_generation == self.tf.metadata.generation;
        let is_idle = facts::open_run(&self.current).is_none();
        let source_applied = generation_observed || (is_idle && self.is_last_source_applied());
        (is_ready(status) && source_applied).then(|| {
            let view = self.view(None, None);
            if self.image.source == Answer::Pending && generation_observed {
                return status.clone();
            }
            if is_idle {
                return TerraformStatus {
                    source: status.source.clone(),
                    image: status.image.clone(),
                    ..view.status(&self.idle_summary(), self.now)
                };
            }
            let (previous, generation) = (&status.conditions, status.observed_generation);
            let updated = [view.source_ready()];
            TerraformStatus {
                conditions: update(previous.clone(), previous, &updated, generation, self.now),
                ..status.clone()
            }
        })
    }

    /// Returns the unchanged status of a waiting resource ([`Self::waiting_status`]) while the query to the repository is pending, for
    /// example after a restart of the operator.
    fn waiting_status_while_querying(&self) -> Option<TerraformStatus> {
        let query_pending = self.image.source == Answer::Pending && self.seen.inputs.is_ok();
        self.waiting_status().filter(|_| query_pending)
    }

    /// Returns the current status if the resource waits for an approval, a retry, a change of the spec or another object. `None` if the
    /// resource does not wait, or if its run record or generation has changed.
    fn waiting_status(&self) -> Option<TerraformStatus> {
        let changed =
            self.current != self.record.record || facts::open_run(&self.current).is_some();
        let status = self.tf.status.as_ref().filter(|_| !changed)?;
        let is_waiting = matches!(
            status.state,
            State::AwaitingApproval | State::Failed | State::Stalled
        ) || is_blocked(status);
        let generation_observed = status.observed_generation == self.tf.metadata.generation;
        (is_waiting && generation_observed).then(|| status.clone())
    }

    /// Whether the last apply (with `spec.mode: PlanOnly`, the last plan) used the current spec and the last known context, and no run of this
    /// configuration has failed since.
    fn is_last_source_applied(&self) -> bool {
        let source = self.last_source().ok_or_else(fetching);
        let target = self.target_of(source);
        let wanted = target.and_then(|target| target.wanted);
        wanted.is_ok_and(|wanted| self.is_current(&wanted.config.hash))
    }

    /// Returns the decision with the previous `status`. Creates missing objects of an active run, or cancels it.
    pub(super) fn keep_status(mut self, status: TerraformStatus) -> Decision {
        if let Some(run) = facts::open_run(&self.current).cloned() {
            self.continue_or_cancel(&run);
        }
        Decision {
            steps: self.steps,
            start: None,
            status,
            requeue_at: None,
        }
    }

    /// Returns the decision with `summary` for a resource whose next run cannot start. While the registry is queried, a resource that
    /// already waits ([`Self::waiting_status`]) keeps its status. A ready resource gets the new status, because it may be ready with an
    /// earlier configuration.
    pub(super) fn cannot_start(
        self,
        summary: &Summary,
        plan: Option<&ImagePlan>,
        digest: Option<String>,
    ) -> Decision {
        match self.waiting_status().filter(|status| !is_ready(status)) {
            Some(status) if summary.reason == Reason::ImageLookup => self.keep_status(status),
            _ => self.done(summary, plan, digest),
        }
    }
}

/// Whether `status` reports that the resource waits for another object, for example a dependency.
fn is_blocked(status: &TerraformStatus) -> bool {
    status.state == State::Pending && ready_is(status, "False")
}

fn is_ready(status: &TerraformStatus) -> bool {
    ready_is(status, "True")
}

fn ready_is(status: &TerraformStatus, value: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == value)
}
