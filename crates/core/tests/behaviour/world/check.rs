//! Checks the invariants that hold for every decision.

use alustan_api::report::RunResult;
use alustan_api::run::{RunKind, RunSpec, Trigger};
use alustan_api::{DeletionPolicy, Mode, State, TerraformStatus};
use alustan_core::model::facts::{self, open_run};
use alustan_core::observed::RecordSeen;
use alustan_core::step::{Decision, Object, Step};
use kube_core::ResourceExt;

use super::{Config, Observation, World, condition};

impl World {
    /// Checks that each status is consistent, that its message says what to do or when the next attempt is, and that `Ready` is correct and
    /// stable.
    pub(crate) fn check(&self, decision: &Decision, observation: &Observation) {
        assert!(
            decision.start.is_none() || !self.is_kept(),
            "a run is started for what is deleted and to be kept"
        );
        self.check_mode(decision);
        let statuses = std::iter::once(&decision.status);
        for status in statuses.chain(decision.start.as_ref().map(|start| &start.status)) {
            self.check_status(status);
            if condition(status, "Ready") == "True" {
                self.may_be_ready(status, observation);
            } else if self.is_ready() {
                self.may_be_busy(status, decision, observation);
            }
        }
    }

    /// Whether the resource is deleted and its spec prevents destroy.
    fn is_kept(&self) -> bool {
        let spec = &self.tf().spec;
        let orphaned = spec.deletion_policy == DeletionPolicy::Orphan;
        let plan_only = spec.mode == Mode::PlanOnly;
        self.is_deleted() && (spec.deletion_protection || orphaned || spec.suspend || plan_only)
    }

    /// Checks that no Job of an apply or destroy, and no pin, is created with `spec.mode: PlanOnly`.
    fn check_mode(&self, decision: &Decision) {
        if self.tf().spec.mode == Mode::Apply {
            return;
        }
        let start = decision.start.iter().flat_map(|start| &start.steps);
        for step in decision.steps.iter().chain(start) {
            match step {
                Step::CreateJob(job) => {
                    let name = job.name_any();
                    let is_change = [RunKind::Plan, RunKind::Apply, RunKind::Destroy]
                        .iter()
                        .any(|kind| name.starts_with(&format!("web-{kind}-")));
                    assert!(!is_change, "{name} is created with mode PlanOnly");
                }
                Step::Ensure(object) => {
                    let is_pin = matches!(&**object, Object::Secret(secret) if secret.name_any() == "web-pin");
                    assert!(!is_pin, "a pin is written with mode PlanOnly");
                }
                _ => {}
            }
        }
    }

    fn check_status(&self, status: &TerraformStatus) {
        assert_eq!(status.observed_generation, self.tf().metadata.generation);
        assert!(!status.message.is_empty(), "no message: {status:?}");
        let text = &status.message;
        assert!(!text.contains("  "), "a gap in: {text}");
        for condition in &status.conditions {
            let mut letters = condition.reason.chars();
            assert!(
                letters
                    .next()
                    .is_some_and(|first| first.is_ascii_uppercase())
                    && letters.all(|letter| letter.is_ascii_alphanumeric()),
                "{condition:?} has no PascalCase reason"
            );
        }
        let is_true = |kind| condition(status, kind) == "True";
        assert!(
            !(is_true("Stalled") && is_true("Reconciling")),
            "{status:?}"
        );
        assert!(!(is_true("Stalled") && is_true("Ready")), "{status:?}");
        assert!(
            is_true("Ready") || is_true("Stalled") || is_true("Reconciling"),
            "{status:?}"
        );
        let retry = status.retry.as_ref();
        if status.state == State::Failed {
            let has_retry_time = retry.is_some_and(|retry| retry.next_at.is_some());
            let is_soon = status.message.contains("next attempt within a minute");
            assert!(has_retry_time != is_soon, "when? {status:?}");
        }
        if status.state == State::Stalled {
            let has_hint = ["kubectl ", "spec."]
                .iter()
                .any(|hint| status.message.contains(hint));
            assert!(has_hint, "nothing says what to do: {}", status.message);
        }
        if is_true("Ready") {
            assert!(retry.is_none(), "ready, and yet: {retry:?}");
        }
    }

    fn may_be_ready(&self, status: &TerraformStatus, observation: &Observation) {
        assert!(
            !self.is_deleted(),
            "a deleted resource is ready: {status:?}"
        );
        let wanted = self.wanted(observation);
        // As after an apply, the last plan counts while the wanted configuration is unknown.
        let is_planned = |planned: &Config| wanted.as_ref().is_none_or(|wanted| wanted == planned);
        let is_plan_only = self.tf().spec.mode == Mode::PlanOnly;
        if is_plan_only && self.ledger.planned.as_ref().is_some_and(is_planned) {
            return;
        }
        assert!(
            !self.real.partial,
            "a half-done change is ready: {status:?}"
        );
        if let Some(wanted) = wanted {
            assert_eq!(
                self.real.config.as_ref(),
                Some(&wanted),
                "ready, but not with {wanted:?}: {status:?}"
            );
        }
    }
    /// Checks that a Ready resource becomes not Ready only for one of these reasons: a failure, a requested run, a failed health check, a
    /// missing input, the deletion, or a change of the wanted configuration. Drift and a restart of the controller are no valid reasons.
    /// A plan of an earlier configuration is a valid reason, too, because the wanted configuration is planned after it.
    fn may_be_busy(
        &self,
        status: &TerraformStatus,
        decision: &Decision,
        observation: &Observation,
    ) {
        let seen = &observation.seen;
        let failed = matches!(status.state, State::Failed | State::Stalled)
            || decision.steps.iter().any(records_failures);
        let wanted = self.wanted(observation);
        let disturbed = seen
            .record
            .as_ref()
            .is_none_or(|record| self.is_disturbed(record, wanted.as_ref()));
        let mut tests = seen.stack.health_checks.iter();
        let sick = tests.any(|test| test.result.is_err());
        if failed || disturbed || sick || self.is_deleted() || seen.inputs.is_err() {
            return;
        }
        let planned = self.ledger.planned.as_ref();
        let is_plan_only = self.tf().spec.mode == Mode::PlanOnly;
        let last = planned
            .filter(|_| is_plan_only)
            .or(self.real.config.as_ref());
        let is_current = wanted.is_none() || wanted.as_ref() == last;
        let generation = self.status().observed_generation;
        assert!(
            !is_current || (wanted.is_none() && generation != self.tf().metadata.generation),
            "nothing happened, and it is no longer ready: {status:?}"
        );
    }

    /// Whether a run failed, a run was requested, or a run is active that was not started because of drift or missing outputs, or plans a
    /// configuration other than `wanted`. `wanted` is `None` if it is unknown.
    fn is_disturbed(&self, record: &RecordSeen, wanted: Option<&Config>) -> bool {
        let decided = self.ledger.decided(record.record.number);
        let is_drift_run = |run: &RunSpec| {
            let has_trigger = matches!(run.trigger, Trigger::Drift | Trigger::Outputs);
            let is_earlier = wanted.is_some() && decided != wanted;
            has_trigger || (run.kind == RunKind::Drift && !is_earlier)
        };
        let last = record.report.iter().chain(&record.history.reports);
        let mut applies = last.filter(|report| report.kind == RunKind::Apply);
        facts::asked(self.tf(), &record.history)
            || record.history.failures.at.is_some()
            || open_run(&record.record).is_some_and(|run| !is_drift_run(run))
            || applies
                .next()
                .is_some_and(|report| report.result == RunResult::Failed)
    }
}

fn records_failures(step: &Step) -> bool {
    match step {
        Step::SwapRecord(swap) => swap
            .history
            .as_ref()
            .is_some_and(|history| history.failures.at.is_some()),
        _ => false,
    }
}
