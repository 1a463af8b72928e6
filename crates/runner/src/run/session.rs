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
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use alustan_api::report::{Failure, StepTimes, Undeclared};
use alustan_api::run::{RunInputs, RunKind, RunRecord, RunSpec, ScriptTexts, StateLock};
use alustan_api::{EngineName, Reason, cli_config};
use alustan_state::secrets::Secrets;

use crate::certificates;
use crate::claim::{Claimed, EarlierEntries};
use crate::engine::cache::ProviderCache;
use crate::engine::command::Commands;
use crate::engine::script::ScriptCommands;
use crate::engine::wrapper::{WrapperProgram, find_programs, local_modules};
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
    wrapper: Option<WrapperProgram>,
    /// Folder in which the wrapper runs the engine, if it differs from [`Self::directory`]. Known after `init`.
    wrapped_directory: OnceLock<PathBuf>,
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
    /// Values that plans of the run mark as sensitive.
    plan_secrets: Mutex<Vec<String>>,
}

impl Session {
    /// Adds values that a plan marks as sensitive to the secret values of [`Self::redactor`].
    pub(crate) fn add_secrets(&self, values: &[String]) {
        self.plan_secrets.lock().extend_from_slice(values);
    }

    /// Returns a redactor of all secret values that are known: those of the inputs, and those that plans of the run mark as sensitive.
    pub(crate) fn redactor(&self) -> Redactor {
        self.commands.redactor.with(&*self.plan_secrets.lock())
    }

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
        let (engine, wrapper) = find_programs(&vars, inputs.wrapper, "the image")?;
        let server = state::start_server(&inputs, &secrets, &record).await?;
        let values = variables::normalise(&inputs.variables);
        let declared = declared_variables(&paths, &directory, &inputs, engine.kind);
        let undeclared = undeclared_variables(&claimed.record, &inputs, &values, &declared)?;
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
        if let Some(wrapper) = &wrapper {
            environment.extend(wrapper.environment(&engine, &paths));
        }
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
            wrapper,
            wrapped_directory: OnceLock::new(),
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
            plan_secrets: Mutex::default(),
        })
    }

    /// Returns the time at which `init` and `plan` must have ended.
    pub(crate) fn plan_deadline(&self) -> Instant {
        self.started + Duration::from_secs(self.inputs.timeouts.plan)
    }

    /// Returns the folder in which the engine runs, with its data folder `.terraform`.
    pub(crate) fn engine_directory(&self) -> &Path {
        self.wrapped_directory.get().unwrap_or(&self.directory)
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

/// Returns the variables that the module in `directory` declares. With a wrapper, also those of the local modules that its configuration names.
fn declared_variables(
    paths: &Paths,
    directory: &Path,
    inputs: &RunInputs,
    engine: EngineName,
) -> BTreeMap<String, Declared> {
    let modules = inputs.wrapper.map_or_else(Vec::new, |name| {
        local_modules(name, &paths.module_copy(), &inputs.path)
    });
    std::iter::once(directory)
        .chain(modules.iter().map(PathBuf::as_path))
        .flat_map(|folder| declarations::read_declared(folder, engine))
        .collect()
}

/// Returns the variables of the resource that are not in `declared`, and logs the names of all such `values`.
///
/// # Errors
/// `spec.strictVariables` requires that the module declares all variables of the resource.
fn undeclared_variables(
    record: &RunRecord,
    inputs: &RunInputs,
    values: &Values,
    declared: &BTreeMap<String, Declared>,
) -> Result<Vec<Undeclared>, Failure> {
    let unknown = values.keys().filter(|name| !declared.contains_key(*name));
    let unknown: Vec<_> = unknown.map(String::as_str).collect();
    // The wrapper may download the module.
    let is_remote = inputs.wrapper.is_some() && declared.is_empty();
    if !unknown.is_empty() && !is_remote {
        log!(
            "the module does not declare variable {}; undeclared variables are not passed to the \
             engine",
            unknown.join(", ")
        );
    }
    let may_be_incomplete = inputs.scripts != ScriptTexts::default() || is_remote;
    let undeclared = declarations::undeclared(&inputs.own_variables, declared, may_be_incomplete);
    let destroys = record.run.as_ref().is_some_and(|run| run.destroys);
    if inputs.strict_variables && !destroys && !undeclared.is_empty() {
        return Err(user(
            Reason::VariableUndeclared,
            declarations::advice(&undeclared),
        ));
    }
    Ok(undeclared)
}
