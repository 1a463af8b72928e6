//! What a claimed run does, by its kind.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::report::{ChangeSet, Failure, RunResult};
use alustan_api::run::{Outputs, RunKind, RunPhase};

use crate::backend;
use crate::changes::summary;
use crate::command::Ending;
use crate::failure::{Step, module, place_in_json, user, world};
use crate::outputs;
use crate::plan_file;
use crate::record::{RecordError, Update, to_json};
use crate::redact::Redactor;
use crate::retry::Patience;
use crate::secrets::Changes;
use crate::session::{Session, stopped};

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
    pub(crate) outputs: Option<Outputs>,
    pub(crate) state_address: Option<String>,
    pub(crate) abandoned_lock: Option<String>,
}

impl Session {
    /// Does it; what was found on the way is in `findings` whatever comes of it.
    pub(crate) async fn execute(
        &self,
        kind: RunKind,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        self.init().await?;
        findings.state_address = self.state_address();
        self.push_leftover().await?;
        match kind {
            RunKind::Plan | RunKind::Drift => self.look(findings).await,
            RunKind::Apply => self.apply(findings).await,
            RunKind::Destroy => self.destroy().await,
        }
    }

    fn state_address(&self) -> Option<String> {
        match &self.inputs.backend.managed {
            Some(managed) => {
                let namespace = &self.record.identity().namespace;
                Some(format!("secret://{namespace}/{}", managed.pointer))
            }
            None => backend::address(&self.directory),
        }
    }

    /// Plans, and changes nothing.
    async fn look(&self, findings: &mut Findings) -> Result<RunResult, Ended> {
        let changed = self.plan().await?;
        if changed {
            findings.changes = self.changes().await;
            self.keep_plan().await;
        }
        Ok(if changed {
            RunResult::Changes
        } else {
            RunResult::NoChanges
        })
    }

    async fn apply(&self, findings: &mut Findings) -> Result<RunResult, Ended> {
        let planned = self.scripts.apply.is_none() || self.scripts.plan.is_some();
        if planned && !self.plan().await? {
            findings.outputs = Some(self.outputs().await?);
            return Ok(RunResult::NoChanges);
        }
        self.begin_to_change().await?;
        let applied = if planned {
            let (applied, changes, ()) =
                tokio::join!(self.apply_plan(), self.changes(), self.keep_plan());
            findings.changes = changes;
            applied
        } else {
            self.apply_plan().await
        };
        self.rescue_state(applied).await?;
        findings.outputs = Some(self.outputs().await?);
        Ok(RunResult::Done)
    }

    /// Whether the plan has changes.
    async fn plan(&self) -> Result<bool, Ended> {
        let (deadline, good) = (self.plan_deadline(), [0, 2]);
        if let Some(script) = &self.scripts.plan {
            let code = self
                .script("plan", script, Ending::Quick, deadline, &good)
                .await?;
            return Ok(code == 2);
        }
        let words = ["plan", "-input=false", "-lock=false", "-detailed-exitcode"];
        let mut arguments: Vec<OsString> = words.map(Into::into).into();
        arguments.push(option("-out=", &self.layout.plan_file()));
        let code = self
            .engine(Step::Plan, arguments, Ending::Quick, deadline, &good)
            .await?;
        Ok(code == 2)
    }

    async fn apply_plan(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.apply);
        if let Some(script) = &self.scripts.apply {
            self.script("apply", script, Ending::Graceful, deadline, &[0])
                .await?;
            return Ok(());
        }
        let plan = self.layout.plan_file();
        if !plan.is_file() {
            let text = "scripts.plan found changes but wrote no plan to ALUSTAN_PLAN_FILE";
            return Err(user("NoPlanFile", text));
        }
        let arguments = vec!["apply".into(), "-input=false".into(), plan.into()];
        self.engine(Step::Apply, arguments, Ending::Graceful, deadline, &[0])
            .await?;
        Ok(())
    }

    async fn destroy(&self) -> Result<RunResult, Ended> {
        self.begin_to_change().await?;
        let deadline = Instant::now() + Duration::from_secs(self.inputs.timeouts.destroy);
        let destroyed = match &self.scripts.destroy {
            Some(script) => {
                self.script("destroy", script, Ending::Graceful, deadline, &[0])
                    .await
            }
            None if self.has_no_state().await => {
                crate::say!("there is no state: nothing to destroy");
                Ok(0)
            }
            None => {
                let arguments = ["apply", "-destroy", "-auto-approve", "-input=false"]
                    .map(Into::into)
                    .into();
                self.engine(Step::Destroy, arguments, Ending::Graceful, deadline, &[0])
                    .await
            }
        };
        self.rescue_state(destroyed.map(drop)).await?;
        Ok(RunResult::Done)
    }

    /// Only of a managed state can we be sure.
    async fn has_no_state(&self) -> bool {
        match &self.server {
            Some(server) => server.store().get().await.is_none(),
            None => false,
        }
    }

    /// From here on real objects may change: the last moment at which the run can be stopped.
    async fn begin_to_change(&self) -> Result<(), Ended> {
        if self.commands.stop.asked_at().is_some() {
            return Err(stopped().into());
        }
        let patience = Patience::until(self.plan_deadline().max(Instant::now() + LOOK));
        let go = self.record.update_ours(patience, |record, _| {
            if record.phase >= RunPhase::Applying {
                return Ok(Update::Keep(true));
            }
            if record.cancel {
                return Ok(Update::Keep(false));
            }
            record.phase = RunPhase::Applying;
            let kind = record.run.as_ref().map(|run| run.kind);
            if kind == Some(RunKind::Apply) {
                record.attempted = record.number;
            }
            Ok(Update::Write(true, Changes::new()))
        });
        if go.await? {
            Ok(())
        } else {
            Err(Ended::Cancelled)
        }
    }

    /// The change set of the plan; a run does not fail for want of it.
    async fn changes(&self) -> Option<ChangeSet> {
        let plan = self.layout.plan_file();
        if !plan.is_file() {
            return None;
        }
        let arguments = vec!["show".into(), "-json".into(), plan.into()];
        let shown = self
            .engine_output(Step::Plan, arguments, Instant::now() + LOOK)
            .await;
        match shown.map(|shown| summary(&shown, &self.key)) {
            Ok(Ok(summary)) => Some(summary.set),
            Ok(Err(error)) => {
                let place = place_in_json(&error);
                crate::say!("the plan could not be summed up: {place}");
                None
            }
            Err(failure) => {
                crate::say!("the plan could not be summed up: {}", failure.message);
                None
            }
        }
    }

    async fn keep_plan(&self) {
        let (cache, file) = (self.layout.cache.clone(), self.layout.plan_file());
        let (number, key) = (self.record.identity().number, self.key.clone());
        let kept =
            tokio::task::spawn_blocking(move || plan_file::keep(&cache, number, &file, &key)).await;
        if let Err(error) = kept.map_err(std::io::Error::other).and_then(|it| it) {
            crate::say!("the plan is not kept on the cache volume: {error}");
        }
    }

    async fn outputs(&self) -> Result<Outputs, Ended> {
        let found = match fs::read(self.layout.outputs_file()) {
            Ok(json) => outputs::from_json(&json).map_err(|error| {
                user(
                    "OutputsUnreadable",
                    format!(
                        "ALUSTAN_OUTPUTS_FILE is not JSON as of `terraform output -json`: {}",
                        place_in_json(&error)
                    ),
                )
            })?,
            Err(_) => self.engine_outputs().await?,
        };
        let size = to_json(&found).len();
        if size > outputs::LARGEST {
            let text = format!(
                "the outputs have {size} bytes; at most {} fit into a Secret. The state is saved; \
                 make them smaller, or hand big values on by an object store",
                outputs::LARGEST
            );
            return Err(user("OutputsTooLarge", text).into());
        }
        Ok(found)
    }

    async fn engine_outputs(&self) -> Result<Outputs, Ended> {
        let unreadable = |error: serde_json::Error| {
            let place = place_in_json(&error);
            module("OutputsUnreadable", format!("read the outputs: {place}"))
        };
        if let Some(server) = &self.server {
            return match server.store().get().await {
                Some(state) => Ok(outputs::from_state(&state).map_err(unreadable)?),
                None => Ok(Outputs::new()),
            };
        }
        let arguments = vec!["output".into(), "-json".into()];
        let json = self
            .engine_output(Step::Output, arguments, Instant::now() + LOOK)
            .await?;
        Ok(outputs::from_json(&json).map_err(unreadable)?)
    }
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}
