//! Arguments of engine commands from the spec of the resource.

use std::ffi::OsString;

use super::Session;
use crate::engine::arguments::{of_change, of_plan, parallelism};
use crate::module::tfvars;

impl Session {
    /// Returns the `-var-file` arguments of `plan` and `destroy`: the files in `spec.varFiles`, and last the generated file with the values of
    /// `spec.variables` and `spec.variablesFrom`, which take precedence. Returns none without `spec.varFiles`: the engine loads the generated
    /// file without an argument.
    pub(crate) fn var_file_arguments(&self) -> Vec<OsString> {
        let generated = self.directory.join(tfvars::FILE);
        let has_generated = !self.var_files.is_empty() && generated.is_file();
        let files = self
            .var_files
            .iter()
            .map(|path| path.as_os_str().to_owned());
        files
            .chain(has_generated.then(|| tfvars::FILE.into()))
            .map(|file| {
                let mut argument = OsString::from("-var-file=");
                argument.push(file);
                argument
            })
            .collect()
    }

    /// Returns the arguments in `spec.engine` for a plan.
    pub(crate) fn plan_arguments(&self) -> impl Iterator<Item = OsString> {
        of_plan(&self.inputs.engine_arguments).map(Into::into)
    }

    /// Returns the arguments in `spec.engine` for a destroy plan, which always reads the real objects.
    pub(crate) fn destroy_plan_arguments(&self) -> impl Iterator<Item = OsString> {
        parallelism(&self.inputs.engine_arguments)
            .into_iter()
            .map(Into::into)
    }

    /// Returns the arguments in `spec.engine` for a command that changes objects.
    pub(crate) fn change_arguments(&self) -> impl Iterator<Item = OsString> {
        of_change(&self.inputs.engine_arguments).map(Into::into)
    }
}
