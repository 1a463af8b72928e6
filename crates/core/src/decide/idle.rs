//! Summary of an applied or planned resource for which no run is due.

use alustan_api::{Reason, State};

use crate::decide::case::ReconcileCase;
use crate::model::summary::{self, Summary, differences, drifted};
use crate::model::{status_outputs, terraform_registries};

impl ReconcileCase<'_> {
    /// Returns the summary of an applied resource, or of a planned resource with `spec.mode: PlanOnly`, for which no run is due.
    pub(super) fn idle_summary(&self) -> Summary {
        let (unhealthy, applied) = (self.unhealthy(), self.history.applied.as_ref());
        if self.is_plan_only() {
            return unhealthy.unwrap_or_else(|| self.planned_summary());
        }
        let pending = applied.and_then(|applied| self.pending(&applied.config_hash));
        let is_discarded = pending.is_some_and(|plan| self.history.has_discarded(&plan.id));
        if let Some(plan) = pending.filter(|_| !is_discarded) {
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
        if let Some(plan) = pending {
            let message = self.discard_message(plan);
            return Summary::ready(State::Drifted, Reason::PlanDiscarded, message);
        }
        let Some(changes) = drifted(&self.history) else {
            let copied_from = self.moved_from();
            let ignored_variables = self.ignored_variables();
            let omitted_outputs = self.omitted_outputs();
            let unused = self.unused_registries();
            let message = format!(
                "Terraform applied successfully{copied_from}{ignored_variables}{omitted_outputs}{unused}"
            );
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
        let last = self.history.last_report();
        let from = last.and_then(|report| report.moved_from.as_ref());
        from.map_or_else(String::new, |from| {
            format!("; the state was copied from {from}; the original is kept")
        })
    }

    /// Returns a message suffix with the variables of the spec that the module does not declare.
    pub(super) fn ignored_variables(&self) -> String {
        let last = self.history.last_report();
        let undeclared = last.map_or(&[][..], |report| &report.undeclared);
        if undeclared.is_empty() {
            return String::new();
        }
        let names: Vec<_> = undeclared.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        format!("; ignored entries of spec.variables that the module does not declare: {names}")
    }

    /// Returns a message suffix with the outputs of `spec.outputs.status` that are not in the status.
    fn omitted_outputs(&self) -> String {
        let applied = self.history.applied.as_ref();
        let selected = applied
            .map(|applied| status_outputs::still_selected(self.tf, &applied.status_outputs))
            .unwrap_or_default();
        if selected.omitted.is_empty() {
            return String::new();
        }
        let outputs: Vec<_> = selected
            .omitted
            .iter()
            .map(|output| format!("{} ({})", output.name, output.reason))
            .collect();
        format!(
            "; outputs in spec.outputs.status that are not copied to the status: {}",
            outputs.join(", ")
        )
    }

    /// Returns a message suffix with the registries of the spec that the module does not use.
    fn unused_registries(&self) -> String {
        let unused = terraform_registries::unused(self.tf, self.history.reports.first());
        if unused.is_empty() {
            return String::new();
        }
        format!(
            "; the module uses no module and no provider of {}: correct the host, or remove the entry",
            unused.join(", ")
        )
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
}
