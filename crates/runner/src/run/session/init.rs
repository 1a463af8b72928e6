//! Preparation of the working directory for the engine: checks that the module has a configuration, creates the bucket and the lock table of
//! the state, and runs `init`.

use std::ffi::OsString;
use std::io;
use std::time::Instant;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_api::run::{Lineage, RunKind};

use super::files::backend_argument;
use super::{Session, workspace};
use crate::engine::command::{Show, StopPolicy, Task};
use crate::engine::wrapper::WrapperProgram;
use crate::engine::{NO_COLOR, lock_file};
use crate::failure::{RunStep, transient, user};
use crate::log;
use crate::module::files;
use crate::paths::Vars;
use crate::state::backend;

/// Arguments with credentials of the engine's `s3` backend, and the corresponding environment variables of the AWS SDK.
const AWS_CREDENTIALS: [(&str, &str); 3] = [
    ("access_key", "AWS_ACCESS_KEY_ID"),
    ("secret_key", "AWS_SECRET_ACCESS_KEY"),
    ("token", "AWS_SESSION_TOKEN"),
];

impl Session {
    /// Runs `init`, unless the image build ran `init` for this backend.
    pub(crate) async fn init(&self) -> Result<(), Failure> {
        let deadline = self.plan_deadline();
        if let Some(script) = &self.scripts.init {
            self.bootstrap(deadline).await?;
            self.script("init", script, StopPolicy::Quick, deadline, &[0])
                .await?;
            return self.refuse_empty_module();
        }
        self.refuse_empty_module()?;
        self.bootstrap(deadline).await?;
        if self.wrapper.is_some() {
            self.make_repository(deadline).await?;
        }
        if self.wrapper.is_some() || !backend::is_prepared(&self.directory, &self.inputs.backend) {
            self.run_init(deadline).await?;
        }
        if let Some(wrapper) = &self.wrapper {
            self.find_engine_directory(wrapper, deadline).await?;
        }
        self.trust_image();
        Ok(())
    }

    /// Fails if the module has no configuration files. The engine would refuse an empty folder, but accepts a folder with only the files
    /// that the runner writes, and would destroy all objects.
    fn refuse_empty_module(&self) -> Result<(), Failure> {
        if self.destroys() || self.may_lack_configuration() {
            return Ok(());
        }
        match self.has_configuration() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.no_configuration()),
            Err(error) => Err(transient(
                Reason::WorkspaceFailed,
                format!("failed to read the module: {error}"),
            )),
        }
    }

    /// Whether the module has configuration files. With a wrapper or `scripts.apply`, also returns true for files of a wrapper such as
    /// `terragrunt.hcl`, because the wrapper copies or generates configuration files.
    fn has_configuration(&self) -> io::Result<bool> {
        let ours = [backend::BLOCK_FILE];
        if files::has_configuration(&self.directory, self.engine.kind, &ours)? {
            return Ok(true);
        }
        let is_wrapped = self.wrapper.is_some() || self.scripts.apply.is_some();
        Ok(is_wrapped && files::has_wrapper_configuration(&self.directory)?)
    }

    /// Whether the module may lack configuration files, because scripts read the configuration from another location. True with
    /// `scripts.plan`, because the plan is evaluated before apply. With `scripts.apply` alone there is no plan: if the configuration was
    /// lost after an earlier apply, the next apply would destroy all objects. Therefore, true with `scripts.apply` alone only if no run has
    /// changed objects yet, or if the removal of all objects needs no approval.
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
            ". If scripts.apply uses a configuration in another folder, set \
             spec.approval.emptying: Allow"
        } else {
            ""
        };
        user(
            Reason::NoConfiguration,
            format!(
                "{folder} has no configuration files (*.tf, *.tf.json; with OpenTofu also *.tofu; with a wrapper also \
                 terragrunt.hcl). Nothing was applied and nothing was destroyed. Restore the files, or correct spec.gitRepo.path or spec.source; to destroy everything, delete the resource{elsewhere}"
            ),
        )
    }

    /// Creates an empty git repository in the root of the context, where Terragrunt searches the root of the repository (`get_repo_root()`).
    async fn make_repository(&self, deadline: Instant) -> Result<(), Failure> {
        let directory = self.paths.module_copy();
        if directory.join(".git").exists() {
            return Ok(());
        }
        let task = Task {
            program: "git".into(),
            arguments: ["init", "--quiet"].map(Into::into).into(),
            directory,
            environment: self.environment.clone(),
            stop_policy: StopPolicy::Quick,
            deadline,
            show: Show::Log,
        };
        let unmade = |why: String| {
            let message =
                format!("failed to create a git repository in the working directory: {why}");
            transient(Reason::WorkspaceFailed, message)
        };
        let finished = self.commands.run(task).await;
        let finished = finished.map_err(|error| unmade(error.to_string()))?;
        match finished.code {
            Some(0) => Ok(()),
            _ => Err(unmade(finished.stderr)),
        }
    }

    /// Records the folder in which `wrapper` runs the engine.
    ///
    /// # Errors
    /// The wrapper does not print the folder. Without it, the run can neither check the ownership of the state nor save an unsaved state.
    async fn find_engine_directory(
        &self,
        wrapper: &WrapperProgram,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let task = Task {
            program: wrapper.program.clone(),
            arguments: wrapper.info_arguments(),
            directory: self.directory.clone(),
            environment: self.environment.clone(),
            stop_policy: StopPolicy::Quick,
            deadline,
            show: Show::Caller,
        };
        let finished = self.commands.run(task).await;
        let unknown = |why: &str| {
            let name = wrapper.name;
            let message = format!("failed to determine the working directory of {name}: {why}");
            transient(Reason::WorkspaceFailed, message)
        };
        let finished = finished.map_err(|error| unknown(&error.to_string()))?;
        let directory = wrapper.working_directory(&finished.stdout);
        let directory = directory.ok_or_else(|| unknown(&finished.stderr))?;
        drop(self.wrapped_directory.set(directory));
        Ok(())
    }

    /// Removes the checksums of providers in the image from the dependency lock file. Keeps the checksums if scripts or a wrapper are
    /// configured: they may call `init`, which needs the original lock file.
    fn trust_image(&self) {
        if self.scripts.any() || self.wrapper.is_some() {
            return;
        }
        if let Err(error) = lock_file::trust_image(&self.directory, &self.paths) {
            log!("failed to skip the verification of provider checksums: {error}");
        }
    }

    /// Creates the bucket and the lock table of the state. Does not create a bucket that contained the state before: a new bucket would be
    /// empty, and an apply would create every object again.
    async fn bootstrap(&self, deadline: Instant) -> Result<(), Failure> {
        let kind = self.claimed.run.as_ref().map(|run| run.kind);
        let wanted = matches!(kind, Some(RunKind::Plan | RunKind::Apply));
        let Some(location) = self.inputs.backend.bootstrap.as_ref() else {
            return Ok(());
        };
        let address = alustan_backends::address_of(&self.inputs.backend);
        let was_here = self.claimed.state_address == address;
        let only_table = was_here && self.claimed.lineage != Lineage::Unknown;
        let needless = only_table && location.table.is_none();
        if needless || !wanted || self.inputs.approval.destroy {
            return Ok(());
        }
        let location = serde_json::to_string(location)
            .map_err(|error| user(Reason::BootstrapFailed, error.to_string()))?;
        let mut arguments: Vec<OsString> = vec!["bootstrap".into(), location.into()];
        arguments.extend(only_table.then(|| "--only-table".into()));
        let task = Task {
            program: self.paths.runner.clone(),
            arguments,
            directory: self.directory.clone(),
            environment: self.bootstrap_environment(),
            stop_policy: StopPolicy::Quick,
            deadline,
            show: Show::Log,
        };
        let finished = self.commands.run(task).await.map_err(|error| {
            let message = format!(
                "failed to start the creation of bucket and lock table (spec.backend.bootstrap): \
                 {error}"
            );
            transient(Reason::BootstrapFailed, message)
        })?;
        self.judged(RunStep::Bootstrap, &finished, &[0]).map(drop)
    }

    /// Returns the environment of the engine, and the credentials of the backend configuration as environment variables of the AWS SDK.
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
        if backend::has_resolved(self.engine_directory()) {
            arguments.push("-reconfigure".into());
        }
        arguments.extend(self.backend_config.as_deref().map(backend_argument));
        let done = self
            .engine(
                RunStep::Init,
                arguments.clone(),
                StopPolicy::Quick,
                deadline,
                &[0],
            )
            .await;
        match done {
            Err(failure) if workspace::is_missing(&failure, &self.inputs.backend) => {
                self.init_without_workspace(arguments, deadline).await
            }
            done => done.map(drop),
        }
    }

    /// Runs `init` in the workspace `default`. If a backend has other workspaces, `init` refuses to select a missing workspace. All later
    /// commands accept a missing workspace, and the first write of the state creates it.
    async fn init_without_workspace(
        &self,
        arguments: Vec<OsString>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let name = self.inputs.backend.workspace.as_deref();
        log!(
            "the backend does not have workspace {} yet; the engine creates it",
            name.unwrap_or_default()
        );
        let mut environment = self.environment.clone();
        environment.remove(workspace::VARIABLE);
        let run = || {
            let (arguments, environment) = (arguments.clone(), environment.clone());
            self.run_engine_in(
                environment,
                arguments,
                StopPolicy::Quick,
                deadline,
                Show::Log,
            )
        };
        self.run_freed(RunStep::Init, run, &[0]).await.map(drop)
    }
}
