//! Next action of a resource whose module and inputs are known (rules 5 to 7, and 10).

use alustan_api::run::{Applied, PendingPlan, RunKind, Trigger};
use alustan_api::{DriftMode, Reason, State};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use crate::decide::cancellation::is_by_user;
use crate::decide::case::ReconcileCase;
use crate::decide::{approval, flapping, opt_in, retry};
use crate::drift_schedule::DueCheck;
use crate::model::config_hash::Config;
use crate::model::summary::{self, Summary, logs};
use crate::model::{admission, approval_policy, facts, plan_request};
use crate::objects::outputs;
use crate::observed::{Ownership, SourceSeen};

/// Number of consecutive reverted corrections after which no further correction starts.
const CORRECTIONS: u32 = 2;

/// Next action of a resource whose module and inputs are known.
pub(super) enum NextAction {
    Run(RunKind, Trigger),
    Wait(Summary, Option<Timestamp>),
}

impl ReconcileCase<'_> {
    /// Returns the pending plan for config hash `hash`.
    pub(super) fn pending(&self, hash: &str) -> Option<&PendingPlan> {
        approval::pending(self.tf, &self.history, hash, false)
    }

    /// Returns the pending plan for config hash `hash` if it is approved.
    pub(super) fn approved(&self, hash: &str) -> Option<&PendingPlan> {
        let pending = self.pending(hash);
        pending.filter(|plan| approval::is_approved(self.tf, &self.history, plan))
    }

    pub(super) fn next_action(&self, source: &SourceSeen, config: &Config) -> NextAction {
        if let Some(request) = plan_request::requested_plan(self.tf, &self.history) {
            return NextAction::Run(RunKind::Drift, Trigger::PlanRequested { request });
        }
        if self.is_plan_only() {
            return self.next_plan(source, config);
        }
        let hash = &config.hash;
        let kind = approval_policy::kind(self.tf, false);
        if facts::asked(self.tf, &self.history) {
            let reports_drift = self.tf.spec.drift_detection.mode != DriftMode::Correct;
            let checks_only =
                reports_drift && self.is_applied(hash) && !facts::requests_apply(self.tf);
            let kind = if checks_only { RunKind::Drift } else { kind };
            return NextAction::Run(kind, Trigger::Requested);
        }
        let applied = self.applied(hash);
        let ignores_drift = self.tf.spec.drift_detection.mode == DriftMode::Ignore;
        let is_forgiven = (applied.is_some() && ignores_drift)
            || opt_in::is_opted_in(self.tf, &self.history.failures);
        let failed = self.has_failed(hash) && !is_forgiven;
        if failed && let Some(wait) = self.after_failure(hash) {
            return wait;
        }
        let retry = || facts::again(&self.history.failures);
        if let Some(plan) = self.approved(hash) {
            let trigger = if failed {
                retry()
            } else {
                approval::trigger(plan)
            };
            return NextAction::Run(RunKind::Apply, trigger);
        }
        match (applied, failed, self.pending(hash)) {
            (None, _, Some(plan)) => NextAction::Wait(self.pending_summary(plan), None),
            (None, true, None) => NextAction::Run(kind, retry()),
            (None, false, None) => self.changed(kind, source, config),
            (Some(_), true, pending)
                if self.corrects()
                    && !pending.is_some_and(|plan| self.history.has_discarded(&plan.id)) =>
            {
                NextAction::Run(kind, retry())
            }
            (Some(_), true, _) => NextAction::Run(RunKind::Drift, retry()),
            (Some(_), false, Some(_)) if self.lacks_pin() => NextAction::Run(kind, Trigger::Pin),
            (Some(_), false, Some(_)) => self.drift_check_or_idle(),
            (Some(_), false, None) if self.corrects() => NextAction::Run(kind, Trigger::Drift),
            (Some(applied), false, None) => match self.missing_object_trigger(applied) {
                Some(missing) => NextAction::Run(kind, missing),
                None => self.drift_check_or_idle(),
            },
        }
    }

    /// Returns the wait after a failed run with config hash `hash`: backoff, or exhausted retry budget. `None` if a retry is due.
    pub(super) fn after_failure(&self, hash: &str) -> Option<NextAction> {
        let (failures, retry) = (&self.history.failures, &self.tf.spec.retry);
        let hint = || self.last_logs();
        match retry::verdict(failures, &self.failure_key(hash), retry, self.now) {
            retry::Verdict::Go => None,
            retry::Verdict::WaitUntil(next) => {
                let summary = summary::retry_summary(failures, retry, next, &hint());
                Some(NextAction::Wait(summary, Some(next)))
            }
            retry::Verdict::Stalled => Some(NextAction::Wait(
                summary::retries_exhausted(self.tf, failures, &hint()),
                None,
            )),
        }
    }

    /// Returns a message suffix with the command that shows the log of the last run. If a quota or limit range denied that run, the command
    /// shows the quotas and limit ranges of the namespace instead. Empty if a user cancelled the run, because its Job is deleted.
    pub(super) fn last_logs(&self) -> String {
        let Some(report) = self.history.last_report() else {
            return String::new();
        };
        let failure = report.failure.as_ref();
        if failure.is_some_and(is_by_user) {
            return String::new();
        }
        if failure.is_some_and(|failure| admission::is_refused(&failure.reason)) {
            let namespace = self.tf.namespace().unwrap_or_default();
            return format!("; see {}", admission::limits_of(&namespace));
        }
        format!("; see {}", logs(self.tf, &report.job))
    }

    /// Whether the next run corrects drift: drift was found, `driftDetection.mode` is `Correct`, and fewer than [`CORRECTIONS`] consecutive
    /// corrections were reverted.
    fn corrects(&self) -> bool {
        let mode = self.tf.spec.drift_detection.mode;
        self.history.drift.is_some() && mode == DriftMode::Correct && !self.is_not_converging()
    }

    /// Whether drift exists although at least [`CORRECTIONS`] consecutive corrections were made: each correction was reverted (rule 7).
    pub(super) fn is_not_converging(&self) -> bool {
        self.history.drift.is_some() && self.history.undone.count >= CORRECTIONS
    }

    /// Returns the trigger of an apply that restores the missing pin or publishes missing outputs. `None` if nothing is missing. Also
    /// `None` if `driftDetection.mode` is not `Correct`, because the apply would also correct drift.
    fn missing_object_trigger(&self, applied: &Applied) -> Option<Trigger> {
        if self.lacks_pin() {
            return Some(Trigger::Pin);
        }
        if self.tf.spec.drift_detection.mode != DriftMode::Correct {
            return None;
        }
        let published = applied.published.as_ref()?;
        let in_config_map =
            published.config_map.is_none() || self.outputs.config_map == Ownership::Ours;
        let exist = self.outputs.secret == Ownership::Ours && in_config_map;
        (!exist || *published != outputs::published_objects(self.tf)).then_some(Trigger::Outputs)
    }

    fn lacks_pin(&self) -> bool {
        self.seen.pin.is_none() && self.tf.spec.drift_detection.mode == DriftMode::Correct
    }

    /// Returns the run for a changed configuration. If only inputs changed and they keep changing, returns the wait of the rate limit (rule
    /// 14).
    pub(super) fn changed(
        &self,
        kind: RunKind,
        source: &SourceSeen,
        config: &Config,
    ) -> NextAction {
        let trigger = self.change(source, config);
        let runs = &self.history.input_runs;
        match (&trigger, flapping::due(runs, self.now)) {
            (Trigger::Input { of }, Some(due)) => {
                let reason = if flapping::is_flapping(runs) {
                    Reason::InputFlapping
                } else {
                    Reason::InputChanged
                };
                let message = format!(
                    "{} changed again; the next run starts at {}, because the rate of runs for an \
                     input that changes often is limited",
                    of.join(", "),
                    summary::format_time(due),
                );
                let summary = Summary::busy(State::Pending, reason, message);
                NextAction::Wait(summary, Some(due))
            }
            _ => NextAction::Run(kind, trigger),
        }
    }

    /// Returns the trigger for the change since the last apply or, with `spec.mode: PlanOnly`, since the last plan.
    fn change(&self, source: &SourceSeen, config: &Config) -> Trigger {
        let Some(baseline) = self.baseline() else {
            let attempted_run = self.current.run.as_ref().filter(|run| !run.destroys);
            let input = attempted_run.and_then(|run| config.input_since(&run.own_hash, &run.found));
            return input.unwrap_or(Trigger::Created);
        };
        if let Some(input) = config.input_since(baseline.own_hash, baseline.found) {
            return input;
        }
        match (baseline.revision, baseline.context) {
            (Some(from), Some(context)) if *context != source.context => Trigger::Commit {
                from: from.clone(),
                to: source.revision.clone(),
            },
            _ => Trigger::Spec,
        }
    }

    /// Returns the next drift check if it is due, otherwise the wait until it is due.
    pub(super) fn drift_check_or_idle(&self) -> NextAction {
        if self.tf.spec.drift_detection.mode == DriftMode::Ignore {
            return NextAction::Wait(self.idle_summary(), None);
        }
        if self.history.undone.unverified {
            return NextAction::Run(RunKind::Drift, Trigger::Drift);
        }
        match self.next_drift_check() {
            Some(check) if self.now < check.at => {
                NextAction::Wait(self.idle_summary(), Some(check.at))
            }
            _ => NextAction::Run(RunKind::Drift, Trigger::Interval),
        }
    }

    /// Returns the next drift check. `None` if a check is due because the resource was never checked.
    pub(super) fn next_drift_check(&self) -> Option<DueCheck> {
        DueCheck::of(self.tf, &self.history, self.seen.leading_since, self.now)
    }
}
