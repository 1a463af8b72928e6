//! Executes a claimed run according to its kind.

mod address;
mod approval;
mod begin_changes;
mod goal;
mod inventory;
pub(crate) mod outcome;
mod ownership;
mod planning;
mod results;
mod state_migration;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::report::{Failure, RunResult};
use alustan_api::run::RunKind;

use crate::engine::NO_COLOR;
use crate::engine::command::StopPolicy;
use crate::failure::{RunStep, user};
use crate::plan;
use crate::run::session::Session;

use goal::Goal;
use outcome::{Ended, Findings};
use ownership::StateOwnership;

impl Session {
    /// Executes the run. Adds results to `findings`, also if the run fails.
    pub(crate) async fn execute(
        &self,
        kind: RunKind,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        findings.engine.clone_from(&self.prepared_engine);
        self.refuse_engine()?;
        self.init().await?;
        findings.state_address = self.state_address();
        findings.own_backend = self.own_backend();
        findings.moved_from = self.migrate_state().await?;
        self.push_unsaved_state().await?;
        findings.recovered = true;
        let mut state = self.check_state_owner().await?;
        let done = match kind {
            RunKind::Plan => {
                let goal = if self.inputs.approval.destroy {
                    Goal::Destroy
                } else {
                    Goal::Apply
                };
                self.plan_for_approval(goal, &mut state, findings).await
            }
            RunKind::Drift => self.check_drift(&mut state, findings).await,
            RunKind::Apply => self.apply(&mut state, findings).await,
            RunKind::Destroy => self.destroy(&mut state, findings).await,
        };
        let result = done.as_ref().ok().copied();
        let is_done = matches!(result, Some(RunResult::Done | RunResult::NoChanges));
        if findings.moved_from.is_some() && !findings.began && !is_done {
            // The run copied the state to a new address, but changed no objects and did not succeed: the run failed, was cancelled, or found
            // changes that it did not apply. Reports no lineage, so that the run record keeps the previous address. The next run then
            // compares the states at both addresses, and copies the state again if the state at the previous address is newer.
            return done;
        }
        let pulled = self.find_inventory(kind, &state, result, findings).await;
        findings.lineage = self.lineage_of_ours(&state, result).await;
        if findings.lineage.is_none() {
            self.record_new_lineage(&state, pulled, findings).await;
        }
        done
    }

    /// Fails if the last apply used a different engine, or a newer version of the engine, than the image contains: the engine may be unable
    /// to read the state. Does not fail if `spec.engine.allowSwitch` is set.
    fn refuse_engine(&self) -> Result<(), Failure> {
        let engines = self
            .inputs
            .engine_before
            .as_ref()
            .zip(self.prepared_engine.as_ref());
        let Some(why) = engines.and_then(|(before, now)| before.refusal(now)) else {
            return Ok(());
        };
        let identity = self.record.identity();
        let (name, namespace) = (identity.resource(), &identity.namespace);
        Err(user(
            Reason::EngineChangeNotAllowed,
            format!(
                "{why}. Nothing was changed. Use another image, or allow the switch: kubectl patch \
                 tf {name} -n {namespace} --type merge -p \
                 '{{\"spec\":{{\"engine\":{{\"allowSwitch\":true}}}}}}'"
            ),
        ))
    }

    /// Executes a drift check. Returns whether the plan has changes. Publishes the text of a speculative plan.
    async fn check_drift(
        &self,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        if self.plan(Goal::Apply, state).await?.is_none() {
            return Ok(RunResult::NoChanges);
        }
        findings.changes = self.changes().await;
        if self.is_speculative() && self.paths.plan_file().is_file() {
            let number = self.record.identity().number;
            self.publish_plan(&plan::text::SPECULATIVE, &number.to_string())
                .await;
        }
        Ok(RunResult::Changes)
    }

    async fn apply(
        &self,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        if self.needs_approval_check(state) {
            return self.apply_approved(Goal::Apply, state, findings).await;
        }
        let planned = self.makes_plans();
        if planned {
            let Some(plan) = self.plan(Goal::Apply, state).await? else {
                findings.outputs = Some(self.outputs().await?);
                return Ok(RunResult::NoChanges);
            };
            if self.inputs.approval.emptying && plan.may_remove {
                return self.apply_judged(Goal::Apply, state, findings).await;
            }
        }
        self.begin_to_change(state, findings).await?;
        let applied = if planned {
            let (applied, changes, ()) =
                tokio::join!(self.apply_plan(), self.changes(), self.keep_plan());
            findings.changes = changes;
            applied
        } else {
            self.apply_plan().await
        };
        self.rescue_state(applied, findings).await?;
        findings.outputs = Some(self.outputs().await?);
        Ok(RunResult::Done)
    }

    async fn destroy(
        &self,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        let nothing = self.scripts.destroy.is_none() && self.has_no_state().await;
        if self.inputs.approval.manual && !nothing {
            return self.apply_approved(Goal::Destroy, state, findings).await;
        }
        self.begin_to_change(state, findings).await?;
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.destroy);
        let destroyed = match &self.scripts.destroy {
            Some(script) => self
                .script("destroy", script, StopPolicy::Graceful, deadline, &[0])
                .await
                .map(drop),
            None if nothing => {
                crate::log!("no state exists; nothing to destroy");
                Ok(())
            }
            None => {
                let words = [
                    "apply",
                    "-destroy",
                    NO_COLOR,
                    "-auto-approve",
                    "-input=false",
                ];
                let mut arguments: Vec<OsString> = words.map(Into::into).into();
                arguments.extend(self.var_file_arguments());
                arguments.extend(self.change_arguments());
                self.engine(
                    RunStep::Destroy,
                    arguments,
                    StopPolicy::Graceful,
                    deadline,
                    &[0],
                )
                .await
                .map(drop)
            }
        };
        self.rescue_state(destroyed, findings).await?;
        Ok(RunResult::Done)
    }

    /// Whether the backend is managed and has no state.
    async fn has_no_state(&self) -> bool {
        match &self.server {
            Some(server) => server.store().get().await.is_none(),
            None => false,
        }
    }
}
