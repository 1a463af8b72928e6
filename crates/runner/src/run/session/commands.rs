//! Commands of the engine and scripts of the user: runs them, records their duration, and judges their exit codes.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::report::{Failure, StepTimes};

use super::Session;
use super::command_result::judge;
use crate::engine::command::{Finished, Show, StopPolicy, Task};
use crate::engine::script::ScriptCommand;
use crate::failure::{RunStep, module, user};
use crate::log;
use crate::paths::Vars;

impl Session {
    /// Runs a command of the engine. Exit codes that are not in `good` are failures.
    pub(crate) async fn engine(
        &self,
        step: RunStep,
        arguments: Vec<OsString>,
        stop_policy: StopPolicy,
        deadline: Instant,
        good: &[i32],
    ) -> Result<Finished, Failure> {
        let words: Vec<_> = arguments
            .iter()
            .take(1)
            .map(|argument| argument.to_string_lossy())
            .collect();
        log!("{} {}", self.engine.name(), words.join(" "));
        let run = || self.run_engine(arguments.clone(), stop_policy, deadline, Show::Log);
        self.run_freed(step, run, good).await
    }

    /// Executes a command with `run`. If a state lock blocks the command and rule 9 permits its release, releases the lock and executes the
    /// command again.
    pub(super) async fn run_freed<F>(
        &self,
        step: RunStep,
        run: impl Fn() -> F,
        good: &[i32],
    ) -> Result<Finished, Failure>
    where
        F: Future<Output = Result<Finished, Failure>>,
    {
        let began = Instant::now();
        let mut finished = run().await?;
        if self.is_freed(step, &finished, good).await {
            finished = run().await?;
        }
        self.note_time(step, began.elapsed());
        self.judged(step, &finished, good)?;
        Ok(finished)
    }

    fn note_time(&self, step: RunStep, elapsed: Duration) {
        let mut took = self.took.lock();
        let part = match step {
            RunStep::Init | RunStep::Script("init") => &mut took.init,
            RunStep::Plan | RunStep::Script("plan") => &mut took.plan,
            RunStep::Apply | RunStep::Destroy | RunStep::Script("apply" | "destroy") => {
                &mut took.apply
            }
            RunStep::Bootstrap
            | RunStep::Output
            | RunStep::Show
            | RunStep::Pull
            | RunStep::Unlock
            | RunStep::Push
            | RunStep::Migrate
            | RunStep::Script(_) => return,
        };
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        *part = Some(part.unwrap_or_default().saturating_add(elapsed));
    }

    /// Returns the durations of the steps that have ended.
    pub(crate) fn took(&self) -> StepTimes {
        *self.took.lock()
    }

    /// Runs a command of the engine and returns its standard output, which is not logged.
    pub(crate) async fn engine_output(
        &self,
        step: RunStep,
        arguments: Vec<OsString>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let finished = self
            .run_engine(arguments, StopPolicy::Quick, deadline, Show::Caller)
            .await?;
        judge(step, &finished, &[0])?;
        Ok(finished.stdout)
    }

    pub(super) async fn run_engine(
        &self,
        arguments: Vec<OsString>,
        stop_policy: StopPolicy,
        deadline: Instant,
        show: Show,
    ) -> Result<Finished, Failure> {
        let environment = self.environment.clone();
        self.run_engine_in(environment, arguments, stop_policy, deadline, show)
            .await
    }

    /// Runs a command of the engine with `environment`.
    pub(super) async fn run_engine_in(
        &self,
        environment: Vars,
        arguments: Vec<OsString>,
        stop_policy: StopPolicy,
        deadline: Instant,
        show: Show,
    ) -> Result<Finished, Failure> {
        let (program, name, arguments) = match &self.wrapper {
            Some(wrapper) => (
                wrapper.program.clone(),
                wrapper.name.as_str(),
                wrapper.arguments(arguments),
            ),
            None => (self.engine.program.clone(), self.engine.name(), arguments),
        };
        let task = Task {
            program,
            arguments,
            directory: self.directory.clone(),
            environment,
            stop_policy,
            deadline,
            show,
        };
        self.commands.run(task).await.map_err(|error| {
            module(
                Reason::EngineNotStarted,
                format!("failed to start {name}: {error}"),
            )
        })
    }

    /// Runs a script of the user. Exit codes that are not in `good` are failures.
    pub(crate) async fn script(
        &self,
        name: &'static str,
        script: &ScriptCommand,
        stop_policy: StopPolicy,
        deadline: Instant,
        good: &[i32],
    ) -> Result<Finished, Failure> {
        log!("scripts.{name}");
        let run = || self.run_script(name, script, stop_policy, deadline);
        self.run_freed(RunStep::Script(name), run, good).await
    }

    async fn run_script(
        &self,
        name: &'static str,
        script: &ScriptCommand,
        stop_policy: StopPolicy,
        deadline: Instant,
    ) -> Result<Finished, Failure> {
        let task = Task {
            program: script.program.clone(),
            arguments: script.arguments.clone(),
            directory: self.directory.clone(),
            environment: self.script_environment.clone(),
            stop_policy,
            deadline,
            show: Show::Log,
        };
        self.commands.run(task).await.map_err(|error| {
            user(
                Reason::ScriptFailed,
                format!("failed to start scripts.{name}: {error}"),
            )
        })
    }
}
