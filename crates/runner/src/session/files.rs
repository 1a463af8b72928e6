//! Files that the runner writes for a run, and environment variables with their paths.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::RunInputs;

use crate::backend;
use crate::certificates;
use crate::engine::{Mirror, cli_config};
use crate::failure::world;
use crate::layout::{Layout, Vars};
use crate::script::Scripts;
use crate::variables::{self, Declared};
use crate::workspace::write_private;

pub(super) fn write_files(
    layout: &Layout,
    directory: &Path,
    inputs: &RunInputs,
    values: &variables::Values,
    declared: &BTreeMap<String, Declared>,
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
            write_private(
                &directory.join(variables::FILE),
                &variables::to_text(&tfvars),
                0o600,
            )?;
        }
        let mirrors = [
            Mirror::read(&layout.providers),
            Mirror::read(&layout.base_providers),
        ];
        write_private(&layout.cli_config(), cli_config(&mirrors).as_bytes(), 0o644)?;
        let config = backend::write_config(&layout.work, &inputs.backend)?;
        Ok::<_, std::io::Error>((Scripts::write(&layout.work, &inputs.scripts)?, config))
    };
    write().map_err(|error| unwritten(&error))
}

fn unwritten(error: &std::io::Error) -> Failure {
    world(
        Reason::WorkspaceFailed,
        format!("failed to write the workspace: {error}"),
    )
}

pub(super) fn for_scripts(layout: &Layout, backend_config: Option<&Path>) -> Vars {
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

pub(super) fn backend_argument(config: &Path) -> OsString {
    let mut argument = OsString::from("-backend-config=");
    argument.push(config);
    argument
}

pub(super) fn trusted(vars: &Vars, layout: &Layout) -> Result<Vars, Failure> {
    certificates::write_bundle(vars, &layout.work.join("trusted.crt"))
        .map_err(|error| unwritten(&error))
}
