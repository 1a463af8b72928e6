//! A claimed run that is ready to execute the engine: files, environment variables, and the HTTP server for a managed state.

mod arguments;
mod command_result;
mod commands;
mod files;
mod init;
mod lock;
mod previous_backend;
mod state;
mod workspace;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use alustan_api::report::{Failure, StepTimes, Undeclared};
use alustan_api::run::{RunInputs, RunKind, RunRecord, RunSpec, ScriptTexts, StateLock};
use alustan_api::{Reason, cli_config};
use alustan_state::secrets::Secrets;

use crate::certificates;
use crate::claim::{Claimed, EarlierEntries};
use crate::engine::cache::ProviderCache;
use crate::engine::command::Commands;
use crate::engine::script::ScriptCommands;
use crate::engine::{self, EngineProgram, environment, read_cli_config};
use crate::failure::user;
use crate::file_system::module_directory;
use crate::log;
use crate::module;
use crate::module::declarations::{self, Declared};
use crate::module::manifest::registry_hosts;
use crate::module::variables::{self, Values};
use crate::paths::{Paths, Vars};
use crate::record::RecordHandle;
use crate::secrets;
use crate::secrets::redact::Redactor;
use crate::state::server::StateServer;

pub(crate) use command_result::stopped;
use files::{for_scripts, trusted, var_files, write_files};
use workspace::{refuse_workspace, workspace};

/// Time limit of `show`, `output` and `state pull`, and of a push of a migrated state.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_mins(5);

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
    /// Entries of earlier runs in the run report.
    pub(crate) earlier: EarlierEntries,
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
    /// Paths of the files in `spec.varFiles`, in order of precedence.
    var_files: Vec<PathBuf>,
    started: Instant,
    /// Variables of the resource that the module does not declare.
    pub(crate) undeclared: Vec<Undeclared>,
    /// Hosts of the registries of which the module uses modules or providers; `None` if they are not known.
    pub(crate) registry_hosts: Option<Vec<String>>,
    /// Last state lock of another client that blocked a command. Always `None` for a managed state: the HTTP server for the state records
    /// the locks of other clients.
    lock_seen: Mutex<Option<StateLock>>,
    /// Whether the last failed command failed because the engine refused to start (see [`is_refused`](crate::failure::is_refused)).
    refused: AtomicBool,
    took: Mutex<StepTimes>,
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
        let destroys = claimed.record.run.as_ref().is_some_and(|run| run.destroys);
        let undeclared = undeclared(&inputs, &values, &declared, destroys)?;
        let server_vars = server
            .as_ref()
            .map(StateServer::environment)
            .unwrap_or_default();
        let mut masked = secrets::values::of_run(&inputs, &vars, &server_vars, &values, &declared);
        let own_backend = claimed.record.own_backend.iter();
        masked.extend(own_backend.flat_map(secrets::values::of_own_backend));
        commands.redactor = Redactor::new(masked);
        let var_files = var_files(&paths, &directory, &inputs)?;
        let config = read_cli_config(&vars);
        let registry_hosts = registry_hosts(&directory, config.as_ref());
        let (scripts, backend_config) = write_files(
            &paths,
            &directory,
            &inputs,
            &values,
            &declared,
            &var_files,
            config.as_ref(),
        )?;
        let mut environment = environment(&vars, &paths);
        environment.extend(trusted(&vars, &paths)?);
        environment.remove(certificates::BUNDLE);
        environment.remove(cli_config::VARIABLE);
        environment.extend(module::environment::environment(&values));
        let bare_environment = environment.clone();
        environment.extend(inputs.backend.environment.clone());
        refuse_workspace(&inputs.backend, &environment)?;
        environment.extend(workspace(&inputs.backend));
        environment.extend(server_vars);
        let mut script_environment =
            for_scripts(&environment, &paths, backend_config.as_deref(), &inputs);
        if scripts.any() {
            let local = paths.work.join("provider-cache");
            let cache = ProviderCache::open(&paths.cache, local, &directory).await;
            script_environment.extend(cache.iter().flat_map(ProviderCache::environment));
        }
        Ok(Self {
            paths,
            record,
            secrets,
            claimed: claimed.record,
            inputs,
            key: claimed.key,
            earlier: claimed.earlier,
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
            var_files,
            started,
            undeclared,
            registry_hosts,
            lock_seen: Mutex::default(),
            refused: AtomicBool::default(),
            took: Mutex::default(),
        })
    }

    /// Returns the time at which `init` and `plan` must have ended.
    pub(crate) fn plan_deadline(&self) -> Instant {
        self.started + Duration::from_secs(self.inputs.timeouts.plan)
    }

    /// Whether the run is a destroy, or a plan of a destroy.
    pub(crate) fn destroys(&self) -> bool {
        let kind = self.claimed.run.as_ref().map(|run| run.kind);
        self.inputs.approval.destroy || kind == Some(RunKind::Destroy)
    }

    /// Whether the run creates a speculative plan and must not write the state ([`RunSpec::is_speculative`]).
    pub(crate) fn is_speculative(&self) -> bool {
        let run = self.claimed.run.as_ref();
        run.is_some_and(RunSpec::is_speculative)
    }

    /// Whether an apply executes a plan that a previous step created. False only for `scripts.apply` without `scripts.plan`.
    pub(crate) fn makes_plans(&self) -> bool {
        self.scripts.apply.is_none() || self.scripts.plan.is_some()
    }

    /// Returns the number of the last run that started to change objects; 0 without such a run.
    pub(crate) fn last_begun(&self) -> i64 {
        self.claimed.begun.max(self.claimed.attempted)
    }
}

/// Logs the variables that the module does not declare, and returns those of the resource.
///
/// # Errors
/// If `spec.strictVariables` refuses them. Never for a destroy.
fn undeclared(
    inputs: &RunInputs,
    values: &Values,
    declared: &BTreeMap<String, Declared>,
    destroys: bool,
) -> Result<Vec<Undeclared>, Failure> {
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
    let undeclared = declarations::undeclared(&inputs.own_variables, declared, has_scripts);
    if inputs.strict_variables && !destroys && !undeclared.is_empty() {
        let message = declarations::advice(&undeclared);
        return Err(user(Reason::VariableUndeclared, message));
    }
    Ok(undeclared)
}
