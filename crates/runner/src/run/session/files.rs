//! Files that the runner writes for a run, and environment variables with their paths.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::RunInputs;

use crate::certificates;
use crate::engine::script::ScriptCommands;
use crate::engine::{Mirror, cli_config};
use crate::failure::transient;
use crate::module::declarations::Declared;
use crate::module::tfvars;
use crate::module::variables::Values;
use crate::paths::{Paths, Vars};
use crate::state::backend;
use crate::workspace::write_private;

pub(super) fn write_files(
    paths: &Paths,
    directory: &Path,
    inputs: &RunInputs,
    values: &Values,
    declared: &BTreeMap<String, Declared>,
) -> Result<(ScriptCommands, Option<PathBuf>), Failure> {
    let write = || {
        let block = inputs
            .backend
            .kind
            .as_deref()
            .filter(|_| inputs.backend.write_block);
        backend::write_block(directory, block)?;
        let tfvars = tfvars::tfvars(values, declared);
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
        write_private(&paths.cli_config(), cli_config(&mirrors).as_bytes(), 0o644)?;
        let config = backend::write_config(&paths.work, &inputs.backend)?;
        Ok::<_, std::io::Error>((ScriptCommands::write(&paths.work, &inputs.scripts)?, config))
    };
    write().map_err(|error| unwritten(&error))
}

fn unwritten(error: &std::io::Error) -> Failure {
    transient(
        Reason::WorkspaceFailed,
        format!("failed to write the working directory: {error}"),
    )
}

pub(super) fn for_scripts(paths: &Paths, backend_config: Option<&Path>) -> Vars {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut vars = Vars::from([
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
