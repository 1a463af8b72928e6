//! A claimed run, ready to call the engine: its workspace, its environment, its state server.

mod ending;
mod files;
mod lock;
mod old_place;
mod state;

use parking_lot::Mutex;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use alustan_api::EngineName;
use alustan_api::report::{Failure, StepTimes, Undeclared};
use alustan_api::run::{Lineage, RunInputs, RunKind, RunRecord, ScriptTexts, StateLock};

use crate::backend;
use crate::cache;
use crate::certificates;
use crate::claim::Claimed;
use crate::command::{Commands, Ending, Finished, Show, Task};
use crate::engine::{self, Engine, NO_COLOR, environment};
use crate::failure::{Step, module, user, world};
use crate::layout::{Layout, Vars};
use crate::lock_file;
use crate::module_files;
use crate::processes::Scope;
use crate::record::Record;
use crate::redact::Redactor;
use crate::say;
use crate::script::{Script, Scripts};
use crate::secret_values;
use crate::secrets::Secrets;
use crate::state_server::StateServer;
use crate::variables;
use crate::workspace::module_directory;

use ending::judge;
pub(crate) use ending::stopped;
use files::{backend_argument, for_scripts, trusted, write_files};

/// How long `show` and `output` may take.
pub(crate) const LOOK: Duration = Duration::from_mins(5);

/// Arguments of the engine's `s3` backend, and what the SDK of AWS knows them by.
const AWS_CREDENTIALS: [(&str, &str); 3] = [
    ("access_key", "AWS_ACCESS_KEY_ID"),
    ("secret_key", "AWS_SECRET_ACCESS_KEY"),
    ("token", "AWS_SESSION_TOKEN"),
];

/// What a session is made from.
pub struct Parts {
    /// Where things are.
    pub layout: Layout,
    /// The environment of the container.
    pub vars: Vars,
    /// The Secrets of the run.
    pub secrets: Arc<dyn Secrets>,
    /// The record of the run.
    pub record: Record,
    /// How commands are run.
    pub commands: Commands,
    /// When the runner began.
    pub started: Instant,
}

/// A claimed run, ready to call the engine.
pub struct Session {
    /// Where things are.
    pub layout: Layout,
    /// The record of the run.
    pub record: Record,
    /// The Secrets of the run.
    pub secrets: Arc<dyn Secrets>,
    /// The record as it was claimed.
    pub claimed: RunRecord,
    /// What the run was given.
    pub inputs: RunInputs,
    /// The resource's key.
    pub key: Vec<u8>,
    /// State that an earlier run could not save, as it is sealed in the record.
    pub leftover: Option<Vec<u8>>,
    /// The working directory: the module.
    pub directory: PathBuf,
    /// How commands are run.
    pub commands: Commands,
    /// The state server of the managed backend.
    pub server: Option<StateServer>,
    /// The user's scripts.
    pub scripts: Scripts,
    /// The engine as the build of the image found it.
    pub told_engine: Option<alustan_api::Engine>,
    engine: Engine,
    environment: Vars,
    /// That of commands that have nothing to do with this backend.
    bare_environment: Vars,
    script_environment: Vars,
    backend_config: Option<PathBuf>,
    started: Instant,
    /// Variables of the resource that the module does not declare.
    pub(crate) undeclared: Vec<Undeclared>,
    /// The lock of a state elsewhere that stood in the way last.
    lock_seen: Mutex<Option<StateLock>>,
    /// Whether the engine refused to begin with what failed last.
    refused: AtomicBool,
    took: Mutex<StepTimes>,
    _cache_lock: Option<cache::Lock>,
}

impl Session {
    /// Prepares everything in the copy of the module.
    pub async fn open(parts: Parts, claimed: Claimed) -> Result<Self, Failure> {
        let Parts {
            layout,
            mut vars,
            secrets,
            record,
            mut commands,
            started,
        } = parts;
        let inputs = claimed.inputs;
        vars.extend(variables::given(&inputs.environment));
        let directory = module_directory(&layout.module_copy(), &inputs.path)
            .filter(|it| it.is_dir())
            .ok_or_else(|| {
                user(
                    "PathNotFound",
                    format!("the context has no folder {:?}", inputs.path),
                )
            })?;
        let search_path = vars
            .get("PATH")
            .map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
        let engine = Engine::find(search_path).ok_or_else(|| {
            user(
                "EngineNotFound",
                "the image has no program `terraform` on its PATH",
            )
        })?;
        let server = state::start_server(&inputs, &secrets, &record).await?;
        let values = variables::normalise(&inputs.variables);
        let declared = variables::read_declared(&directory, engine.opentofu);
        let unknown = values.keys().filter(|name| !declared.contains_key(*name));
        let unknown: Vec<_> = unknown.map(String::as_str).collect();
        if !unknown.is_empty() {
            say!(
                "the module declares no variable {}: the engine does not get it",
                unknown.join(", ")
            );
        }
        let has_scripts = inputs.scripts != ScriptTexts::default();
        let undeclared = variables::undeclared(&inputs.own_variables, &declared, has_scripts);
        let destroys = claimed.record.run.as_ref().is_some_and(|run| run.destroys);
        if inputs.strict_variables && !destroys && !undeclared.is_empty() {
            return Err(user("VariableUndeclared", variables::advice(&undeclared)));
        }
        let server_vars = server
            .as_ref()
            .map(StateServer::environment)
            .unwrap_or_default();
        let mut masked = secret_values::of_run(&inputs, &vars, &server_vars, &values, &declared);
        let own_backend = claimed.record.own_backend.iter();
        masked.extend(own_backend.flat_map(secret_values::of_own_backend));
        commands.redactor = Redactor::new(masked);
        let (scripts, backend_config) =
            write_files(&layout, &directory, &inputs, &values, &declared)?;
        let mut environment = environment(&vars, &layout);
        environment.extend(trusted(&vars, &layout)?);
        environment.remove(certificates::BUNDLE);
        environment.extend(variables::environment(&values));
        let bare_environment = environment.clone();
        environment.extend(inputs.backend.environment.clone());
        environment.extend(server_vars);
        let mut script_environment = environment.clone();
        script_environment.extend(for_scripts(&layout, backend_config.as_deref()));
        let cache_lock = if scripts.any() {
            cache::Lock::try_take(&layout.cache)
        } else {
            None
        };
        if cache_lock.is_some() {
            script_environment.extend(cache::environment(&layout.cache));
        }
        Ok(Self {
            layout,
            record,
            secrets,
            claimed: claimed.record,
            inputs,
            key: claimed.key,
            leftover: claimed.leftover,
            commands,
            server,
            scripts,
            told_engine: engine::told(&directory),
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

    /// When init and plan must be done.
    pub fn plan_deadline(&self) -> Instant {
        self.started + Duration::from_secs(self.inputs.timeouts.plan)
    }

    /// Runs `init`, unless the image was prepared for this backend.
    pub async fn init(&self) -> Result<(), Failure> {
        let deadline = self.plan_deadline();
        if let Some(script) = &self.scripts.init {
            self.bootstrap(deadline).await?;
            self.script("init", script, Ending::Quick, deadline, &[0])
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

    /// Whether the run is about destroying everything.
    pub(crate) fn destroys(&self) -> bool {
        let kind = self.claimed.run.as_ref().map(|run| run.kind);
        self.inputs.approval.destroy || kind == Some(RunKind::Destroy)
    }

    /// Refuses to apply a module without configuration: the engine would refuse it as well, but for the files that are written
    /// here, and would destroy everything.
    fn refuse_empty_module(&self) -> Result<(), Failure> {
        if self.destroys() || self.may_lack_configuration() {
            return Ok(());
        }
        match self.has_configuration() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.no_configuration()),
            Err(error) => Err(world(
                "WorkspaceFailed",
                format!("read the module: {error}"),
            )),
        }
    }

    /// A script may call a wrapper, which writes the configuration files.
    fn has_configuration(&self) -> io::Result<bool> {
        let opentofu = self.engine.kind() == EngineName::Opentofu;
        let ours = [backend::BLOCK_FILE];
        if module_files::has_configuration(&self.directory, opentofu, &ours)? {
            return Ok(true);
        }
        let by_script = self.scripts.apply.is_some();
        Ok(by_script && module_files::has_wrapper_configuration(&self.directory)?)
    }

    /// Scripts may have their configuration elsewhere. A plan of `scripts.plan` is judged before it is applied; `scripts.apply` without
    /// one makes no plan, and destroys everything if the configuration was lost since the last apply.
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
            ". If scripts.apply has its configuration elsewhere, set spec.approval.emptying: Allow"
        } else {
            ""
        };
        user(
            "NoConfiguration",
            format!(
                "{folder} has no configuration files (*.tf, *.tf.json). Nothing was applied and nothing was destroyed. \
                 Restore the files or correct spec.gitRepo.path; to destroy everything, delete the resource{elsewhere}"
            ),
        )
    }

    /// A script may call `init` itself, which wants the lock file as it was.
    fn trust_image(&self) {
        if self.scripts.any() {
            return;
        }
        if let Err(error) = lock_file::trust_image(&self.directory, &self.layout) {
            crate::say!("the checksums of the providers are compared each time: {error}");
        }
    }

    /// Makes the place of the state. Where there was one already, and only then a state, a new
    /// one would be an empty one: everything would be made a second time.
    async fn bootstrap(&self, deadline: Instant) -> Result<(), Failure> {
        let kind = self.claimed.run.as_ref().map(|run| run.kind);
        let wanted = matches!(kind, Some(RunKind::Plan | RunKind::Apply));
        let Some(place) = self.inputs.backend.bootstrap.as_ref() else {
            return Ok(());
        };
        let here = alustan_backends::address_of(&self.inputs.backend);
        let was_here = self.claimed.state_address == here;
        let only_table = was_here && self.claimed.lineage != Lineage::Unknown;
        let needless = only_table && place.table.is_none();
        if needless || !wanted || self.inputs.approval.destroy {
            return Ok(());
        }
        let place = serde_json::to_string(place)
            .map_err(|error| user("BootstrapFailed", error.to_string()))?;
        let mut arguments: Vec<OsString> = vec!["bootstrap".into(), place.into()];
        arguments.extend(only_table.then(|| "--only-table".into()));
        let task = Task {
            program: self.layout.runner.clone(),
            arguments,
            directory: self.directory.clone(),
            environment: self.bootstrap_environment(),
            ending: Ending::Quick,
            deadline,
            show: Show::Log,
        };
        let finished = self
            .commands
            .run(task)
            .await
            .map_err(|error| world("BootstrapFailed", format!("backend.bootstrap: {error}")))?;
        self.judged(Step::Bootstrap, &finished, &[0]).map(drop)
    }

    /// The engine's, with the credentials that are part of its backend block.
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
        self.engine(Step::Init, arguments, Ending::Quick, deadline, &[0])
            .await?;
        Ok(())
    }

    /// Runs a command of the engine; exit codes other than those in `good` are failures.
    pub async fn engine(
        &self,
        step: Step,
        arguments: Vec<OsString>,
        ending: Ending,
        deadline: Instant,
        good: &[i32],
    ) -> Result<Finished, Failure> {
        let words: Vec<_> = arguments
            .iter()
            .take(1)
            .map(|it| it.to_string_lossy())
            .collect();
        crate::say!("{} {}", self.engine.name(), words.join(" "));
        let run = || self.run_engine(arguments.clone(), ending, deadline, Show::Log);
        self.run_freed(step, run, good).await
    }

    /// Runs a command, and once more where a lock in its way is released by then.
    async fn run_freed<F>(
        &self,
        step: Step,
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

    fn note_time(&self, step: Step, elapsed: Duration) {
        let mut took = self.took.lock();
        let part = match step {
            Step::Init | Step::Script("init") => &mut took.init,
            Step::Plan | Step::Script("plan") => &mut took.plan,
            Step::Apply | Step::Destroy | Step::Script("apply" | "destroy") => &mut took.apply,
            Step::Bootstrap
            | Step::Output
            | Step::Show
            | Step::Pull
            | Step::Unlock
            | Step::Push
            | Step::Migrate
            | Step::Script(_) => return,
        };
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        *part = Some(part.unwrap_or_default().saturating_add(elapsed));
    }

    /// How long the steps took that have ended.
    pub(crate) fn took(&self) -> StepTimes {
        *self.took.lock()
    }

    /// The engine shows its own lock in the place of the one that stands in its way.
    fn with_holder(&self, failure: Failure) -> Failure {
        let other = self.server.as_ref().and_then(StateServer::lock_of_others);
        match other {
            Some(lock) if failure.reason == "StateLocked" => {
                let StateLock {
                    id,
                    operation,
                    who,
                    at,
                } = lock;
                let holder = format!("the state is locked by {who} since {at} ({operation}, {id})");
                Failure {
                    message: holder,
                    ..failure
                }
            }
            Some(_) | None => failure,
        }
    }

    /// Id of the lock of this run in the record, once no engine lives.
    pub fn abandoned_lock(&self) -> Option<String> {
        let lives = self.commands.processes.engine_lives(Scope::Everything);
        self.server
            .as_ref()
            .filter(|_| !lives)
            .and_then(StateServer::recorded_lock)
    }

    /// What a command of the engine prints, which nobody else sees.
    pub async fn engine_output(
        &self,
        step: Step,
        arguments: Vec<OsString>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let finished = self
            .run_engine(arguments, Ending::Quick, deadline, Show::Caller)
            .await?;
        judge(step, &finished, &[0])?;
        Ok(finished.stdout)
    }

    async fn run_engine(
        &self,
        arguments: Vec<OsString>,
        ending: Ending,
        deadline: Instant,
        show: Show,
    ) -> Result<Finished, Failure> {
        let task = Task {
            program: self.engine.program.clone(),
            arguments,
            directory: self.directory.clone(),
            environment: self.environment.clone(),
            ending,
            deadline,
            show,
        };
        self.commands.run(task).await.map_err(|error| {
            module(
                "EngineNotStarted",
                format!("{} did not start: {error}", self.engine.name()),
            )
        })
    }

    /// Runs a script of the user; exit codes other than those in `good` are failures.
    pub async fn script(
        &self,
        name: &'static str,
        script: &Script,
        ending: Ending,
        deadline: Instant,
        good: &[i32],
    ) -> Result<Finished, Failure> {
        crate::say!("scripts.{name}");
        let run = || self.run_script(name, script, ending, deadline);
        self.run_freed(Step::Script(name), run, good).await
    }

    async fn run_script(
        &self,
        name: &'static str,
        script: &Script,
        ending: Ending,
        deadline: Instant,
    ) -> Result<Finished, Failure> {
        let task = Task {
            program: script.program.clone(),
            arguments: script.arguments.clone(),
            directory: self.directory.clone(),
            environment: self.script_environment.clone(),
            ending,
            deadline,
            show: Show::Log,
        };
        self.commands.run(task).await.map_err(|error| {
            user(
                "ScriptFailed",
                format!("scripts.{name} did not start: {error}"),
            )
        })
    }
}
