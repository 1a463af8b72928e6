//! Wrapper of the engine (`spec.engine.wrapper`): its program, its arguments and its environment.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use alustan_api::report::Failure;
use alustan_api::{Reason, WrapperName};
use alustan_source::corpus::Repository;
use serde::Deserialize;

use super::EngineProgram;
use crate::failure::user;
use crate::paths::{Paths, Vars};

/// Search path of an environment without `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Log format of Terragrunt without the time, so that a repeated failure has the same message.
const LOG_FORMAT: &str =
    "%level(case=upper,width=6)%prefix(path=short-relative,suffix=' ')%msg(path=relative)";

/// Wrapper in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrapperProgram {
    /// Path of the program.
    pub program: PathBuf,
    /// Name of the wrapper.
    pub name: WrapperName,
}

/// Output of `terragrunt info print`.
#[derive(Deserialize)]
struct Info {
    working_dir: PathBuf,
}

impl WrapperProgram {
    /// Finds the program of the wrapper on a search path in the format of `PATH`.
    ///
    /// # Errors
    /// The image does not have the wrapper.
    fn needed(name: WrapperName, search_path: &str) -> Result<Self, Failure> {
        let mut paths = std::env::split_paths(search_path).map(|folder| folder.join(name.as_str()));
        let program = paths.find(|path| path.is_file()).ok_or_else(|| {
            let message = format!(
                "spec.engine.wrapper: the image has no `{name}` in PATH; add {name} to the image of \
                 spec.containerRegistry.baseImage, or remove baseImage to use the catalogue of the operator"
            );
            user(Reason::EngineNotFound, message)
        })?;
        Ok(Self { program, name })
    }

    /// Returns the arguments with which the wrapper runs a command of the engine.
    pub fn arguments(&self, engine: Vec<OsString>) -> Vec<OsString> {
        match self.name {
            WrapperName::Terragrunt => ["run", "--"]
                .into_iter()
                .map(OsString::from)
                .chain(engine)
                .collect(),
        }
    }

    /// Returns the arguments with which the wrapper prints the folder in which it runs the engine.
    pub fn info_arguments(&self) -> Vec<OsString> {
        match self.name {
            WrapperName::Terragrunt => ["info", "print"].map(OsString::from).into(),
        }
    }

    /// Parses the output of [`Self::info_arguments`].
    pub fn working_directory(&self, output: &[u8]) -> Option<PathBuf> {
        let Info { working_dir } = serde_json::from_slice(output).ok()?;
        working_dir.is_dir().then_some(working_dir)
    }

    /// Returns environment variables with which the wrapper calls `engine`, asks no questions, prints the output of the engine unchanged,
    /// and leaves `init` and retries to the runner and the operator.
    pub fn environment(&self, engine: &EngineProgram, paths: &Paths) -> Vars {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let vars = match self.name {
            WrapperName::Terragrunt => [
                ("TG_TF_PATH", text(&engine.program)),
                ("TG_DOWNLOAD_DIR", text(&paths.work.join("terragrunt"))),
                ("TG_NON_INTERACTIVE", "true".to_owned()),
                ("TG_TF_FORWARD_STDOUT", "true".to_owned()),
                ("TG_NO_AUTO_INIT", "true".to_owned()),
                ("TG_NO_AUTO_RETRY", "true".to_owned()),
                // The engine uses the providers in the image.
                ("TG_NO_AUTO_PROVIDER_CACHE_DIR", "true".to_owned()),
                ("TG_NO_COLOR", "true".to_owned()),
                ("TG_NO_TIPS", "true".to_owned()),
                ("TG_LOG_CUSTOM_FORMAT", LOG_FORMAT.to_owned()),
            ],
        };
        vars.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// Returns the folders of the local modules that the configuration of `wrapper` names. `root`: folder of the context. `module`: path of the module
/// in the context.
pub fn local_modules(wrapper: WrapperName, root: &Path, module: &str) -> Vec<PathBuf> {
    let context = Repository::read(root).map_err(|error| error.to_string());
    let modules = context.and_then(|context| {
        let modules = context.local_modules_of_wrapper(module, wrapper);
        modules.map_err(|error| error.to_string())
    });
    let modules = modules.unwrap_or_else(|error| {
        crate::log!("failed to find the module of {wrapper}: {error}");
        BTreeSet::new()
    });
    modules.iter().map(|path| root.join(path)).collect()
}

/// Returns the engine, and the program of `wrapper`, from the search path in `vars`. `image`: the image for messages.
///
/// # Errors
/// The image does not have a program.
pub fn find_programs(
    vars: &Vars,
    wrapper: Option<WrapperName>,
    image: &str,
) -> Result<(EngineProgram, Option<WrapperProgram>), Failure> {
    let search_path = vars.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let engine = EngineProgram::find(search_path).ok_or_else(|| {
        let message = format!("{image} has no `terraform` in PATH");
        user(Reason::EngineNotFound, message)
    })?;
    let wrapper = wrapper.map(|name| WrapperProgram::needed(name, search_path));
    Ok((engine, wrapper.transpose()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn local_module_of_the_unit_is_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write(
            "root.hcl",
            "terraform {\n  source = \"${get_repo_root()}/modules//app\"\n}\n",
        );
        write(
            "live/app/terragrunt.hcl",
            "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\n",
        );
        write("modules/app/main.tf", "");
        let found = local_modules(WrapperName::Terragrunt, root.path(), "live/app");
        assert_eq!(found, [root.path().join("modules/app")]);
        assert!(local_modules(WrapperName::Terragrunt, root.path(), "missing").is_empty());
    }

    #[test]
    fn working_directory_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        let wrapper = WrapperProgram {
            program: "terragrunt".into(),
            name: WrapperName::Terragrunt,
        };
        let info = |path: &Path| serde_json::json!({"working_dir": path}).to_string();
        let read = |text: &str| wrapper.working_directory(text.as_bytes());
        assert_eq!(read(&info(folder.path())).as_deref(), Some(folder.path()));
        assert_eq!(read(&info(&folder.path().join("x"))), None);
        assert_eq!(read("nonsense"), None);
    }
}
