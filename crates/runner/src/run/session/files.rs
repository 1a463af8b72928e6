//! Files that the runner writes for a run, and environment variables with their paths.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use alustan_api::Reason;
use alustan_api::cli_config::CliConfig;
use alustan_api::report::Failure;
use alustan_api::run::RunInputs;

use crate::certificates;
use crate::engine::arguments::add_to_scripts;
use crate::engine::script::ScriptCommands;
use crate::engine::{Mirror, cli_config};
use crate::failure::{transient, user};
use crate::file_system::{file_in_context, write_private};
use crate::module::declarations::Declared;
use crate::module::tfvars;
use crate::module::variables::Values;
use crate::paths::{Paths, Vars};
use crate::state::backend;

/// Returns the paths of the files in `spec.varFiles`. `directory`: folder of the module.
///
/// # Errors
/// Fails if the context does not contain a file.
pub(super) fn var_files(
    paths: &Paths,
    directory: &Path,
    inputs: &RunInputs,
) -> Result<Vec<PathBuf>, Failure> {
    let root = paths.module_copy();
    let found = |file: &String| {
        file_in_context(&root, directory, file)
            .filter(|path| path.is_file())
            .ok_or_else(|| {
                let message = format!("spec.varFiles: the context has no file {file:?}");
                user(Reason::VarFileNotFound, message)
            })
    };
    inputs.var_files.iter().map(found).collect()
}

/// Writes the files of a run. `directory`: folder of the module. `var_files`: paths of the files in `spec.varFiles`. `config`: operator-wide CLI
/// configuration.
pub(super) fn write_files(
    paths: &Paths,
    directory: &Path,
    inputs: &RunInputs,
    values: &Values,
    declared: &BTreeMap<String, Declared>,
    var_files: &[PathBuf],
    config: Option<&CliConfig>,
) -> Result<(ScriptCommands, Option<PathBuf>), Failure> {
    let write = || {
        let block = inputs
            .backend
            .kind
            .as_deref()
            .filter(|_| inputs.backend.write_block);
        backend::write_block(directory, block)?;
        let tfvars = tfvars::tfvars(values, declared, !var_files.is_empty());
        if !tfvars.is_empty() {
            write_private(
                &directory.join(tfvars::FILE),
                &tfvars::to_text(&tfvars),
                0o600,
            )?;
        }
        let mirrors = [
            Mirror::read(&paths.providers),
            Mirror::read(&paths.base_providers),
        ];
        write_private(
            &paths.cli_config(),
            cli_config(&mirrors, config).as_bytes(),
            0o644,
        )?;
        let config = backend::write_config(&paths.work, &inputs.backend)?;
        let scripts = ScriptCommands::write(&paths.work, &inputs.scripts)?;
        if scripts.any() {
            copy_var_files(directory, var_files)?;
        }
        Ok::<_, std::io::Error>((scripts, config))
    };
    write().map_err(|error| unwritten(&error))
}

/// Copies the variable files into the folder of the module under names that the engine loads without an argument, so that every engine
/// command of a script uses them. The names sort after the files of the module and before [`tfvars::FILE`].
fn copy_var_files(directory: &Path, var_files: &[PathBuf]) -> std::io::Result<()> {
    for (number, file) in var_files.iter().enumerate() {
        let is_json = file
            .extension()
            .is_some_and(|extension| extension == "json");
        let extension = if is_json { "tfvars.json" } else { "tfvars" };
        let copy = directory.join(format!("zzz-alustan-{number:02}.auto.{extension}"));
        // A file of this name in the repository may be a link to another file, which the copy would overwrite.
        match std::fs::remove_file(&copy) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::copy(file, copy)?;
    }
    Ok(())
}

fn unwritten(error: &std::io::Error) -> Failure {
    transient(
        Reason::WorkspaceFailed,
        format!("failed to write the working directory: {error}"),
    )
}

/// Returns the environment of scripts: `environment`, the paths of the files that scripts write, and arguments of engine commands.
pub(super) fn for_scripts(
    environment: &Vars,
    paths: &Paths,
    backend_config: Option<&Path>,
    inputs: &RunInputs,
) -> Vars {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut vars = environment.clone();
    vars.extend([
        ("ALUSTAN_PLAN_FILE".to_owned(), text(paths.plan_file())),
        (
            "ALUSTAN_OUTPUTS_FILE".to_owned(),
            text(paths.outputs_file()),
        ),
    ]);
    if let Some(config) = backend_config {
        let argument = backend_argument(config).to_string_lossy().into_owned();
        vars.insert("TF_CLI_ARGS_init".to_owned(), argument);
    }
    add_to_scripts(&mut vars, &inputs.engine_arguments);
    vars
}

pub(super) fn backend_argument(config: &Path) -> OsString {
    let mut argument = OsString::from("-backend-config=");
    argument.push(config);
    argument
}

pub(super) fn trusted(vars: &Vars, paths: &Paths) -> Result<Vars, Failure> {
    certificates::write_bundle(vars, &paths.work.join("trusted.crt"))
        .map_err(|error| unwritten(&error))
}
