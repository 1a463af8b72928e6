//! Creates, shows, keeps and applies plans.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::change_set::ChangeSet;
use alustan_api::report::Failure;

use super::goal::Goal;
use super::outcome::Ended;
use super::ownership::StateOwnership;
use crate::cache_volume::in_time;
use crate::engine::NO_COLOR;
use crate::engine::command::StopPolicy;
use crate::failure::{RunStep, module, place_in_json, tidy, user};
use crate::plan;
use crate::plan::changes::{PlanSummary, summary};
use crate::run::session::{READ_TIMEOUT, Session};

/// Result of planning, if the plan has changes.
pub(super) struct PlanningResult {
    /// Whether the plan may delete or forget objects.
    pub(super) may_remove: bool,
}

impl Session {
    /// Creates a plan, and checks the owner of the state. Returns `None` if the plan has no changes.
    pub(super) async fn plan(
        &self,
        goal: Goal,
        state: &mut StateOwnership,
    ) -> Result<Option<PlanningResult>, Ended> {
        let planned = self.make_plan(goal).await?;
        if self.paths.plan_file().is_file() {
            self.recheck_state_owner(state).await?;
        }
        Ok(planned)
    }

    async fn make_plan(&self, goal: Goal) -> Result<Option<PlanningResult>, Failure> {
        let (deadline, good) = (self.plan_deadline(), [0, 2]);
        if let (Goal::Apply, Some(script)) = (goal, &self.scripts.plan) {
            let made = self
                .script("plan", script, StopPolicy::Quick, deadline, &good)
                .await?;
            let planned = PlanningResult { may_remove: true };
            return Ok((made.code == Some(2)).then_some(planned));
        }
        let words = [
            "plan",
            NO_COLOR,
            "-input=false",
            "-lock=false",
            "-detailed-exitcode",
        ];
        let mut arguments: Vec<OsString> = words.map(Into::into).into();
        match goal {
            Goal::Apply => arguments.extend(self.plan_arguments()),
            Goal::Destroy => {
                arguments.push("-destroy".into());
                arguments.extend(self.destroy_plan_arguments());
            }
        }
        arguments.extend(self.var_file_arguments());
        arguments.push(option("-out=", &self.paths.plan_file()));
        let made = self
            .engine(RunStep::Plan, arguments, StopPolicy::Quick, deadline, &good)
            .await?;
        let planned = PlanningResult {
            may_remove: may_remove(&String::from_utf8_lossy(&made.stdout)),
        };
        Ok((made.code == Some(2)).then_some(planned))
    }

    /// Applies the plan, or executes `scripts.apply`.
    pub(super) async fn apply_plan(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.apply);
        if let Some(script) = &self.scripts.apply {
            self.script("apply", script, StopPolicy::Graceful, deadline, &[0])
                .await?;
            return Ok(());
        }
        self.apply_plan_file(RunStep::Apply, deadline).await
    }

    /// Applies a destroy plan.
    pub(super) async fn apply_destroy_plan(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.destroy);
        self.apply_plan_file(RunStep::Destroy, deadline).await
    }

    async fn apply_plan_file(&self, step: RunStep, deadline: Instant) -> Result<(), Failure> {
        self.check_plan_file()?;
        let words = ["apply", NO_COLOR, "-input=false"];
        let mut arguments: Vec<OsString> = words.map(Into::into).into();
        arguments.extend(self.change_arguments());
        arguments.push(self.paths.plan_file().into());
        self.engine(step, arguments, StopPolicy::Graceful, deadline, &[0])
            .await?;
        Ok(())
    }

    /// Fails if `scripts.plan` wrote no plan.
    pub(super) fn check_plan_file(&self) -> Result<(), Failure> {
        if self.paths.plan_file().is_file() {
            return Ok(());
        }
        let text = "scripts.plan found changes but wrote no plan to ALUSTAN_PLAN_FILE";
        Err(user(Reason::NoPlanFile, text))
    }

    /// Returns the change set of the plan. Returns `None` if there is no plan, or if the plan cannot be read; logs the error.
    pub(super) async fn changes(&self) -> Option<ChangeSet> {
        if !self.paths.plan_file().is_file() {
            return None;
        }
        match self.summary().await {
            Ok(summary) => Some(summary.set),
            Err(failure) => {
                crate::log!("failed to summarize the plan: {}", failure.message);
                None
            }
        }
    }

    /// Parses the plan with the engine, and returns its summary.
    pub(super) async fn summary(&self) -> Result<PlanSummary, Failure> {
        let shown = self.show("-json").await?;
        let summary = summary(&shown, &self.key, &self.commands.redactor);
        if let Ok(summary) = &summary {
            self.add_secrets(&summary.sensitive);
        }
        summary.map_err(|error| {
            let place = place_in_json(&error);
            module(
                Reason::PlanUnreadable,
                format!("failed to read the plan: {place}"),
            )
        })
    }

    /// Returns the output of the engine command `show` for the plan. `how`: option of the command, for example `-json`.
    pub(super) async fn show(&self, how: &str) -> Result<Vec<u8>, Failure> {
        let arguments = vec!["show".into(), how.into(), self.paths.plan_file().into()];
        self.engine_output(RunStep::Show, arguments, Instant::now() + READ_TIMEOUT)
            .await
    }

    /// Stores the plan on the cache volume. Errors are only logged: later steps of this run do not read the stored plan.
    pub(super) async fn keep_plan(&self) {
        let (cache, file) = (self.paths.cache.clone(), self.paths.plan_file());
        let (number, key) = (self.record.identity().number, self.key.clone());
        in_time(move || {
            plan::file::keep(&cache, number, &file, &key).map_err(|error| {
                std::io::Error::other(format!("failed to store the plan: {error}"))
            })
        })
        .await;
    }
}

/// Whether a plan may delete or forget objects, according to the output of the engine. Also true if the output is not recognised: the output
/// has neither a line `Plan: …` nor the text for a plan that changes only outputs.
fn may_remove(printed: &str) -> bool {
    let text = tidy(printed);
    let deletes_none = match text.lines().rev().find(|line| line.starts_with("Plan: ")) {
        Some(summary) => summary.contains(" 0 to destroy"),
        None => text.contains("You can apply this plan to save these new output values"),
    };
    let forgets = text.contains("to forget") || text.contains("no longer be managed");
    !deletes_none || forgets
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::add("Plan: 2 to add, 1 to change, 0 to destroy.\n", false)]
    #[case::import(
        "Plan: 1 to import, 0 to add, 0 to change, 0 to destroy.\n\nChanges to Outputs:\n",
        false
    )]
    #[case::colours(
        "\u{1b}[1mPlan:\u{1b}[0m 1 to add, 0 to change, 0 to destroy.\n",
        false
    )]
    #[case::destroy("Plan: 0 to add, 0 to change, 10 to destroy.\n", true)]
    #[case::opentofu_forget("Plan: 0 to add, 0 to change, 0 to destroy, 1 to forget.\n", true)]
    #[case::forget(
        "# a.b will no longer be managed by Terraform\nPlan: 0 to add, 0 to change, 0 to destroy.\n",
        true
    )]
    #[case::outputs(
        "Changes to Outputs:\n\nYou can apply this plan to save these new output values to the Terraform\nstate, without \
         changing any real infrastructure.\n",
        false
    )]
    #[case::unknown("Changes to Outputs:\n", true)]
    #[case::nothing("", true)]
    fn removals_are_detected_from_the_plan_summary(#[case] printed: &str, #[case] expected: bool) {
        assert_eq!(may_remove(printed), expected);
    }
}
