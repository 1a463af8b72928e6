//! Speculative plans, which no run applies: `spec.mode: PlanOnly`, and plans that annotation `alustan.io/plan-at` requests. Both are drift
//! checks.

use std::collections::BTreeMap;

use alustan_api::names::plan_key;
use alustan_api::run::{Applied, Planned, RunKind, Trigger};
use alustan_api::{Mode, Reason, State};
use serde_json::json;

use crate::decide::approval;
use crate::decide::case::ReconcileCase;
use crate::decide::next_action::NextAction;
use crate::decide::opt_in;
use crate::model::config_hash::Config;
use crate::model::facts;
use crate::model::summary::{Summary, change_counts, differences, drifted, patch};
use crate::observed::SourceSeen;

/// Configuration with which the wanted configuration is compared: that of the last apply; with `spec.mode: PlanOnly`, that of the last plan.
pub(super) struct Baseline<'a> {
    pub(super) config_hash: &'a str,
    pub(super) own_hash: &'a str,
    pub(super) found: &'a BTreeMap<String, String>,
    pub(super) revision: Option<&'a String>,
    pub(super) context: Option<&'a String>,
}

impl<'a> From<&'a Applied> for Baseline<'a> {
    fn from(applied: &'a Applied) -> Self {
        Self {
            config_hash: &applied.config_hash,
            own_hash: &applied.own_hash,
            found: &applied.found,
            revision: applied.revision.as_ref(),
            context: applied.context.as_ref(),
        }
    }
}

impl<'a> From<&'a Planned> for Baseline<'a> {
    fn from(planned: &'a Planned) -> Self {
        Self {
            config_hash: &planned.config_hash,
            own_hash: &planned.own_hash,
            found: &planned.found,
            revision: planned.revision.as_ref(),
            context: planned.context.as_ref(),
        }
    }
}

impl ReconcileCase<'_> {
    /// Whether `spec.mode` is `PlanOnly`.
    pub(super) fn is_plan_only(&self) -> bool {
        self.tf.spec.mode == Mode::PlanOnly
    }

    /// Whether a run of this kind and trigger creates a speculative plan.
    pub(super) fn is_speculative(&self, kind: RunKind, trigger: &Trigger) -> bool {
        let is_requested = matches!(trigger, Trigger::PlanRequested { .. });
        kind == RunKind::Drift && (self.is_plan_only() || is_requested)
    }

    /// Returns the configuration of the last apply or, with `spec.mode: PlanOnly`, of the last plan. An apply is the baseline until the first
    /// plan after it.
    pub(super) fn baseline(&self) -> Option<Baseline<'_>> {
        let applied = self.history.applied.as_ref();
        self.history
            .last_plan(self.tf.spec.mode)
            .map(Baseline::from)
            .or_else(|| applied.map(Baseline::from))
    }

    /// Whether configuration `hash` is the result of the last successful run, and no run with this hash has failed since: the configuration is
    /// applied; with `spec.mode: PlanOnly`, it is planned.
    pub(super) fn is_current(&self, hash: &str) -> bool {
        let Some(planned) = self.history.last_plan(self.tf.spec.mode) else {
            return self.is_applied(hash);
        };
        planned.config_hash == hash && !self.has_failed(hash)
    }

    /// Returns the next plan of a resource with `spec.mode: PlanOnly`.
    pub(super) fn next_plan(&self, source: &SourceSeen, config: &Config) -> NextAction {
        let hash = &config.hash;
        if facts::asked(self.tf, &self.history) {
            return NextAction::Run(RunKind::Drift, Trigger::Requested);
        }
        if self.has_failed(hash) && !opt_in::is_opted_in(self.tf, &self.history.failures) {
            let retry = NextAction::Run(RunKind::Drift, facts::again(&self.history.failures));
            return self.after_failure(hash).unwrap_or(retry);
        }
        if self.is_current(hash) {
            return self.drift_check_or_idle();
        }
        self.changed(RunKind::Drift, source, config)
    }

    /// Returns the summary of a planned resource with `spec.mode: PlanOnly` for which no run is due.
    pub(super) fn planned_summary(&self) -> Summary {
        let ignored = self.ignored_approval();
        if let Some(changes) = drifted(&self.history) {
            let message = format!(
                "the real objects differ from the configuration; mode PlanOnly does not correct \
                 drift: {}{}{ignored}",
                differences(changes),
                self.plan_hint(),
            );
            return Summary::ready(State::Drifted, Reason::Drifted, message);
        }
        let ignored_variables = self.ignored_variables();
        match self.history.last_plan(self.tf.spec.mode) {
            Some(planned) if planned.has_changes => {
                let report = self.history.report(planned.run);
                let changes = report.and_then(|report| report.changes.as_ref());
                let changes = changes.map_or_else(String::new, |changes| {
                    let is_listed = !changes.resources.is_empty();
                    let text = if is_listed {
                        differences(changes)
                    } else {
                        change_counts(changes)
                    };
                    format!(": {text}")
                });
                let message = format!(
                    "the plan has changes; mode PlanOnly does not apply them{changes}{}{ignored}\
                     {ignored_variables}",
                    self.plan_hint(),
                );
                Summary::ready(State::Planned, Reason::ChangesPlanned, message)
            }
            Some(_) => {
                let message = format!(
                    "the plan has no changes; mode is PlanOnly{ignored}{ignored_variables}"
                );
                Summary::ready(State::Success, Reason::NoChanges, message)
            }
            None => {
                let message = format!(
                    "Terraform applied successfully; mode is PlanOnly: the next changes are planned \
                     and not applied{ignored}{ignored_variables}"
                );
                Summary::ready(State::Success, Reason::Applied, message)
            }
        }
    }

    /// Returns a message suffix with the commands that print the plan and that apply it.
    fn plan_hint(&self) -> String {
        let print = approval::plan_text(self.tf, plan_key::SPECULATIVE_TEXT);
        let apply = patch(self.tf, &json!({ "mode": Mode::Apply }));
        format!("; to read the plan: {print}; to apply the changes: {apply}")
    }

    /// Returns a message suffix if `spec.approval.plan` names a plan for which no run was started.
    fn ignored_approval(&self) -> String {
        let used_plan = self.used_plan();
        match &self.tf.spec.approval.plan {
            Some(id) if Some(id) != used_plan => {
                format!("; spec.approval.plan {id:?} has no effect: mode PlanOnly applies no plan")
            }
            Some(_) | None => String::new(),
        }
    }
}
