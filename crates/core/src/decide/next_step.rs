//! Next step of a resource whose target is known: a run, only the build of its image, or nothing.

use alustan_api::conditions::Convergence;
use alustan_api::run::{RunKind, Trigger};
use k8s_openapi::jiff::Timestamp;

use crate::decide::case::ReconcileCase;
use crate::decide::next_action::NextAction;
use crate::decide::target::{RunConfig, Target};
use crate::model::summary::Summary;
use crate::model::{facts, plan_request};

/// Next step for a [`Target`].
pub(super) enum Next {
    /// Starts a run.
    Run(Box<RunConfig>, RunKind, Trigger),
    /// Builds the image if it is missing, but starts no run until something changes.
    Image(Summary),
    /// Starts nothing until a change, or until the timestamp.
    Idle(Summary, Option<Timestamp>),
}

impl ReconcileCase<'_> {
    /// Returns the next step for `target`, regardless of whether its image exists.
    pub(super) fn next(&self, target: &Target) -> Next {
        let wanted = match &target.wanted {
            Ok(wanted) => wanted,
            Err(missing) => return self.without_values(&target.own_hash, missing),
        };
        match self.next_action(&target.source, &wanted.config) {
            NextAction::Run(kind, trigger) => Next::Run(Box::new(wanted.clone()), kind, trigger),
            NextAction::Wait(summary, at) => Next::Idle(summary, at),
        }
    }

    /// Returns the next step while values of `spec.variablesFrom` are missing. `missing`: summary of the missing values. `own_hash`:
    /// digest of the configuration without these values. A resource whose configuration is applied stays ready and starts nothing. Only the
    /// image is built if the configuration is not applied, if `missing` is stalled, or if an annotation requests a run or a plan.
    fn without_values(&self, own_hash: &str, missing: &Summary) -> Next {
        let unchanged = self.baseline().is_some_and(|baseline| {
            baseline.own_hash == own_hash && self.is_current(baseline.config_hash)
        });
        if missing.convergence == Convergence::Stalled
            || !unchanged
            || facts::asked(self.tf, &self.history)
            || plan_request::requested_plan(self.tf, &self.history).is_some()
        {
            return Next::Image(missing.clone());
        }
        let idle = self.idle_summary();
        let (idle_message, cause) = (&idle.message, &missing.message);
        let summary = Summary {
            message: format!("{idle_message}; the next run waits: {cause}"),
            requeue_at: missing.requeue_at,
            ..idle
        };
        Next::Idle(summary, None)
    }
}
