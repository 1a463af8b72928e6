//! Refuses modules that `init` copied from the file system of the build pod.
//!
//! The operator refuses such sources in the files that it reads (`alustan_source`). This check also covers remote modules, override files, and
//! sources that the engine computes.

use std::path::Path;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_source::is_host_path;

use crate::failure::user;
use crate::module::manifest::installed_modules;

/// Checks that no installed module of the root module in `directory` comes from the file system of the pod.
pub(super) fn check(directory: &Path) -> Result<(), Failure> {
    let modules = installed_modules(directory).map_err(|error| {
        let message = format!("failed to read the manifest of the installed modules: {error}");
        user(Reason::ModuleInvalid, message)
    })?;
    let Some(module) = modules.iter().find(|module| is_host_path(&module.source)) else {
        return Ok(());
    };
    let message = format!(
        "module {:?}: source {:?} is a path outside of the repository; set a relative path such as \
         ./modules/network, or a git, registry or https source",
        module.key, module.source
    );
    Err(user(Reason::ModuleSourceNotAllowed, message))
}
