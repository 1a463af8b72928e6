//! A claimed run, ready to call the engine: its workspace, its environment, its state server.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::report::Failure;
use alustan_api::run::{RunInputs, StateLock};
use ring::rand::{SecureRandom, SystemRandom};

use crate::backend;
use crate::cache;
use crate::certificates;
use crate::claim::Claimed;
use crate::command::{Cause, Commands, Ending, Finished, Show, Task};
use crate::engine::{Engine, Mirror, cli_config, environment};
use crate::failure::{Step, classify, failure, module, user, world};
use crate::layout::{Layout, Vars};
use crate::processes::Scope;
use crate::record::{Record, to_json};
use crate::redact::Redactor;
use crate::script::{Script, write_script};
use crate::secrets::Secrets;
use crate::state_server::{SlotsOfRecord, StateServer};
use crate::state_store::{StateError, StateStore};
use crate::variables::{self, Declared};
use crate::workspace::{module_directory, write_private};

/// The file with the values of the module's variables; its name puts it after the user's own.
const TFVARS: &str = "zzz-alustan.auto.tfvars.json";

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

/// The user's scripts, written and ready.
#[derive(Default)]
pub struct Scripts {
    /// In place of `init`.
    pub init: Option<Script>,
    /// In place of `plan`.
    pub plan: Option<Script>,
    /// In place of `apply`.
    pub apply: Option<Script>,
    /// In place of `destroy`.
    pub destroy: Option<Script>,
}

/// A claimed run, ready to call the engine.
pub struct Session {
    /// Where things are.
    pub layout: Layout,
    /// The record of the run.
    pub record: Record,
    /// What the run was given.
    pub inputs: RunInputs,
    /// The resource's key.
    pub key: Vec<u8>,
    /// The working directory: the module.
    pub directory: PathBuf,
    /// How commands are run.
    pub commands: Commands,
    /// The state server of the managed backend.
    pub server: Option<StateServer>,
    /// The user's scripts.
    pub scripts: Scripts,
    engine: Engine,
    environment: Vars,
    script_environment: Vars,
    backend_config: Option<PathBuf>,
    started: Instant,
    _cache_lock: Option<cache::Lock>,
}

impl Session {
    /// Prepares everything in the copy of the module.
    pub async fn open(parts: Parts, claimed: Claimed) -> Result<Self, Failure> {
        let Parts {
            layout,
            vars,
            secrets,
            record,
            mut commands,
            started,
        } = parts;
        let inputs = claimed.inputs;
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
        let server = start_server(&inputs, &secrets, &record).await?;
        let values = variables::normalise(&inputs.variables);
        let declared = variables::read_declared(&directory, engine.opentofu);
        let server_vars = server
            .as_ref()
            .map(StateServer::environment)
            .unwrap_or_default();
        commands.redactor = Redactor::new(secret_values(
            &inputs,
            &vars,
            &server_vars,
            &values,
            &declared,
        ));
        let (scripts, backend_config) =
            write_files(&layout, &directory, &inputs, &values, &declared)?;
        let mut environment = environment(&vars, &layout);
        environment.extend(trusted(&vars, &layout)?);
        environment.remove(certificates::BUNDLE);
        environment.extend(variables::environment(&values));
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
            inputs,
            key: claimed.key,
            directory,
            commands,
            server,
            scripts,
            engine,
            environment,
            script_environment,
            backend_config,
            started,
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
            self.script("init", script, Ending::Quick, deadline, &[0])
                .await?;
            return Ok(());
        }
        if backend::is_prepared(&self.directory, &self.inputs.backend) {
            return Ok(());
        }
        let mut arguments = vec!["init".into(), "-input=false".into()];
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
    ) -> Result<i32, Failure> {
        let words: Vec<_> = arguments
            .iter()
            .take(1)
            .map(|it| it.to_string_lossy())
            .collect();
        crate::say!("{} {}", self.engine.name(), words.join(" "));
        let finished = self
            .run_engine(arguments, ending, deadline, Show::Log)
            .await?;
        judge(step, &finished, good).map_err(|failure| self.with_holder(failure))
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

    /// The lock that nothing of ours holds any more: it was taken, and no engine lives.
    pub fn abandoned_lock(&self) -> Option<String> {
        let lives = self.commands.processes.engine_lives(Scope::Everything);
        self.server
            .as_ref()
            .filter(|_| !lives)
            .and_then(StateServer::lock_of_ours)
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
    ) -> Result<i32, Failure> {
        crate::say!("scripts.{name}");
        let task = Task {
            program: script.program.clone(),
            arguments: script.arguments.clone(),
            directory: self.directory.clone(),
            environment: self.script_environment.clone(),
            ending,
            deadline,
            show: Show::Log,
        };
        let finished = self.commands.run(task).await.map_err(|error| {
            user(
                "ScriptFailed",
                format!("scripts.{name} did not start: {error}"),
            )
        })?;
        judge(Step::Script(name), &finished, good).map_err(|failure| self.with_holder(failure))
    }
}

impl Scripts {
    fn any(&self) -> bool {
        [&self.init, &self.plan, &self.apply, &self.destroy]
            .into_iter()
            .any(Option::is_some)
    }
}

/// The exit code when it is a good one, else the failure.
fn judge(step: Step, finished: &Finished, good: &[i32]) -> Result<i32, Failure> {
    match (finished.code, finished.cause) {
        (Some(code), _) if good.contains(&code) => Ok(code),
        (code, Some(cause)) => Err(interrupted(step, code, cause, &finished.stderr)),
        (Some(code), None) => Err(classify(step, code, &said(step, finished))),
        (None, None) => Err(world("Interrupted", "the command did not start")),
    }
}

/// What a command said of its failure. Many scripts say it on standard output.
fn said(step: Step, finished: &Finished) -> String {
    let silent = finished.stderr.trim().is_empty() && matches!(step, Step::Script(_));
    if silent {
        String::from_utf8_lossy(&finished.stdout).into_owned()
    } else {
        finished.stderr.clone()
    }
}

fn interrupted(step: Step, code: Option<i32>, cause: Cause, stderr: &str) -> Failure {
    let how = match code {
        Some(code) => classify(step, code, stderr).message,
        None if stderr.is_empty() => "it was not started".to_owned(),
        None => "it had not ended when the pod had to".to_owned(),
    };
    match cause {
        Cause::Stopped => world("Interrupted", format!("the pod was stopped: {how}")),
        Cause::Deadline => module("TimedOut", format!("the time limit passed: {how}")),
    }
}

fn trusted(vars: &Vars, layout: &Layout) -> Result<Vars, Failure> {
    certificates::write_bundle(vars, &layout.work.join("trusted.crt")).map_err(|error| {
        world(
            "WorkspaceFailed",
            format!("write the certificates: {error}"),
        )
    })
}

async fn start_server(
    inputs: &RunInputs,
    secrets: &Arc<dyn Secrets>,
    record: &Record,
) -> Result<Option<StateServer>, Failure> {
    let Some(managed) = &inputs.backend.managed else {
        return Ok(None);
    };
    let more = Arc::new(SlotsOfRecord(record.clone()));
    let (pointer, slots) = (managed.pointer.clone(), managed.slots.clone());
    let store = StateStore::open(secrets.clone(), pointer, slots, more)
        .await
        .map_err(|error| unreadable(&error))?;
    let server = StateServer::start(Arc::new(store), record.clone(), password());
    let server = server
        .await
        .map_err(|error| world("StateUnavailable", format!("state server: {error}")))?;
    Ok(Some(server))
}

fn unreadable(error: &StateError) -> Failure {
    match error {
        StateError::Corrupt(_) | StateError::Pointer(..) => user("StateDamaged", error.to_string()),
        StateError::Store(_) | StateError::Moved | StateError::NoRoom { .. } => {
            world("StateUnavailable", error.to_string())
        }
    }
}

fn password() -> String {
    let mut bytes = [0; 24];
    // Without random bytes nothing of a run could be trusted; ring then fails everywhere.
    let _ = SystemRandom::new().fill(&mut bytes);
    hex::encode(bytes)
}

fn write_files(
    layout: &Layout,
    directory: &std::path::Path,
    inputs: &RunInputs,
    values: &variables::Values,
    declared: &std::collections::BTreeMap<String, Declared>,
) -> Result<(Scripts, Option<PathBuf>), Failure> {
    let write = || {
        let block = inputs
            .backend
            .kind
            .as_deref()
            .filter(|_| inputs.backend.write_block);
        backend::write_block(directory, block)?;
        let tfvars = variables::tfvars(values, declared);
        if !tfvars.is_empty() {
            write_private(&directory.join(TFVARS), &to_json(&tfvars), 0o600)?;
        }
        let mirrors = [
            Mirror::read(&layout.providers),
            Mirror::read(&layout.base_providers),
        ];
        write_private(&layout.cli_config(), cli_config(&mirrors).as_bytes(), 0o644)?;
        let script = |name: &str, text: &Option<String>| {
            text.as_deref()
                .map(|text| write_script(&layout.work, name, text))
                .transpose()
        };
        let scripts = Scripts {
            init: script("init", &inputs.scripts.init)?,
            plan: script("plan", &inputs.scripts.plan)?,
            apply: script("apply", &inputs.scripts.apply)?,
            destroy: script("destroy", &inputs.scripts.destroy)?,
        };
        Ok::<_, std::io::Error>((
            scripts,
            backend::write_config(&layout.work, &inputs.backend)?,
        ))
    };
    write().map_err(|error| {
        world(
            "WorkspaceFailed",
            format!("the workspace could not be written: {error}"),
        )
    })
}

fn for_scripts(layout: &Layout, backend_config: Option<&std::path::Path>) -> Vars {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut vars = Vars::from([
        ("ALUSTAN_PLAN_FILE".to_owned(), text(layout.plan_file())),
        (
            "ALUSTAN_OUTPUTS_FILE".to_owned(),
            text(layout.outputs_file()),
        ),
    ]);
    if let Some(config) = backend_config {
        let argument = backend_argument(config).to_string_lossy().into_owned();
        vars.insert("TF_CLI_ARGS_init".to_owned(), argument);
    }
    vars
}

fn backend_argument(config: &std::path::Path) -> OsString {
    let mut argument = OsString::from("-backend-config=");
    argument.push(config);
    argument
}

/// Everything known to be secret: credentials of the backend and of the pod, the password of
/// the state server, values of variables that the module marks as sensitive.
fn secret_values(
    inputs: &RunInputs,
    container: &Vars,
    server: &Vars,
    values: &variables::Values,
    declared: &std::collections::BTreeMap<String, Declared>,
) -> Vec<String> {
    let mut secrets: Vec<String> = inputs.backend.environment.values().cloned().collect();
    secrets.extend(server.get("TF_HTTP_PASSWORD").cloned());
    secrets.extend(
        container
            .iter()
            .filter(|(name, value)| looks_secret(name, value))
            .map(|(_, it)| it.clone()),
    );
    secrets.extend(variables::sensitive_texts(values, declared));
    secrets
}

/// Whether an environment variable of the container is likely to hold a credential.
fn looks_secret(name: &str, value: &str) -> bool {
    const WORDS: &[&str] = &[
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "PRIVATE_KEY",
        "CREDENTIAL",
        "API_KEY",
        "ACCESS_KEY",
    ];
    let name = name.to_ascii_uppercase();
    let named = WORDS.iter().any(|word| name.contains(word)) && !name.ends_with("_FILE");
    named && value.len() >= 8 && !value.starts_with('/')
}

/// The failure of a run whose time was up before it began to change anything.
pub fn stopped() -> Failure {
    failure(
        alustan_api::report::FailureClass::World,
        "Interrupted",
        "the pod was stopped before anything was changed",
    )
}
