//! Next action of a resource whose module and inputs are known (rules 5 to 7, and 10).

use alustan_api::run::{Applied, PendingPlan, RunKind, Trigger};
use alustan_api::{DriftMode, Reason, State};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use crate::decide::case::ReconcileCase;
use crate::decide::{approval, flapping, opt_in, publish_outputs, retry};
use crate::digest;
use crate::model::config_hash::Config;
use crate::model::summary::{self, Summary, differences, drifted};
use crate::model::{approval_policy, facts};
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
    fn pending(&self, hash: &str) -> Option<&PendingPlan> {
        approval::pending(self.tf, &self.history, hash, false)
    }

    /// Returns the pending plan for config hash `hash` if it is approved.
    pub(super) fn approved(&self, hash: &str) -> Option<&PendingPlan> {
        let pending = self.pending(hash);
        pending.filter(|plan| approval::is_approved(self.tf, plan))
    }

    pub(super) fn next_action(&self, source: &SourceSeen, config: &Config) -> NextAction {
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
            (None, _, Some(plan)) => {
                let message = self.approval_message(plan);
                NextAction::Wait(
                    Summary::busy(State::AwaitingApproval, Reason::AwaitingApproval, message),
                    None,
                )
            }
            (None, true, None) => NextAction::Run(kind, retry()),
            (None, false, None) => self.changed(kind, source, config),
            (Some(_), true, _) if self.corrects() => NextAction::Run(kind, retry()),
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
    fn after_failure(&self, hash: &str) -> Option<NextAction> {
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
        let published = applied.handed_on.as_ref()?;
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
    fn changed(&self, kind: RunKind, source: &SourceSeen, config: &Config) -> NextAction {
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

    /// Returns the trigger for the change since the last apply.
    fn change(&self, source: &SourceSeen, config: &Config) -> Trigger {
        let Some(applied) = &self.history.applied else {
            let attempted_run = self.current.run.as_ref().filter(|run| !run.destroys);
            let input = attempted_run.and_then(|run| config.input_since(&run.own_hash, &run.found));
            return input.unwrap_or(Trigger::Created);
        };
        if let Some(input) = config.input_since(&applied.own_hash, &applied.found) {
            return input;
        }
        match (&applied.revision, &applied.context) {
            (Some(from), Some(context)) if *context != source.context => Trigger::Commit {
                from: from.clone(),
                to: source.revision.clone(),
            },
            _ => Trigger::Spec,
        }
    }

    /// Returns the next drift check if it is due, otherwise the wait until it is due.
    fn drift_check_or_idle(&self) -> NextAction {
        let drift = &self.tf.spec.drift_detection;
        if drift.mode == DriftMode::Ignore {
            return NextAction::Wait(self.idle_summary(), None);
        }
        if self.history.undone.unverified {
            return NextAction::Run(RunKind::Drift, Trigger::Drift);
        }
        // A timestamp in the future comes from clock skew. It is ignored, so a drift check is due.
        let checked_at = self.history.checked_at.filter(|at| *at <= self.now);
        let due = checked_at.map(|checked_at| {
            next_drift_check(
                checked_at,
                drift.interval.into(),
                &self.tf.uid().unwrap_or_default(),
            )
        });
        match due {
            Some(due) if self.now < due => NextAction::Wait(self.idle_summary(), Some(due)),
            _ => NextAction::Run(RunKind::Drift, Trigger::Interval),
        }
    }

    /// Returns the summary of an applied resource for which no run is due.
    pub(super) fn idle_summary(&self) -> Summary {
        let (unhealthy, applied) = (self.unhealthy(), self.history.applied.as_ref());
        if let Some(plan) = applied.and_then(|applied| self.pending(&applied.config_hash)) {
            let (state, reason) = (State::AwaitingApproval, Reason::AwaitingApproval);
            let message = self.approval_message(plan);
            return if unhealthy.is_none() {
                Summary::ready(state, reason, message)
            } else {
                Summary::busy(state, reason, message)
            };
        }
        if let Some(unhealthy) = unhealthy {
            return unhealthy;
        }
        let Some(changes) = drifted(&self.history) else {
            let copied_from = self.moved_from();
            let ignored_variables = self.ignored_variables();
            let message = format!("Terraform applied successfully{copied_from}{ignored_variables}");
            return Summary::ready(State::Success, Reason::Applied, message);
        };
        let differences = differences(changes);
        if self.is_not_converging() {
            return Summary::ready(
                State::Drifted,
                Reason::NotConverging,
                self.not_converging_message(&differences),
            );
        }
        let message = format!("the real objects differ from the configuration: {differences}");
        Summary::ready(State::Drifted, Reason::Drifted, message)
    }

    /// Returns a message suffix with the location from which the state was copied.
    fn moved_from(&self) -> String {
        let last = self.history.reports.first();
        let from = last.and_then(|report| report.moved_from.as_ref());
        from.map_or_else(String::new, |from| {
            format!("; the state was copied from {from}; the original is kept")
        })
    }

    /// Returns a message suffix with the variables of the spec that the module does not declare.
    fn ignored_variables(&self) -> String {
        let last = self.history.reports.first();
        let undeclared = last.map_or(&[][..], |report| &report.undeclared);
        if undeclared.is_empty() {
            return String::new();
        }
        let names: Vec<_> = undeclared.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        format!("; ignored entries of spec.variables that the module does not declare: {names}")
    }

    fn not_converging_message(&self, differences: &str) -> String {
        format!(
            "{} consecutive corrections were reverted: {differences}; either the module never converges, \
             for example because of timestamp(), or another client reverts the changes; no \
             correction starts until the configuration changes; to retry: {}",
            self.history.undone.count,
            summary::retry_command(self.tf),
        )
    }

    /// Whether configuration `hash` is applied ([`Self::is_applied`]), and a run of this kind and trigger only checks for drift or restores
    /// the configuration. The run then does not change condition `Ready`.
    pub(super) fn keeps_ready(&self, kind: RunKind, trigger: &Trigger, hash: &str) -> bool {
        let keeps_configuration = matches!(
            trigger,
            Trigger::Drift | Trigger::Outputs | Trigger::Pin | Trigger::Approval { .. }
        );
        (kind == RunKind::Drift || keeps_configuration) && self.is_applied(hash)
    }

    /// Whether the last apply had config hash `hash`, and no run with this hash has failed since.
    pub(super) fn is_applied(&self, hash: &str) -> bool {
        self.applied(hash).is_some() && !self.has_failed(hash)
    }

    /// Returns the last apply if it had config hash `hash`. `None` after a later apply that did not complete, because its changes are
    /// unknown.
    fn applied(&self, hash: &str) -> Option<&Applied> {
        self.history
            .applied
            .as_ref()
            .filter(|applied| applied.config_hash == hash && !self.history.unfinished)
    }

    pub(super) fn has_failed(&self, hash: &str) -> bool {
        let failures = &self.history.failures;
        failures.of == self.failure_key(hash) && failures.at.is_some()
    }

    /// Returns the key under which failures with config hash `hash` are counted. If the last failure was a failed publication of outputs
    /// with this hash, returns the key for publications; otherwise, returns the key for runs.
    fn failure_key(&self, hash: &str) -> String {
        let run_key = approval::failure_key(hash, &approval_policy::policy_digest(self.tf, false));
        let outputs_key = publish_outputs::failure_key(&run_key, self.tf);
        if self.history.failures.of == outputs_key {
            outputs_key
        } else {
            run_key
        }
    }
}

/// Returns the time of the next drift check. The `uid` determines a fixed offset within the interval, which spreads the drift checks of
/// many resources. The time is at least half an interval after `checked`, the time of the last comparison with the real objects.
fn next_drift_check(checked: Timestamp, interval: std::time::Duration, uid: &str) -> Timestamp {
    let interval = i64::try_from(interval.as_millis())
        .unwrap_or(i64::MAX)
        .max(1_000);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the product is less than `interval`, which is an i64"
    )]
    #[expect(clippy::cast_precision_loss, reason = "jitter needs no precision")]
    let offset = (digest::fraction(uid) * interval as f64) as i64;
    let earliest = checked.as_millisecond() + interval / 2 - offset;
    let next = (earliest.div_euclid(interval) + 1) * interval + offset;
    Timestamp::from_millisecond(next).unwrap_or(checked + SignedDuration::from_hours(1))
}
