//! Runner part of a build: from the context artifact to the folders that become layers of the runner image, and with builder kind Append to
//! the image itself.
//!
//! Runs unprivileged in the base image. Git credentials never reach the builder or a layer (rule 2). All files are the same for the same
//! inputs, so that an unchanged layer is not pushed again.

mod append;
mod dockerfile;
mod empty_state;
mod finish;
mod git;
mod place;
mod providers;
mod registry_access;
mod request;

pub use request::Request;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use alustan_api::report::{Failure, PrepareReport};
use alustan_registry::ImageRef;
use alustan_source::{UnpackLimits, unpack};

use crate::backend::{self, Prepared};
use crate::command::{Commands, Ending, Show, Task};
use crate::engine::{self, Engine, Mirror, NO_COLOR, cli_config};
use crate::failure::{Step, chain, classify, module, user, world};
use crate::layout::{Layout, Vars};
use crate::record::to_json;
use crate::redact::Redactor;
use crate::report::write_failure;
use crate::secret_values::of_environment;
use crate::workspace::module_directory;
use crate::{cache, certificates};

use place::{Place, unwritten};
use registry_access::{access, of_registry, registry};

/// Time limit of an engine command, including downloads of providers and modules.
const PATIENCE: Duration = Duration::from_mins(30);

/// Prepares the context for a builder. Writes a failure to the termination message.
pub async fn prepare(layout: &Layout, vars: &Vars, commands: Commands) -> ExitCode {
    let commands = redacting(vars, commands);
    let prepared = try_prepare(layout, vars, &commands).await;
    ended(layout, &commands.redactor, prepared)
}

/// Prepares the context, appends it to the base image and pushes the result. The termination message contains the digest of the image, or
/// the failure.
pub async fn build(layout: &Layout, vars: &Vars, commands: Commands) -> ExitCode {
    let commands = redacting(vars, commands);
    let built = try_build(layout, vars, &commands).await;
    ended(layout, &commands.redactor, built)
}

/// Returns `commands` that mask the secret values of the container.
fn redacting(vars: &Vars, commands: Commands) -> Commands {
    Commands {
        redactor: redactor(vars),
        ..commands
    }
}

/// Returns a redactor of the secret values of the environment, of the credentials of the repository and of the docker configuration. The
/// registry client does not reveal the output of a successful credential helper.
fn redactor(vars: &Vars) -> Redactor {
    let secrets = of_environment(vars, &BTreeSet::new()).into_iter();
    let git = git::Credentials::read(vars).secrets();
    Redactor::new(secrets.chain(git).chain(registry_access::secrets(vars)))
}

fn ended(layout: &Layout, redactor: &Redactor, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = redactor.failure(failure);
            crate::say!("{}: {}", failure.reason, failure.message);
            write_failure(&layout.termination_log, &failure, |failure| PrepareReport {
                failure,
            });
            ExitCode::FAILURE
        }
    }
}

async fn try_prepare(layout: &Layout, vars: &Vars, commands: &Commands) -> Result<(), Failure> {
    let request = Request::from_vars(vars)?;
    let bytes = pull(&request, vars).await?;
    prepare_context(layout, vars, commands, &request, &bytes).await
}

async fn try_build(layout: &Layout, vars: &Vars, commands: &Commands) -> Result<(), Failure> {
    let image = append::Image::from_vars(vars)?;
    try_prepare(layout, vars, commands).await?;
    let digest = image.push(layout, vars).await?;
    // Informational; the operator reads the digest from the registry.
    let _ = fs::write(&layout.termination_log, digest.as_str());
    Ok(())
}

async fn pull(request: &Request, vars: &Vars) -> Result<impl AsRef<[u8]> + use<>, Failure> {
    crate::say!("pulling the context {}", request.context);
    let image = ImageRef::parse(&request.context).map_err(|error| of_registry(&error))?;
    let digest = image.digest().cloned().ok_or_else(|| {
        module(
            "PrepareFailed",
            format!("{} is not named by its digest", request.context),
        )
    })?;
    registry(vars)?
        .pull_context(
            image.name(),
            &digest,
            &access(&image, image.name().registry(), vars)?,
        )
        .await
        .map_err(|error| of_registry(&error))
}

/// Prepares the folders for the builder from the bytes of the context.
pub async fn prepare_context(
    layout: &Layout,
    vars: &Vars,
    commands: &Commands,
    request: &Request,
    context: &impl AsRef<[u8]>,
) -> Result<(), Failure> {
    let place = Place::new(layout);
    place.make().map_err(unwritten)?;
    unpack(context.as_ref(), &place.module, &UnpackLimits::default())
        .map_err(|error| module(error.reason(), chain(&error)))?;
    let directory = module_directory(&place.module, &request.path)
        .filter(|it| it.is_dir())
        .ok_or_else(|| {
            user(
                "PathNotFound",
                format!("the context has no folder {:?}", request.path),
            )
        })?;
    let before = request.before.as_deref();
    let before = before.map(|path| dockerfile::read(&place.module, path));
    let dockerfile = match before.transpose()? {
        Some(before) => format!("{}\n{}", before.trim_end(), request.dockerfile),
        None => request.dockerfile.clone(),
    };
    let mut environment = environment(layout, vars, &place).map_err(unwritten)?;
    let access = git::Credentials::read(vars).open(&environment)?;
    environment.extend(access.iter().flat_map(|it| it.environment().clone()));
    initialise(layout, commands, environment, request, &directory).await?;
    drop(access);
    let providers = providers::Providers {
        found: directory.join(".terraform/providers"),
        base: layout.base_providers.clone(),
        target: place.providers.clone(),
        at_run_time: layout.providers.clone(),
    };
    providers.gather().map_err(unwritten)?;
    finish::finish(&place, request, &dockerfile, vars, &directory).map_err(unwritten)
}

fn environment(layout: &Layout, vars: &Vars, place: &Place) -> io::Result<Vars> {
    let mut layout = layout.clone();
    layout.work.clone_from(&place.root);
    let mirrors = [Mirror::read(&layout.base_providers)];
    fs::write(layout.cli_config(), cli_config(&mirrors))?;
    let mut environment = crate::engine::environment(vars, &layout);
    environment.extend(certificates::write_bundle(
        vars,
        &place.root.join("trusted.crt"),
    )?);
    environment.remove("ALUSTAN_DOCKERFILE");
    environment.remove(certificates::BUNDLE);
    environment.remove(git::BUNDLE);
    Ok(environment)
}

async fn initialise(
    layout: &Layout,
    commands: &Commands,
    mut environment: Vars,
    request: &Request,
    directory: &Path,
) -> Result<(), Failure> {
    let search_path = environment
        .get("PATH")
        .map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
    let engine = Engine::find(search_path).ok_or_else(|| {
        user(
            "EngineNotFound",
            "the base image has no program `terraform` on its PATH",
        )
    })?;
    let cache = cache::Lock::try_take(&layout.cache);
    if cache.is_some() {
        environment.extend(cache::environment(&layout.cache));
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
    run_init(commands, &engine, arguments, environment.clone(), directory).await?;
    tell_engine(commands, &engine, environment, directory).await?;
    match backend {
        Some(kind) => mark(directory, kind, &engine).map_err(unwritten),
        None => Ok(()),
    }
}

async fn run_init(
    commands: &Commands,
    engine: &Engine,
    arguments: Vec<OsString>,
    environment: Vars,
    directory: &Path,
) -> Result<(), Failure> {
    crate::say!("{} init", engine.name());
    let task = Task {
        program: engine.program.clone(),
        arguments,
        directory: directory.to_owned(),
        environment,
        ending: Ending::Quick,
        deadline: Instant::now() + PATIENCE,
        show: Show::Log,
    };
    let finished = commands.run(task).await.map_err(|error| {
        user(
            "EngineNotStarted",
            format!("{} did not start: {error}", engine.name()),
        )
    })?;
    match (finished.code, finished.cause) {
        (Some(0), _) => Ok(()),
        (_, Some(_)) => Err(world("Interrupted", "init was stopped before it was done")),
        (code, None) => Err(classify(Step::Init, code.unwrap_or(-1), &finished.stderr)),
    }
}

/// Records the engine for the runs of this image, so that they need not query its version.
async fn tell_engine(
    commands: &Commands,
    engine: &Engine,
    environment: Vars,
    directory: &Path,
) -> Result<(), Failure> {
    let task = Task {
        program: engine.program.clone(),
        arguments: vec!["version".into(), "-json".into()],
        directory: directory.to_owned(),
        environment,
        ending: Ending::Quick,
        deadline: Instant::now() + PATIENCE,
        show: Show::Caller,
    };
    let said = commands.run(task).await.ok();
    let version = said.and_then(|finished| engine::version(&finished.stdout));
    let Some(version) = version else {
        crate::say!("{} does not tell its version", engine.name());
        return Ok(());
    };
    let told = alustan_api::Engine {
        name: engine.kind(),
        version,
    };
    engine::tell(directory, &told).map_err(unwritten)
}

/// Records that runs of this image need no `init`.
fn mark(directory: &Path, kind: &str, engine: &Engine) -> io::Result<()> {
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
