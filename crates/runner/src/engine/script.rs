//! Scripts of the user that replace commands of the engine.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use alustan_api::run::ScriptTexts;

use crate::file_system::write_private;

/// Command that executes a script of the user. The script is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCommand {
    /// Program to start: the file of the script, or `bash`.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
}

/// Scripts of the user, written to files.
#[derive(Default)]
pub struct ScriptCommands {
    /// Script that replaces the engine command `init`.
    pub init: Option<ScriptCommand>,
    /// Script that replaces the engine command `plan`.
    pub plan: Option<ScriptCommand>,
    /// Script that replaces the engine command `apply`.
    pub apply: Option<ScriptCommand>,
    /// Script that replaces the engine command `destroy`.
    pub destroy: Option<ScriptCommand>,
}

impl ScriptCommands {
    /// Writes the configured scripts to `work`.
    pub fn write(work: &Path, texts: &ScriptTexts) -> io::Result<Self> {
        let script = |name: &str, text: &Option<String>| {
            text.as_deref()
                .map(|text| write_script(work, name, text))
                .transpose()
        };
        Ok(Self {
            init: script("init", &texts.init)?,
            plan: script("plan", &texts.plan)?,
            apply: script("apply", &texts.apply)?,
            destroy: script("destroy", &texts.destroy)?,
        })
    }

    /// Whether any script is configured.
    pub fn any(&self) -> bool {
        [&self.init, &self.plan, &self.apply, &self.destroy]
            .into_iter()
            .any(Option::is_some)
    }
}

/// Writes the script `name` to a file in `work`. A script without a `#!` line is executed by `bash -e`.
pub fn write_script(work: &Path, name: &str, text: &str) -> io::Result<ScriptCommand> {
    let file = work.join(format!("script-{name}"));
    write_private(&file, text.as_bytes(), 0o700)?;
    if text.starts_with("#!") {
        Ok(ScriptCommand {
            program: file,
            arguments: Vec::new(),
        })
    } else {
        Ok(ScriptCommand {
            program: "bash".into(),
            arguments: vec!["-e".into(), file.into()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_runs_with_its_shebang_or_bash() {
        let work = tempfile::tempdir().unwrap();
        let file = work.path().join("script-plan");
        let own = write_script(work.path(), "plan", "#!/bin/sh\nexit 2\n").unwrap();
        assert_eq!(
            own,
            ScriptCommand {
                program: file.clone(),
                arguments: Vec::new()
            }
        );
        let bash = write_script(work.path(), "plan", "exit 2\n").unwrap();
        assert_eq!(bash.program, Path::new("bash"));
        assert_eq!(bash.arguments, ["-e".into(), file.into_os_string()]);
    }
}
