//! The user's scripts in place of the engine's commands.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::workspace::write_private;

/// A script that is ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The program: the script itself, or the shell.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// Writes the script `name`. One without a `#!` line is run by `bash -e`.
pub fn write_script(work: &Path, name: &str, text: &str) -> io::Result<Script> {
    let file = work.join(format!("script-{name}"));
    write_private(&file, text.as_bytes(), 0o700)?;
    if text.starts_with("#!") {
        Ok(Script {
            program: file,
            arguments: Vec::new(),
        })
    } else {
        Ok(Script {
            program: "bash".into(),
            arguments: vec!["-e".into(), file.into()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_runs_by_its_first_line_or_by_bash() {
        let work = tempfile::tempdir().unwrap();
        let file = work.path().join("script-plan");
        let own = write_script(work.path(), "plan", "#!/bin/sh\nexit 2\n").unwrap();
        assert_eq!(
            own,
            Script {
                program: file.clone(),
                arguments: Vec::new()
            }
        );
        let bash = write_script(work.path(), "plan", "exit 2\n").unwrap();
        assert_eq!(bash.program, Path::new("bash"));
        assert_eq!(bash.arguments, ["-e".into(), file.into_os_string()]);
    }
}
