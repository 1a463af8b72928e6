//! Plans: made, shown, kept and applied.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::report::{ChangeSet, Failure};

use super::ownership::State;
use super::{Ended, Goal, LOOK};
use crate::changes::{Summary, summary};
use crate::command::Ending;
use crate::failure::{Step, module, place_in_json, user};
use crate::plan_file;
use crate::session::Session;

impl Session {
    /// Whether what is applied is a plan that was made before.
    pub(super) fn makes_plans(&self) -> bool {
        self.scripts.apply.is_none() || self.scripts.plan.is_some()
    }

    /// Whether the plan has changes; it is one for the state of this resource.
    pub(super) async fn plan(&self, goal: Goal, state: &mut State) -> Result<bool, Ended> {
        let has_changes = self.make_plan(goal).await?;
        if self.layout.plan_file().is_file() {
            self.look_again(state).await?;
        }
        Ok(has_changes)
    }

    async fn make_plan(&self, goal: Goal) -> Result<bool, Failure> {
        let (deadline, good) = (self.plan_deadline(), [0, 2]);
        if let (Goal::Apply, Some(script)) = (goal, &self.scripts.plan) {
            let code = self
                .script("plan", script, Ending::Quick, deadline, &good)
                .await?;
            return Ok(code == 2);
        }
        let words = ["plan", "-input=false", "-lock=false", "-detailed-exitcode"];
        let mut arguments: Vec<OsString> = words.map(Into::into).into();
        if goal == Goal::Destroy {
            arguments.push("-destroy".into());
        }
        arguments.push(option("-out=", &self.layout.plan_file()));
        let code = self
            .engine(Step::Plan, arguments, Ending::Quick, deadline, &good)
            .await?;
        Ok(code == 2)
    }

    /// Applies the plan.
    pub(super) async fn apply_plan(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.apply);
        if let Some(script) = &self.scripts.apply {
            self.script("apply", script, Ending::Graceful, deadline, &[0])
                .await?;
            return Ok(());
        }
        self.apply_plan_file(Step::Apply, deadline).await
    }

    /// Applies the plan, which is one to destroy everything.
    pub(super) async fn apply_destroy_plan(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.destroy);
        self.apply_plan_file(Step::Destroy, deadline).await
    }

    async fn apply_plan_file(&self, step: Step, deadline: Instant) -> Result<(), Failure> {
        self.check_plan_file()?;
        let plan = self.layout.plan_file();
        let arguments = vec!["apply".into(), "-input=false".into(), plan.into()];
        self.engine(step, arguments, Ending::Graceful, deadline, &[0])
            .await?;
        Ok(())
    }

    /// Fails where a script made no plan.
    pub(super) fn check_plan_file(&self) -> Result<(), Failure> {
        if self.layout.plan_file().is_file() {
            return Ok(());
        }
        let text = "scripts.plan found changes but wrote no plan to ALUSTAN_PLAN_FILE";
        Err(user("NoPlanFile", text))
    }

    /// The change set of the plan; a run does not fail for want of it.
    pub(super) async fn changes(&self) -> Option<ChangeSet> {
        if !self.layout.plan_file().is_file() {
            return None;
        }
        match self.summary().await {
            Ok(summary) => Some(summary.set),
            Err(failure) => {
                crate::say!("the plan could not be summed up: {}", failure.message);
                None
            }
        }
    }

    /// What the plan says.
    pub(super) async fn summary(&self) -> Result<Summary, Failure> {
        let shown = self.show("-json").await?;
        summary(&shown, &self.key).map_err(|error| {
            let place = place_in_json(&error);
            module("PlanUnreadable", format!("read the plan: {place}"))
        })
    }

    /// What the engine shows of the plan.
    pub(super) async fn show(&self, how: &str) -> Result<Vec<u8>, Failure> {
        let arguments = vec!["show".into(), how.into(), self.layout.plan_file().into()];
        self.engine_output(Step::Show, arguments, Instant::now() + LOOK)
            .await
    }

    /// Keeps the plan on the cache volume; what wants it later can do without.
    pub(super) async fn keep_plan(&self) {
        let (cache, file) = (self.layout.cache.clone(), self.layout.plan_file());
        let (number, key) = (self.record.identity().number, self.key.clone());
        let kept =
            tokio::task::spawn_blocking(move || plan_file::keep(&cache, number, &file, &key)).await;
        if let Err(error) = kept.map_err(std::io::Error::other).and_then(|it| it) {
            crate::say!("the plan is not kept on the cache volume: {error}");
        }
    }
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}
