//! A claimed run that is ready to execute the engine: files, environment variables, and the HTTP server for a managed state.

mod command_result;
mod files;
mod lock;
mod previous_backend;
mod state;

use parking_lot::Mutex;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use alustan_api::Reason;
use alustan_api::report::{Failure, StepTimes, Undeclared};
use alustan_api::run::{Lineage, RunInputs, RunKind, RunRecord, ScriptTexts, StateLock};
use alustan_state::secrets::Secrets;

use crate::certificates;
use crate::claim::Claimed;
use crate::engine::command::{Commands, Finished, Show, StopPolicy, Task};
use crate::engine::processes::Scope;
use crate::engine::script::{ScriptCommand, ScriptCommands};
use crate::engine::{self, EngineProgram, NO_COLOR, cache, environment, lock_file};
use crate::failure::{RunStep, module, transient, user};
use crate::log;
use crate::module::{self, declarations, variables};
use crate::paths::{Paths, Vars};
use crate::record::RecordHandle;
use crate::secrets;
use crate::secrets::redact::Redactor;
use crate::state::backend;
use crate::state::server::StateServer;
use crate::workspace::module_directory;

use command_result::judge;
pub(crate) use command_result::stopped;
use files::{backend_argument, for_scripts, trusted, write_files};

/// Time limit of `show`, `output` and `state pull`, and of a push of a migrated state.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// Arguments with credentials of the engine's `s3` backend, and the corresponding environment variables of the AWS SDK.
const AWS_CREDENTIALS: [(&str, &str); 3] = [
    ("access_key", "AWS_ACCESS_KEY_ID"),
    ("secret_key", "AWS_SECRET_ACCESS_KEY"),
    ("token", "AWS_SESSION_TOKEN"),
];

/// Inputs of [`Session::open`].
pub(crate) struct Parts {
    /// Paths of the pod.
    pub(crate) paths: Paths,
    /// Environment variables of the container.
    pub(crate) vars: Vars,
    /// Access to the Secrets of the run.
    pub(crate) secrets: Arc<dyn Secrets>,
    /// Run record and run report of the run.
    pub(crate) record: RecordHandle,
    /// Executes the commands of the run.
    pub(crate) commands: Commands,
    /// Start time of the runner.
    pub(crate) started: Instant,
}

/// A claimed run that is ready to execute the engine.
pub(crate) struct Session {
    /// Paths of the pod.
    pub(crate) paths: Paths,
    /// Run record and run report of the run.
    pub(crate) record: RecordHandle,
    /// Access to the Secrets of the run.
    pub(crate) secrets: Arc<dyn Secrets>,
    /// Run record at the time of the claim.
    pub(crate) claimed: RunRecord,
    /// Inputs of the run, including secrets.
    pub(crate) inputs: RunInputs,
    /// Secret key of the resource, for HMACs and encryption.
    pub(crate) key: Vec<u8>,
    /// Unsaved state of an earlier run, encrypted, from the run report.
    pub(crate) unsaved_state: Option<Vec<u8>>,
    /// Working directory: the folder of the module in the writable copy of the context.
    pub(crate) directory: PathBuf,
    /// Executes the commands of the run.
    pub(crate) commands: Commands,
    /// HTTP server that serves a managed state to the engine; `None` for other backends.
    pub(crate) server: Option<StateServer>,
    /// Scripts of the user.
    pub(crate) scripts: ScriptCommands,
    /// Engine name and version that the build recorded in the image.
    pub(crate) prepared_engine: Option<alustan_api::Engine>,
    engine: EngineProgram,
    environment: Vars,
    /// Environment of the engine without the variables of the backend and of the HTTP server for the managed state.
    bare_environment: Vars,
    script_environment: Vars,
    backend_config: Option<PathBuf>,
    started: Instant,
    /// Variables of the resource that the module does not declare.
    pub(crate) undeclared: Vec<Undeclared>,
    /// Last state lock of another client that blocked a command. Always `None` for a managed state: the HTTP server for the state records
    /// the locks of other clients.
    lock_seen: Mutex<Option<StateLock>>,
    /// Whether the last failed command failed because the engine refused to start (see [`is_refused`](crate::failure::is_refused)).
    refused: AtomicBool,
    took: Mutex<StepTimes>,
    _cache_lock: Option<cache::Lock>,
}

impl Session {
    /// Writes the files of the run to the copy of the module. Starts the HTTP server for a managed state.
    pub(crate) async fn open(parts: Parts, claimed: Claimed) -> Result<Self, Failure> {
        let Parts {
            paths,
            mut vars,
            secrets,
            record,
            mut commands,
            started,
        } = parts;
        let inputs = claimed.inputs;
        vars.extend(module::environment::given(&inputs.environment));
        let directory = module_directory(&paths.module_copy(), &inputs.path)
            .filter(|path| path.is_dir())
            .ok_or_else(|| {
                let message = format!("the context has no folder {:?}", inputs.path);
                user(Reason::PathNotFound, message)
            })?;
        let search_path = vars
            .get("PATH")
            .map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
        let engine = EngineProgram::find(search_path).ok_or_else(|| {
            let message = "the image has no `terraform` in PATH";
            user(Reason::EngineNotFound, message)
        })?;
        let server = state::start_server(&inputs, &secrets, &record).await?;
        let values = variables::normalise(&inputs.variables);
        let declared = declarations::read_declared(&directory, engine.kind);
        let unknown = values.keys().filter(|name| !declared.contains_key(*name));
        let unknown: Vec<_> = unknown.map(String::as_str).collect();
        if !unknown.is_empty() {
            log!(
                "the module does not declare variable {}; undeclared variables are not passed to \
                 the engine",
                unknown.join(", ")
            );
        }
        let has_scripts = inputs.scripts != ScriptTexts::default();
        let undeclared = declarations::undeclared(&inputs.own_variables, &declared, has_scripts);
        let destroys = claimed.record.run.as_ref().is_some_and(|run| run.destroys);
        if inputs.strict_variables && !destroys && !undeclared.is_empty() {
            let message = declarations::advice(&undeclared);
            return Err(user(Reason::VariableUndeclared, message));
        }
        let server_vars = server
            .as_ref()
            .map(StateServer::environment)
            .unwrap_or_default();
        let mut masked = secrets::values::of_run(&inputs, &vars, &server_vars, &values, &declared);
        let own_backend = claimed.record.own_backend.iter();
        masked.extend(own_backend.flat_map(secrets::values::of_own_backend));
        commands.redactor = Redactor::new(masked);
        let (scripts, backend_config) =
            write_files(&paths, &directory, &inputs, &values, &declared)?;
        let mut environment = environment(&vars, &paths);
        environment.extend(trusted(&vars, &paths)?);
        environment.remove(certificates::BUNDLE);
        environment.extend(module::environment::environment(&values));
        let bare_environment = environment.clone();
        environment.extend(inputs.backend.environment.clone());
        environment.extend(server_vars);
        let mut script_environment = environment.clone();
        script_environment.extend(for_scripts(&paths, backend_config.as_deref()));
        let cache_lock = if scripts.any() {
            cache::Lock::try_take(&paths.cache)
        } else {
            None
        };
        if cache_lock.is_some() {
            script_environment.extend(cache::environment(&paths.cache));
        }
        Ok(Self {
            paths,
            record,
            secrets,
            claimed: claimed.record,
            inputs,
            key: claimed.key,
            unsaved_state: claimed.unsaved_state,
            commands,
            server,
            scripts,
            prepared_engine: engine::read_prepared_engine(&directory),
            directory,
            engine,
            environment,
            bare_environment,
            script_environment,
            backend_config,
            started,
            undeclared,
            lock_seen: Mutex::default(),
            refused: AtomicBool::default(),
            took: Mutex::default(),
            _cache_lock: cache_lock,
        })
    }

    /// Returns the time at which `init` and `plan` must have ended.
    pub(crate) fn plan_deadline(&self) -> Instant {
        self.started + Duration::from_secs(self.inputs.timeouts.plan)
    }

    /// Runs `init`, unless the image build ran `init` for this backend.
    pub(crate) async fn init(&self) -> Result<(), Failure> {
        let deadline = self.plan_deadline();
        if let Some(script) = &self.scripts.init {
            self.bootstrap(deadline).await?;
            self.script("init", script, StopPolicy::Quick, deadline, &[0])
                .await?;
            return self.refuse_empty_module();
        }
        self.refuse_empty_module()?;
        self.bootstrap(deadline).await?;
        if !backend::is_prepared(&self.directory, &self.inputs.backend) {
            self.run_init(deadline).await?;
        }
        self.trust_image();
        Ok(())
    }

    /// Whether the run is a destroy, or a plan of a destroy.
    pub(crate) fn destroys(&self) -> bool {
        let kind = self.claimed.run.as_ref().map(|run| run.kind);
        self.inputs.approval.destroy || kind == Some(RunKind::Destroy)
    }

    /// Fails if the module has no configuration files. The engine would refuse an empty folder, but accepts a folder with only the files
    /// that the runner writes, and would destroy all objects.
    fn refuse_empty_module(&self) -> Result<(), Failure> {
        if self.destroys() || self.may_lack_configuration() {
            return Ok(());
        }
        match self.has_configuration() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.no_configuration()),
            Err(error) => Err(transient(
                Reason::WorkspaceFailed,
                format!("failed to read the module: {error}"),
            )),
        }
    }

    /// Whether the module has configuration files. With `scripts.apply`, also returns true for files of a wrapper such as `terragrunt.hcl`,
    /// because the wrapper generates configuration files.
    fn has_configuration(&self) -> io::Result<bool> {
        let ours = [backend::BLOCK_FILE];
        if module::files::has_configuration(&self.directory, self.engine.kind, &ours)? {
            return Ok(true);
        }
        let by_script = self.scripts.apply.is_some();
        Ok(by_script && module::files::has_wrapper_configuration(&self.directory)?)
    }

    /// Whether the module may lack configuration files, because scripts read the configuration from another location. True with
    /// `scripts.plan`, because the plan is evaluated before apply. With `scripts.apply` alone there is no plan: if the configuration was
    /// lost after an earlier apply, the next apply would destroy all objects. Therefore, true with `scripts.apply` alone only if no run has
    /// changed objects yet, or if the removal of all objects needs no approval.
    fn may_lack_configuration(&self) -> bool {
        if self.makes_plans() {
            return self.scripts.plan.is_some();
        }
        self.last_begun() == 0 || !self.inputs.approval.emptying
    }

    fn no_configuration(&self) -> Failure {
        let folder = match self.inputs.path.as_str() {
            "" => "the root of the repository".to_owned(),
            path => format!("folder {path} of the repository"),
        };
        let elsewhere = if self.scripts.apply.is_some() {
            ". If scripts.apply uses a configuration in another folder, set \
             spec.approval.emptying: Allow"
        } else {
            ""
        };
        user(
            Reason::NoConfiguration,
            format!(
                "{folder} has no configuration files (*.tf, *.tf.json). Nothing was applied and nothing was destroyed. \
                 Restore the files or correct spec.gitRepo.path; to destroy everything, delete the resource{elsewhere}"
            ),
        )
    }

    /// Removes the checksums of providers in the image from the dependency lock file. Keeps the checksums if scripts are configured: a
    /// script may call `init`, which needs the original lock file.
    fn trust_image(&self) {
        if self.scripts.any() {
            return;
        }
        if let Err(error) = lock_file::trust_image(&self.directory, &self.paths) {
            crate::log!("failed to skip the verification of provider checksums: {error}");
        }
    }

    /// Creates the bucket and the lock table of the state. Does not create a bucket that contained the state before: a new bucket would be
    /// empty, and an apply would create every object again.
    async fn bootstrap(&self, deadline: Instant) -> Result<(), Failure> {
        let kind = self.claimed.run.as_ref().map(|run| run.kind);
        let wanted = matches!(kind, Some(RunKind::Plan | RunKind::Apply));
        let Some(location) = self.inputs.backend.bootstrap.as_ref() else {
            return Ok(());
        };
        let address = alustan_backends::address_of(&self.inputs.backend);
        let was_here = self.claimed.state_address == address;
        let only_table = was_here && self.claimed.lineage != Lineage::Unknown;
        let needless = only_table && location.table.is_none();
        if needless || !wanted || self.inputs.approval.destroy {
            return Ok(());
        }
        let location = serde_json::to_string(location)
            .map_err(|error| user(Reason::BootstrapFailed, error.to_string()))?;
        let mut arguments: Vec<OsString> = vec!["bootstrap".into(), location.into()];
        arguments.extend(only_table.then(|| "--only-table".into()));
        let task = Task {
            program: self.paths.runner.clone(),
            arguments,
            directory: self.directory.clone(),
            environment: self.bootstrap_environment(),
            stop_policy: StopPolicy::Quick,
            deadline,
            show: Show::Log,
        };
        let finished = self.commands.run(task).await.map_err(|error| {
            let message = format!(
                "failed to start the creation of bucket and lock table (spec.backend.bootstrap): \
                 {error}"
            );
            transient(Reason::BootstrapFailed, message)
        })?;
        self.judged(RunStep::Bootstrap, &finished, &[0]).map(drop)
    }

    /// Returns the environment of the engine, and the credentials of the backend configuration as environment variables of the AWS SDK.
    fn bootstrap_environment(&self) -> Vars {
        let mut environment = self.environment.clone();
        for (argument, variable) in AWS_CREDENTIALS {
            let value = self.inputs.backend.secret_config.get(argument);
            environment.extend(value.map(|value| (variable.to_owned(), value.clone())));
        }
        environment
    }

    async fn run_init(&self, deadline: Instant) -> Result<(), Failure> {
        let mut arguments = vec!["init".into(), NO_COLOR.into(), "-input=false".into()];
        if backend::has_resolved(&self.directory) {
            arguments.push("-reconfigure".into());
        }
        arguments.extend(self.backend_config.as_deref().map(backend_argument));
        self.engine(RunStep::Init, arguments, StopPolicy::Quick, deadline, &[0])
            .await?;
        Ok(())
    }

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
        crate::log!("{} {}", self.engine.name(), words.join(" "));
        let run = || self.run_engine(arguments.clone(), stop_policy, deadline, Show::Log);
        self.run_freed(step, run, good).await
    }

    /// Executes a command with `run`. If a state lock blocks the command and rule 9 permits its release, releases the lock and executes the
    /// command again.
    async fn run_freed<F>(
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

    /// Replaces the message of a failure with reason `StateLocked`, if the state is managed. The new message describes the lock that blocks
    /// the run. The message of the engine describes the lock that the engine requested.
    fn with_holder(&self, failure: Failure) -> Failure {
        let other = self.server.as_ref().and_then(StateServer::lock_of_others);
        match other {
            Some(lock) if failure.reason == Reason::StateLocked => {
                let StateLock {
                    id,
                    operation,
                    who,
                    at,
                } = lock;
                let holder = format!(
                    "the state is locked by {who} (since {at}, operation {operation}, id {id})"
                );
                Failure {
                    message: holder,
                    ..failure
                }
            }
            Some(_) | None => failure,
        }
    }

    /// Returns the id of the lock that this run still holds in the run report, if no engine process is running. The lock is released when
    /// the run report is written.
    pub(crate) fn abandoned_lock(&self) -> Option<String> {
        let lives = self.commands.processes.engine_lives(Scope::Everything);
        self.server
            .as_ref()
            .filter(|_| !lives)
            .and_then(StateServer::recorded_lock)
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

    async fn run_engine(
        &self,
        arguments: Vec<OsString>,
        stop_policy: StopPolicy,
        deadline: Instant,
        show: Show,
    ) -> Result<Finished, Failure> {
        let task = Task {
            program: self.engine.program.clone(),
            arguments,
            directory: self.directory.clone(),
            environment: self.environment.clone(),
            stop_policy,
            deadline,
            show,
        };
        self.commands.run(task).await.map_err(|error| {
            module(
                Reason::EngineNotStarted,
                format!("failed to start {}: {error}", self.engine.name()),
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
        crate::log!("scripts.{name}");
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
