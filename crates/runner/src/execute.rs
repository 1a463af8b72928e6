//! What a claimed run does, by its kind.

mod approval;
mod moving;
mod ownership;
mod planning;
mod results;

use std::time::{Duration, Instant};

use alustan_api::Engine;
use alustan_api::report::{
    ChangeSet, ENGINE_SWITCH, Failure, PlanAsks, RunResult, StepTimes, Undeclared, UnsavedPlace,
};
use alustan_api::run::{Outputs, OwnBackend, RunKind, RunPhase, RunProgress, RunRecord, StateLock};
use k8s_openapi::jiff::Timestamp;

use crate::backend;
use crate::command::Ending;
use crate::engine::NO_COLOR;
use crate::failure::{Step, user, world};
use crate::record::{RecordError, Update};
use crate::redact::Redactor;
use crate::retry::Patience;
use crate::secrets::Changes;
use crate::session::{Session, stopped};

use ownership::State;

/// How long `show` and `output` may take.
const LOOK: Duration = Duration::from_mins(5);

/// Why a run ended without a result.
pub(crate) enum Ended {
    /// It failed.
    Failed(Failure),
    /// The controller cancelled it before anything was changed.
    Cancelled,
    /// It is not ours any more.
    NotOurs(String),
}

impl Ended {
    /// The same without the secret values.
    pub(crate) fn redacted(self, redactor: &Redactor) -> Self {
        match self {
            Self::Failed(failure) => Self::Failed(redactor.failure(failure)),
            Self::Cancelled => Self::Cancelled,
            Self::NotOurs(why) => Self::NotOurs(redactor.text(&why)),
        }
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<RecordError> for Ended {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::NotOurs(why) => Self::NotOurs(why),
            other => Self::Failed(world("RecordUnavailable", other.to_string())),
        }
    }
}

/// What a run found out on its way.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) changes: Option<ChangeSet>,
    pub(crate) asks: Option<PlanAsks>,
    /// The lineage of the state, where it is ours.
    pub(crate) lineage: Option<String>,
    /// Whether it came to change things.
    pub(crate) began: bool,
    /// The record as it was claimed, where the engine then refused to begin.
    pub(crate) refused: Option<RunRecord>,
    /// Whether there is no state of ours.
    pub(crate) stateless: bool,
    /// The lock of somebody else.
    pub(crate) lock: Option<StateLock>,
    pub(crate) outputs: Option<Outputs>,
    pub(crate) state_address: Option<String>,
    /// Where the state was copied from.
    pub(crate) moved_from: Option<String>,
    /// Where the state is kept if it could not be saved.
    pub(crate) unsaved: Option<UnsavedPlace>,
    /// Whether no unsaved state of an earlier run is left.
    pub(crate) recovered: bool,
    /// The module's own backend, with the state.
    pub(crate) own_backend: Option<OwnBackend>,
    pub(crate) engine: Option<Engine>,
    /// Variables of the resource that the module does not declare.
    pub(crate) undeclared: Vec<Undeclared>,
    pub(crate) abandoned_lock: Option<String>,
    pub(crate) took: StepTimes,
}

/// What becomes of the real objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// They become what the configuration says.
    Apply,
    /// They are destroyed.
    Destroy,
}

impl Session {
    /// Does it; what was found on the way is in `findings` whatever comes of it.
    pub(crate) async fn execute(
        &self,
        kind: RunKind,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        findings.engine.clone_from(&self.told_engine);
        self.refuse_engine()?;
        self.init().await?;
        findings.state_address = self.state_address();
        findings.own_backend = self.own_backend();
        findings.moved_from = self.move_state().await?;
        self.push_leftover().await?;
        findings.recovered = true;
        let mut state = self.look_at_state().await?;
        let done = match kind {
            RunKind::Plan => {
                let goal = if self.inputs.approval.destroy {
                    Goal::Destroy
                } else {
                    Goal::Apply
                };
                self.plan_for_people(goal, &mut state, findings).await
            }
            RunKind::Drift => self.look(&mut state, findings).await,
            RunKind::Apply => self.apply(&mut state, findings).await,
            RunKind::Destroy => self.destroy(&mut state, findings).await,
        };
        let result = done.as_ref().ok().copied();
        let is_done = matches!(result, Some(RunResult::Done | RunResult::NoChanges));
        if findings.moved_from.is_some() && !findings.began && !is_done {
            // The old place is still the one that counts.
            return done;
        }
        findings.lineage = self.lineage_of_ours(&state, result).await;
        if findings.lineage.is_none() {
            self.look_at_what_was_made(&state, findings).await;
        }
        done
    }

    fn state_address(&self) -> Option<String> {
        match &self.inputs.backend.managed {
            Some(managed) => Some(self.secret_address(&managed.pointer)),
            None => backend::address(&self.directory, &self.inputs.backend.environment),
        }
    }

    fn secret_address(&self, pointer: &str) -> String {
        format!("secret://{}/{pointer}", self.record.identity().namespace)
    }

    /// Leaves alone what was applied with another engine, or a newer one.
    fn refuse_engine(&self) -> Result<(), Failure> {
        let engines = self
            .inputs
            .engine_before
            .as_ref()
            .zip(self.told_engine.as_ref());
        let Some(why) = engines.and_then(|(before, now)| before.refusal(now)) else {
            return Ok(());
        };
        let identity = self.record.identity();
        let (name, namespace) = (identity.resource(), &identity.namespace);
        Err(user(
            ENGINE_SWITCH,
            format!(
                "{why}. Nothing was changed. Take another image, or allow it: kubectl patch tf {name} \
                 -n {namespace} --type merge -p \
                 '{{\"spec\":{{\"engine\":{{\"allowSwitch\":true}}}}}}'"
            ),
        ))
    }

    /// Plans, and changes nothing.
    async fn look(&self, state: &mut State, findings: &mut Findings) -> Result<RunResult, Ended> {
        if self.plan(Goal::Apply, state).await?.is_none() {
            return Ok(RunResult::NoChanges);
        }
        findings.changes = self.changes().await;
        Ok(RunResult::Changes)
    }

    async fn apply(&self, state: &mut State, findings: &mut Findings) -> Result<RunResult, Ended> {
        if self.somebody_has_a_say(state) {
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
        state: &mut State,
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
                .script("destroy", script, Ending::Graceful, deadline, &[0])
                .await
                .map(drop),
            None if nothing => {
                crate::say!("there is no state: nothing to destroy");
                Ok(())
            }
            None => {
                let arguments = [
                    "apply",
                    "-destroy",
                    NO_COLOR,
                    "-auto-approve",
                    "-input=false",
                ]
                .map(Into::into)
                .into();
                self.engine(Step::Destroy, arguments, Ending::Graceful, deadline, &[0])
                    .await
                    .map(drop)
            }
        };
        self.rescue_state(destroyed, findings).await?;
        Ok(RunResult::Done)
    }

    /// Only of a managed state can we be sure.
    async fn has_no_state(&self) -> bool {
        match &self.server {
            Some(server) => server.store().get().await.is_none(),
            None => false,
        }
    }

    /// Keeps runs before this one from changing a managed state, should one still be alive. The first run follows none.
    async fn begin_to_write_state(&self) -> Result<(), Failure> {
        let is_first = self.record.identity().number == 1;
        let Some(server) = self.server.as_ref().filter(|_| !is_first) else {
            return Ok(());
        };
        server
            .store()
            .begin()
            .await
            .map_err(|error| world("StateUnavailable", error.to_string()))
    }

    /// From here on real objects may change: the last moment at which the run can be stopped.
    async fn begin_to_change(
        &self,
        state: &mut State,
        findings: &mut Findings,
    ) -> Result<(), Ended> {
        if self.commands.stop.asked_at().is_some() {
            return Err(stopped().into());
        }
        self.look_again(state).await?;
        self.begin_to_write_state().await?;
        let patience = Patience::until(self.plan_deadline().max(Instant::now() + LOOK));
        let (lineage, address) = (self.lineage_to_note(state), self.state_address());
        let lock = self.lock_to_reserve();
        let reserved = |progress: &RunProgress| {
            let lock = progress
                .lock
                .as_ref()
                .filter(|held| Some(*held) == lock.as_ref());
            lock.map(|lock| lock.id.clone())
        };
        let go = self.record.update_ours(patience, |progress, _| {
            if progress.phase >= RunPhase::Applying {
                return Ok(Update::Keep(Some(reserved(progress))));
            }
            if progress.cancel {
                return Ok(Update::Keep(None));
            }
            progress.phase = RunPhase::Applying;
            progress.began = true;
            progress.lineage = lineage.clone();
            progress.state_address.clone_from(&address);
            progress.own_backend.clone_from(&findings.own_backend);
            if progress.lock.is_none() {
                progress.lock.clone_from(&lock);
            }
            Ok(Update::Write(Some(reserved(progress)), Changes::new()))
        });
        let lock = go.await?.ok_or(Ended::Cancelled)?;
        findings.began = true;
        if let (Some(server), Some(lock)) = (&self.server, lock) {
            server.reserve_lock(lock);
        }
        Ok(())
    }

    /// The lock of a managed state for the engine that is started next. A script starts an engine at any
    /// time or not at all: its engines lock the state themselves.
    fn lock_to_reserve(&self) -> Option<StateLock> {
        let identity = self.record.identity();
        let lock = || StateLock {
            id: identity.pod_uid.clone(),
            operation: format!("run {}", identity.number),
            who: identity.pod.clone(),
            at: Timestamp::now(),
        };
        (self.server.is_some() && !self.scripts.any()).then(lock)
    }
}
