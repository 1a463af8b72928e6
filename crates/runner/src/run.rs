//! One run from claim to report.

use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::report::{ChangeSet, Failure, RunReport, RunResult};
use alustan_api::run::{Outputs, RunKind, RunPhase};
use k8s_openapi::jiff::Timestamp;

use crate::backend;
use crate::changes::change_set;
use crate::claim::{Claimed, claim};
use crate::command::{Commands, Ending};
use crate::failure::{Step, module, user, world};
use crate::layout::{Layout, Vars};
use crate::leftover;
use crate::outputs;
use crate::plan_file;
use crate::record::{Identity, Record, RecordError, Update, to_json};
use crate::report;
use crate::retry::Patience;
use crate::secrets::{Changes, Secrets};
use crate::session::{Parts, Session, stopped};
use crate::workspace::copy_tree;

/// How long `show` and `output` may take.
const LOOK: Duration = Duration::from_mins(5);
/// How long a push of rescued state may take.
const PUSH: Duration = Duration::from_mins(2);

/// What a run needs from outside.
pub struct Context {
    /// Which run this is.
    pub identity: Identity,
    /// Where things are.
    pub layout: Layout,
    /// The environment of the container.
    pub vars: Vars,
    /// The Secrets of the run.
    pub secrets: Arc<dyn Secrets>,
    /// How commands are run.
    pub commands: Commands,
}

/// Why a run ended without a result.
enum Ended {
    /// It failed.
    Failed(Failure),
    /// The controller cancelled it before anything was changed.
    Cancelled,
    /// It is not ours any more.
    NotOurs(String),
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
struct Findings {
    changes: Option<ChangeSet>,
    outputs: Option<Outputs>,
    state_address: Option<String>,
    abandoned_lock: Option<String>,
}

/// Runs from claim to report; the exit code says how it went.
pub async fn run(context: Context) -> ExitCode {
    let (began, started_at) = (Instant::now(), Timestamp::now());
    let record = Record::new(context.secrets.clone(), context.identity.clone());
    let (from, to) = (context.layout.module.clone(), context.layout.module_copy());
    let copied = tokio::task::spawn_blocking(move || copy_tree(&from, &to));
    let claimed = tokio::select! {
        claimed = claim(&record, started_at) => claimed,
        _ = context.commands.stop.asked() => return ExitCode::FAILURE,
    };
    let claimed = match claimed {
        Ok(claimed) => claimed,
        Err(error) => return refused(&error),
    };
    let (number, kind) = (context.identity.number, claimed.run.kind);
    crate::say!("run {number} of {}: {kind}", context.identity.record);
    let mut findings = Findings::default();
    let ended = match copied
        .await
        .map_err(std::io::Error::other)
        .and_then(|result| result)
    {
        Ok(()) => carry_out(&context, &record, claimed, began, &mut findings).await,
        Err(error) => Err(world("WorkspaceFailed", format!("copy the module: {error}")).into()),
    };
    let (result, failure) = match ended {
        Ok(result) => (result, None),
        Err(Ended::Cancelled) => (RunResult::Cancelled, None),
        Err(Ended::Failed(failure)) => (RunResult::Failed, Some(failure)),
        Err(Ended::NotOurs(why)) => return refused(&RecordError::NotOurs(why)),
    };
    let report = RunReport {
        number,
        kind,
        result,
        trigger: String::new(),
        job: String::new(),
        changes: findings.changes.take(),
        failure,
        state_address: findings.state_address.take(),
        started_at,
        finished_at: Timestamp::now(),
    };
    finish(&context, &record, &report, &findings).await
}

/// Why nothing was run.
fn refused(error: &RecordError) -> ExitCode {
    match error {
        RecordError::NotOurs(why) => {
            crate::say!("{why}");
            ExitCode::SUCCESS
        }
        RecordError::Store(_) | RecordError::Unreadable { .. } | RecordError::Incomplete { .. } => {
            crate::say!("the run could not be claimed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(
    context: &Context,
    record: &Record,
    claimed: Claimed,
    started: Instant,
    findings: &mut Findings,
) -> Result<RunResult, Ended> {
    let kind = claimed.run.kind;
    let parts = Parts {
        layout: context.layout.clone(),
        vars: context.vars.clone(),
        secrets: context.secrets.clone(),
        record: record.clone(),
        commands: context.commands.clone(),
        started,
    };
    let session = Session::open(parts, claimed).await?;
    let ended = session.execute(kind, findings).await;
    findings.abandoned_lock = session.abandoned_lock();
    ended
}

async fn finish(
    context: &Context,
    record: &Record,
    report: &RunReport,
    findings: &Findings,
) -> ExitCode {
    let from = context
        .commands
        .stop
        .asked_at()
        .unwrap_or_else(Instant::now);
    let patience = Patience::until(from + context.commands.grace);
    let (outputs, lock) = (
        findings.outputs.as_ref(),
        findings.abandoned_lock.as_deref(),
    );
    let recorded = match report::record(record, report, outputs, lock, patience).await {
        Ok(recorded) => recorded,
        Err(error) => {
            crate::say!("{error}");
            let failure = Some(report::unrecorded(&error));
            RunReport {
                result: RunResult::Failed,
                failure,
                ..report.clone()
            }
        }
    };
    report::write_message(&context.layout.termination_log, &recorded);
    say_result(&recorded);
    match recorded.result {
        RunResult::Failed => ExitCode::FAILURE,
        RunResult::NoChanges | RunResult::Changes | RunResult::Done | RunResult::Cancelled => {
            ExitCode::SUCCESS
        }
    }
}

fn say_result(report: &RunReport) {
    let number = report.number;
    match (report.result, &report.failure) {
        (RunResult::Failed, Some(failure)) => {
            crate::say!("run {number} failed: {}", failure.reason);
        }
        (RunResult::NoChanges, _) => crate::say!("run {number}: no changes"),
        (RunResult::Changes, _) => crate::say!("run {number}: changes found, nothing applied"),
        (RunResult::Done | RunResult::Failed, _) => crate::say!("run {number}: done"),
        (RunResult::Cancelled, _) => crate::say!("run {number}: cancelled, nothing changed"),
    }
}

impl Session {
    async fn execute(&self, kind: RunKind, findings: &mut Findings) -> Result<RunResult, Ended> {
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
            record.attempted = true;
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
        match shown.map(|shown| change_set(&shown, &self.key)) {
            Ok(Ok(changes)) => Some(changes),
            Ok(Err(error)) => {
                crate::say!("the plan could not be summed up: {error}");
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
                    format!("ALUSTAN_OUTPUTS_FILE is no output of `output -json`: {error}"),
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
            module("OutputsUnreadable", format!("read the outputs: {error}"))
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

    /// Saves what the engine could not save. The result stays what it was.
    async fn rescue_state(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        let file = self.directory.join(leftover::FILE);
        if !file.is_file() {
            return result;
        }
        crate::say!("the engine could not save the state");
        let kept = leftover::keep(&self.layout.cache, &file, &self.key);
        let note = match (self.push(&file).await, kept) {
            (Ok(()), _) => {
                leftover::forget(&self.layout.cache);
                let _ = fs::remove_file(&file);
                return result;
            }
            (Err(push), Ok(())) => format!(
                "the state is not saved ({}); it is kept on the cache volume, and the next run \
                 pushes it before anything else",
                push.message
            ),
            (Err(push), Err(error)) => format!(
                "the state is LOST unless it is taken from this pod's {} now: {}; cache volume: {error}",
                file.display(),
                push.message
            ),
        };
        crate::say!("{note}");
        let before = result.err();
        let text = before
            .as_ref()
            .map_or("", |failure| failure.message.as_str());
        Err(match &before {
            Some(failure) => Failure {
                message: crate::failure::cut(
                    &format!("{note}\n{text}"),
                    alustan_api::report::MAX_TEXT,
                ),
                ..failure.clone()
            },
            None => world("StateNotSaved", note),
        })
    }

    /// Pushes what an earlier run could not save.
    async fn push_leftover(&self) -> Result<(), Ended> {
        let Some(state) = leftover::take(&self.layout.cache, &self.key) else {
            return Ok(());
        };
        crate::say!("pushing the state that an earlier run could not save");
        let file = self.layout.work.join(leftover::FILE);
        let unwritten = |error| {
            world(
                "WorkspaceFailed",
                format!("write {}: {error}", file.display()),
            )
        };
        crate::workspace::write_private(&file, &state, 0o600).map_err(unwritten)?;
        let pushed = self.push(&file).await;
        let _ = fs::remove_file(&file);
        match pushed {
            Ok(()) => leftover::forget(&self.layout.cache),
            Err(failure) if failure.message.contains("cannot import state with serial") => {
                crate::say!("the stored state is newer: the old one is put aside");
                leftover::put_aside(&self.layout.cache, self.record.identity().number);
            }
            Err(failure) => return Err(failure.into()),
        }
        Ok(())
    }

    async fn push(&self, file: &std::path::Path) -> Result<(), Failure> {
        let arguments = vec!["state".into(), "push".into(), file.into()];
        let deadline = Instant::now() + PUSH;
        self.engine(Step::Push, arguments, Ending::Persistent, deadline, &[0])
            .await?;
        Ok(())
    }
}

fn option(name: &str, path: &std::path::Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}
