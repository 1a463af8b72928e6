//! Refuses a module into which `init` copied the credentials of the git repository: the image would contain the credentials (rule 2).
//!
//! `init` copies the credential files if their path is the `source` of a module call. The check finds plain, escaped and base64-encoded
//! copies, but no other encoding.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use alustan_api::Reason;
use alustan_api::report::Failure;

use crate::failure::{transient, user};
use crate::secrets::redact::Redactor;

/// Maximum size of a file that is searched for credentials, in bytes. Larger files are skipped.
const MAX_BYTES: u64 = 1 << 20;

/// Checks that no file in `folders` contains one of `marks` (see [`GitCredentials::marks`](super::git::GitCredentials::marks)).
pub(super) fn check(marks: &[String], folders: [&Path; 2]) -> Result<(), Failure> {
    if marks.is_empty() {
        return Ok(());
    }
    let marks = Redactor::new(marks);
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        if let Some(file) = find(folder, &marks).map_err(|error| unread(&error))? {
            let message = format!(
                "init copied the credentials of spec.gitRepo into {}: remove the module source that refers to the \
                 credential files",
                file.display()
            );
            return Err(user(Reason::ModuleInvalid, message));
        }
    }
    Ok(())
}

fn unread(error: &io::Error) -> Failure {
    let message = format!("failed to read the prepared module: {error}");
    transient(Reason::PrepareFailed, message)
}

/// Returns the first file in `folder` that contains one of `marks`. Follows no symbolic links.
fn find(folder: &Path, marks: &Redactor) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        let file = if metadata.is_dir() {
            find(&path, marks)?
        } else if metadata.is_file() && metadata.len() <= MAX_BYTES && contains(&path, marks)? {
            Some(path)
        } else {
            None
        };
        if file.is_some() {
            return Ok(file);
        }
    }
    Ok(None)
}

fn contains(file: &Path, marks: &Redactor) -> io::Result<bool> {
    let bytes = fs::read(file)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(marks.text(&text) != text)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rstest::rstest;

    use super::*;

    const TOKEN: &str = "glpat/0123456789";

    /// Returns the failure of a module that contains a file with `content`.
    fn failure_of(content: &str) -> Option<Failure> {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("modules/x");
        fs::create_dir_all(&module).unwrap();
        fs::write(module.join("file"), content).unwrap();
        let absent = folder.path().join("absent");
        check(&[TOKEN.to_owned()], [folder.path(), &absent]).err()
    }

    #[rstest]
    #[case::plain("password = glpat/0123456789\n")]
    #[case::in_an_address(r#"{"Source": "http://a.test/glpat%2F0123456789"}"#)]
    #[case::in_base64(&STANDARD.encode(format!("git:{TOKEN}")))]
    fn copied_credentials_are_refused(#[case] content: &str) {
        let failure = failure_of(content).unwrap();
        assert_eq!(failure.reason, "ModuleInvalid");
        assert!(failure.message.contains("modules/x/file"));
        assert!(!failure.message.contains(TOKEN));
    }

    #[test]
    fn other_files_are_accepted() {
        assert_eq!(failure_of("output \"a\" {}\n"), None);
        let large = format!("{}{TOKEN}", " ".repeat(1 << 20));
        assert_eq!(failure_of(&large), None);
        assert_eq!(check(&[], [Path::new("/"), Path::new("/")]), Ok(()));
    }
}
