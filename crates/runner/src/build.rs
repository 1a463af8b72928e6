//! Steps of a build that the runner executes: they convert the context artifact to the folders that become layers of the runner image. With
//! builder kind Append, the runner also creates and pushes the image.
//!
//! The steps run unprivileged in the base image. The containers of [`pull`] and [`build`] have the registry credentials, so these
//! containers must not execute files from the git repository. [`prepare`] executes `init`, which evaluates the module and may execute
//! programs. The container of [`prepare`] has the git credentials and the tokens of registries of modules and providers. They never reach the
//! builder or a layer (rule 2). The same inputs produce the same files, so that an unchanged layer is not pushed again.
//!
//! With builder kind Kaniko, the containers `pull`, `prepare` and kaniko run one after the other. With builder kind Append, [`build`] pulls
//! the context while the container of [`prepare`] starts (see [`handover`]).

mod append;
mod build_folders;
mod context;
mod dockerfile;
mod empty_state;
mod finish;
mod git;
mod handover;
mod layer;
mod leak;
mod module_sources;
mod providers;
mod registry_access;
mod registry_tokens;
mod request;

pub use context::unpack_context;
pub use request::ContextRequest;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use alustan_api::paths::LAYERS;
use alustan_api::report::{Failure, PrepareReport};
use alustan_api::{Reason, cli_config};
use alustan_state::secrets::to_json;

use crate::certificates;
use crate::engine::cache::ProviderCache;
use crate::engine::command::{Commands, Show, StopPolicy, Task};
use crate::engine::wrapper::{find_programs, local_modules};
use crate::engine::{self, EngineProgram, Mirror, NO_COLOR, lock_file, read_cli_config};
use crate::failure::{RunStep, classify, transient, user};
use crate::file_system::module_directory;
use crate::paths::{Paths, Vars};
use crate::report::write_failure;
use crate::secrets::redact::Redactor;
use crate::secrets::values::of_environment;
use crate::state::backend::{self, Prepared};

use build_folders::{BuildFolders, unwritten};
use handover::{Connection, HandoverListener};
use registry_tokens::RegistryTokens;
use request::ModuleRequest;

/// Time limit of an engine command. The limit includes downloads of providers and modules.
const PATIENCE: Duration = Duration::from_mins(30);

/// Failure message of `prepare` after a stop request.
const INTERRUPTED: &str = "init was interrupted";
/// Time limit for killing processes that `init` started and that still run after `init`.
const LAST_PROCESS: Duration = Duration::from_secs(10);

/// Pulls and unpacks the context, and writes the files for the builder that the module must not change. Writes a failure to the
/// termination message.
pub async fn pull(paths: &Paths, vars: &Vars) -> ExitCode {
    let pulled = try_pull(paths, vars).await;
    ended(paths, redacted(&redactor(vars), pulled))
}

/// Prepares the context for the builder: executes `init` and collects the providers. Writes a failure to the termination message. With
/// builder kind Append, waits until [`build`] has unpacked the context, and sends the result to [`build`].
pub async fn prepare(paths: &Paths, vars: &Vars, commands: Commands) -> ExitCode {
    let commands = Commands {
        redactor: redactor(vars),
        ..commands
    };
    let prepared = if vars.contains_key("ALUSTAN_HANDOVER") {
        prepare_for_builder(paths, vars, &commands).await
    } else {
        prepare_redacted(paths, vars, &commands).await
    };
    ended(paths, prepared)
}

/// Prepares the context that the container `build` unpacks, and sends the result to `build`. Stops without a failure if `build` ends first,
/// because `build` then reports the failure.
async fn prepare_for_builder(
    paths: &Paths,
    vars: &Vars,
    commands: &Commands,
) -> Result<(), Failure> {
    let connected = tokio::select! {
        connected = Connection::open(paths) => connected?,
        _ = commands.stop.requested() => return Err(transient(Reason::Interrupted, INTERRUPTED)),
    };
    let Some(mut connection) = connected else {
        crate::log!("the container build ended before it unpacked the context");
        return Ok(());
    };
    let prepared = tokio::select! {
        prepared = prepare_redacted(paths, vars, commands) => prepared,
        () = connection.closed() => {
            crate::log!("the container build ended before the context was prepared");
            return Ok(());
        }
    };
    connection.send(&prepared).await;
    prepared
}

/// Pulls the context, waits until [`prepare`] has prepared the context, appends the result to the base image and pushes the image. Writes
/// the digest of the image, or the failure of `build` or of [`prepare`], to the termination message.
pub async fn build(paths: &Paths, vars: &Vars) -> ExitCode {
    let built = try_build(paths, vars).await;
    ended(paths, redacted(&redactor(vars), built))
}

/// Returns a redactor of the secret values in the environment, in the credentials of the git repository, in the tokens of registries of modules
/// and providers, and in the docker configuration.
/// Credentials from a credential helper are not masked: the registry client does not print the output of a successful helper.
fn redactor(vars: &Vars) -> Redactor {
    let secrets = of_environment(vars, &BTreeSet::new()).into_iter();
    let git = git::GitCredentials::read(vars).secrets();
    let tokens = RegistryTokens::read(vars).secrets();
    let docker = registry_access::secrets(vars);
    Redactor::new(secrets.chain(git).chain(tokens).chain(docker))
}

fn redacted(redactor: &Redactor, result: Result<(), Failure>) -> Result<(), Failure> {
    result.map_err(|failure| redactor.failure(failure))
}

fn ended(paths: &Paths, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::log!("{}: {}", failure.reason, failure.message);
            write_failure(&paths.termination_log, &failure, |failure| PrepareReport {
                failure,
            });
            ExitCode::FAILURE
        }
    }
}

async fn try_pull(paths: &Paths, vars: &Vars) -> Result<(), Failure> {
    let (request, context) = pull_context(vars).await?;
    unpack_context(paths, vars, &request, &context)
}

async fn pull_context(vars: &Vars) -> Result<(ContextRequest, impl AsRef<[u8]> + use<>), Failure> {
    let request = ContextRequest::from_vars(vars)?;
    let context = context::pull(&request, vars).await?;
    Ok((request, context))
}

async fn try_build(paths: &Paths, vars: &Vars) -> Result<(), Failure> {
    let image = append::Image::from_vars(vars);
    // Creates the socket even if the variables of the image are invalid or the pull fails, because `prepare` waits for the socket.
    let (listener, pulled) = tokio::join!(HandoverListener::listen(paths), pull_context(vars));
    let (listener, (request, context), image) = (listener?, pulled?, image?);
    unpack_context(paths, vars, &request, &context)?;
    listener.prepared().await?;
    let digest = image.push(paths, vars).await?;
    // Writes the digest for users. The operator reads the digest from the registry.
    let _ = fs::write(&paths.termination_log, digest.as_str());
    Ok(())
}

async fn prepare_redacted(paths: &Paths, vars: &Vars, commands: &Commands) -> Result<(), Failure> {
    let prepared = try_prepare(paths, vars, commands).await;
    redacted(&commands.redactor, prepared)
}

/// Prepares the folders for the builder from the unpacked context.
async fn try_prepare(paths: &Paths, vars: &Vars, commands: &Commands) -> Result<(), Failure> {
    let request = ModuleRequest::from_vars(vars);
    let folders = BuildFolders::new(paths);
    let directory = module_directory(&folders.module, &request.path)
        .filter(|path| path.is_dir())
        .ok_or_else(|| {
            user(
                Reason::PathNotFound,
                format!("the context has no folder {:?}", request.path),
            )
        })?;
    let mut environment = environment(paths, vars).map_err(unwritten)?;
    let credentials = git::GitCredentials::read(vars);
    let access = credentials.open(&environment)?;
    environment.extend(
        access
            .iter()
            .flat_map(|access| access.environment().clone()),
    );
    let tokens = RegistryTokens::read(vars);
    environment.extend(tokens.environment()?);
    let modules = modules(&request, &folders.module, &directory);
    let initialised =
        initialise(paths, commands, environment, &request, &directory, &modules).await;
    // Processes that `init` started and that still run could change the files while the next steps check and copy the files.
    if !commands.processes.end_all(LAST_PROCESS).await {
        let message = "failed to kill the processes that init left behind";
        return Err(transient(Reason::PrepareFailed, message));
    }
    initialised.map_err(|failure| tokens.explain(failure))?;
    drop(access);
    for module in &modules {
        module_sources::check(module)?;
        let providers = providers::Providers {
            installed: module.join(".terraform/providers"),
            base: paths.base_providers.clone(),
            target: folders.providers.clone(),
            at_run_time: paths.providers.clone(),
        };
        providers.gather().map_err(unwritten)?;
    }
    for module in modules.iter().filter(|module| **module != directory) {
        // The wrapper copies the module without the data folder.
        let data = module.join(".terraform");
        fs::remove_dir_all(data)
            .or_else(ignore_missing)
            .map_err(unwritten)?;
    }
    finish::finish(&folders, &directory).map_err(unwritten)?;
    let marks: Vec<_> = credentials
        .marks()
        .into_iter()
        .chain(tokens.marks())
        .collect();
    leak::check(&marks, LAYERS.iter().map(|layer| folders.source(layer)))
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Returns the folders in which `init` runs: `directory`, the folder of the module, or, with a wrapper, the local modules that its configuration
/// names. `root`: folder of the context.
fn modules(request: &ModuleRequest, root: &Path, directory: &Path) -> Vec<PathBuf> {
    let named = request
        .wrapper
        .map(|wrapper| local_modules(wrapper, root, &request.path))
        .unwrap_or_default();
    match (request.wrapper, named.is_empty()) {
        (Some(wrapper), false) => {
            crate::log!(
                "the configuration of {wrapper} names {} local modules",
                named.len()
            );
            named
        }
        _ => vec![directory.to_owned()],
    }
}

fn environment(paths: &Paths, vars: &Vars) -> io::Result<Vars> {
    fs::create_dir_all(&paths.work)?;
    let mirrors = [Mirror::read(&paths.base_providers)];
    let config = read_cli_config(vars);
    let text = engine::cli_config(&mirrors, config.as_ref());
    fs::write(paths.cli_config(), text)?;
    let mut environment = crate::engine::environment(vars, paths);
    environment.extend(certificates::write_bundle(
        vars,
        &paths.work.join("trusted.crt"),
    )?);
    environment.remove(certificates::BUNDLE);
    environment.remove(git::BUNDLE);
    environment.remove(cli_config::VARIABLE);
    Ok(environment)
}

async fn initialise(
    paths: &Paths,
    commands: &Commands,
    mut environment: Vars,
    request: &ModuleRequest,
    directory: &Path,
    modules: &[PathBuf],
) -> Result<(), Failure> {
    let (engine, _) = find_programs(&environment, request.wrapper, "the base image")?;
    let local = paths.work.join("provider-cache");
    let cache = ProviderCache::open(&paths.cache, local, directory).await;
    // Without checksums in the dependency lock file, no package on the cache volume can be verified.
    let cache = cache.filter(ProviderCache::is_useful);
    if let Some(cache) = &cache {
        environment.extend(cache.environment());
    }
    let backend = request
        .backend
        .as_deref()
        .filter(|_| !backend::has_own_block(directory));
    let mut arguments: Vec<OsString> = vec!["init".into(), NO_COLOR.into(), "-input=false".into()];
    match backend {
        None => arguments.push("-backend=false".into()),
        Some(kind) => {
            backend::write_block(directory, Some(kind)).map_err(unwritten)?;
            environment.extend(empty_state::serve().await.map_err(unwritten)?);
        }
    }
    for module in modules {
        copy_lock_file(directory, module).map_err(unwritten)?;
        let (arguments, environment) = (arguments.clone(), environment.clone());
        run_init(commands, &engine, arguments, environment, module).await?;
    }
    if let Some(cache) = cache {
        cache.store().await;
    }
    record_engine_version(commands, &engine, environment, directory).await?;
    match backend {
        Some(kind) => mark(directory, kind, &engine).map_err(unwritten),
        None => Ok(()),
    }
}

/// Copies the dependency lock file of `directory` to the folder `module`, as a wrapper does before each command.
fn copy_lock_file(directory: &Path, module: &Path) -> io::Result<()> {
    let file = directory.join(lock_file::FILE);
    if module == directory || !file.is_file() {
        return Ok(());
    }
    fs::copy(file, module.join(lock_file::FILE)).map(drop)
}

async fn run_init(
    commands: &Commands,
    engine: &EngineProgram,
    arguments: Vec<OsString>,
    environment: Vars,
    directory: &Path,
) -> Result<(), Failure> {
    crate::log!("{} init", engine.name());
    let task = Task {
        program: engine.program.clone(),
        arguments,
        directory: directory.to_owned(),
        environment,
        stop_policy: StopPolicy::Quick,
        deadline: Instant::now() + PATIENCE,
        show: Show::Log,
    };
    let finished = commands.run(task).await.map_err(|error| {
        user(
            Reason::EngineNotStarted,
            format!("failed to start {}: {error}", engine.name()),
        )
    })?;
    match (finished.code, finished.cause) {
        (Some(0), _) => Ok(()),
        (Some(code), None) => Err(classify(RunStep::Init, code, &finished.stderr)),
        (None, None) | (_, Some(_)) => Err(transient(Reason::Interrupted, INTERRUPTED)),
    }
}

/// Records name and version of the engine, so that runs of this image need not query the version.
async fn record_engine_version(
    commands: &Commands,
    engine: &EngineProgram,
    environment: Vars,
    directory: &Path,
) -> Result<(), Failure> {
    let task = Task {
        program: engine.program.clone(),
        arguments: vec!["version".into(), "-json".into()],
        directory: directory.to_owned(),
        environment,
        stop_policy: StopPolicy::Quick,
        deadline: Instant::now() + PATIENCE,
        show: Show::Caller,
    };
    let output = commands.run(task).await.ok();
    let version = output.and_then(|finished| engine::version(&finished.stdout));
    let Some(version) = version else {
        crate::log!("failed to determine the version of {}", engine.name());
        return Ok(());
    };
    let engine = alustan_api::Engine {
        name: engine.kind,
        version,
    };
    engine::write_prepared_engine(directory, &engine).map_err(unwritten)
}

/// Records that runs of this image with the backend type `kind` need no `init`.
fn mark(directory: &Path, kind: &str, engine: &EngineProgram) -> io::Result<()> {
    let prepared = Prepared {
        backend: kind.to_owned(),
        engine: engine.name().to_owned(),
    };
    fs::write(directory.join(backend::MARKER), to_json(&prepared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_environment_git_and_docker_are_masked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        fs::write(folder.path().join("password"), "swordfish").unwrap();
        let config = r#"{"auths": {"a.test": {"identitytoken": "identity-token-1"}}}"#;
        fs::write(folder.path().join("config.json"), config).unwrap();
        let vars = Vars::from([
            ("ALUSTAN_GIT_CREDENTIALS".to_owned(), path.clone()),
            ("DOCKER_CONFIG".to_owned(), path),
            ("HTTPS_PROXY".to_owned(), "http://me:hidden@proxy:1".into()),
        ]);
        for secret in ["swordfish", "identity-token-1", "hidden"] {
            assert_eq!(redactor(&vars).text(secret), "(redacted)");
        }
    }
}
