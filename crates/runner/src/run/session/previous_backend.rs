//! Reads the state in the previous backend of the resource, for a migration. Uses the environment variables of the previous backend. Does
//! not change the state in the previous backend.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::{BackendInputs, OwnBackend, RunInputs};

use super::command_result::judge;
use super::state::open_store;
use super::{Session, workspace};
use crate::engine::NO_COLOR;
use crate::engine::command::{Show, StopPolicy, Task};
use crate::failure::{RunStep, module, transient, user};
use crate::paths::Vars;
use crate::state::backend::{BLOCK_FILE, write_bare_module};

/// Environment variables of the engine that apply only to the module of the run. They are not set for commands in the previous backend.
const OF_THE_MODULE: [&str; 2] = ["TF_DATA_DIR", "TF_CLI_ARGS_init"];

impl Session {
    /// Returns the state in the backend `old`; empty if there is no state.
    pub(crate) async fn state_at(&self, old: &BackendInputs) -> Result<Vec<u8>, Failure> {
        if old.managed.is_some() {
            let inputs = RunInputs {
                backend: old.clone(),
                ..self.inputs.clone()
            };
            let store = open_store(&inputs, &self.secrets, &self.record).await?;
            let Some(store) = store else {
                return Ok(Vec::new());
            };
            let state = store.get().await;
            return Ok(state.map(|state| state.to_vec()).unwrap_or_default());
        }
        let block = self.block_of(old)?;
        let directory = self.paths.work.join("old-place");
        // Removes the folder on return, because it contains credentials of the previous backend.
        let _cleared = Cleared(&directory);
        write_bare_module(&directory, &block).map_err(unwritten)?;
        self.run_at(&directory, old, &["init", NO_COLOR, "-input=false"])
            .await?;
        // Without a `backend` block, the engine migrates the state to a local file, and holds the lock during the copy.
        fs::write(directory.join(BLOCK_FILE), "{}").map_err(unwritten)?;
        let migrate = [
            "init",
            NO_COLOR,
            "-input=false",
            "-migrate-state",
            "-force-copy",
        ];
        self.run_at(&directory, old, &migrate).await?;
        match fs::read(self.copy_in(&directory, old)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(unwritten),
        }
    }

    /// Returns the `backend` block of the previous backend `old`. If the operator configured the backend, builds the block from `old`. If
    /// the module configured the backend, returns the block that an earlier run recorded.
    fn block_of(&self, old: &BackendInputs) -> Result<OwnBackend, Failure> {
        let kind = old.kind.clone().filter(|_| old.write_block);
        let own_backend = kind.map(|kind| OwnBackend {
            kind,
            config: old.whole_config(),
        });
        own_backend
            .or_else(|| self.claimed.own_backend.clone())
            .ok_or_else(|| {
                user(
                    Reason::MigrationFailed,
                    "a backend block of the module configured the previous location of the state, and the \
                     configuration is not known. Nothing was changed. Move the state manually with `init \
                     -migrate-state`, from the previous version of the module to the current one",
                )
            })
    }

    /// Returns the path of the file to which the engine copies the state in the backend `old`.
    fn copy_in(&self, directory: &Path, old: &BackendInputs) -> PathBuf {
        let variable = self.bare_environment.get(workspace::VARIABLE);
        let folder = old
            .workspace
            .as_ref()
            .or(variable)
            .filter(|name| alustan_backends::is_other_workspace(name))
            .map(|name| Path::new("terraform.tfstate.d").join(name));
        directory
            .join(folder.unwrap_or_default())
            .join("terraform.tfstate")
    }

    async fn run_at(
        &self,
        directory: &Path,
        old: &BackendInputs,
        arguments: &[&str],
    ) -> Result<(), Failure> {
        crate::log!(
            "{} {} (at the previous location of the state)",
            self.engine.name(),
            arguments.join(" ")
        );
        let mut environment: Vars = self.bare_environment.clone();
        for name in OF_THE_MODULE {
            environment.remove(name);
        }
        environment.extend(old.environment.clone());
        environment.extend(workspace::workspace(old));
        let task = Task {
            program: self.engine.program.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            directory: directory.to_owned(),
            environment,
            stop_policy: StopPolicy::Quick,
            deadline: self.plan_deadline(),
            show: Show::Log,
        };
        let finished = self.commands.run(task).await.map_err(|error| {
            let name = self.engine.name();
            module(
                Reason::EngineNotStarted,
                format!("failed to start {name}: {error}"),
            )
        })?;
        judge(RunStep::Migrate, &finished, &[0])?;
        Ok(())
    }
}

/// Folder that is removed on drop.
struct Cleared<'a>(&'a Path);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        let gone = fs::remove_dir_all(self.0);
        if let Err(error) = gone.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }) {
            crate::log!(
                "failed to remove {}: {error}. The folder remains until the pod is deleted",
                self.0.display()
            );
        }
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers pass the function to map_err"
)]
fn unwritten(error: io::Error) -> Failure {
    let message = format!("failed to write the working directory: {error}");
    transient(Reason::WorkspaceFailed, message)
}
