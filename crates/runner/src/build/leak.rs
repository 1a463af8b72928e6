//! Refuses a module with credentials of the build in its files: the image would contain the credentials (rule 2).
//!
//! `init` copies the credential files if their path is the `source` of a module call, or the address that a registry or a web server returns
//! for a module. The check finds plain, escaped and base64-encoded copies, but no other encoding.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use aho_corasick::AhoCorasick;
use alustan_api::Reason;
use alustan_api::report::Failure;

use crate::failure::{transient, user};
use crate::secrets::redact::shapes;

/// Minimum length of a mark, in bytes. A shorter text may occur by chance in a file without credentials.
pub(super) const MIN_MARK_BYTES: usize = 12;

/// Text that a file contains only if credentials were copied into it. Does not implement `Debug`, so that the text cannot be printed.
pub(super) struct Mark {
    /// The credentials and their field in the resource, for messages.
    pub(super) origin: String,
    /// At least [`MIN_MARK_BYTES`] bytes.
    pub(super) text: String,
}

/// Checks that no file in `folders` contains one of `marks`. Searches files of any size. Follows no symbolic links.
pub(super) fn check(
    marks: &[Mark],
    folders: impl IntoIterator<Item = PathBuf>,
) -> Result<(), Failure> {
    if marks.is_empty() {
        return Ok(());
    }
    let (patterns, owners): (Vec<_>, Vec<_>) = marks
        .iter()
        .flat_map(|mark| {
            shapes(&mark.text)
                .into_iter()
                .map(move |shape| (shape, mark))
        })
        .unzip();
    let searched = AhoCorasick::new(patterns).map_err(|error| unsearched(&error.to_string()))?;
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        let found = find(&folder, &searched).map_err(|error| unsearched(&error.to_string()))?;
        if let Some((file, pattern)) = found {
            let file = file.strip_prefix(&folder).unwrap_or(&file).display();
            let origin = owners
                .get(pattern)
                .map_or("credentials", |mark| mark.origin.as_str());
            let message = format!(
                "{file} contains {origin}, and the image would contain the file: remove the module source that leads to the \
                 credentials, or remove the credentials from the repository"
            );
            return Err(user(Reason::CredentialsInImage, message));
        }
    }
    Ok(())
}

fn unsearched(error: &str) -> Failure {
    let message = format!("failed to search the prepared module for credentials: {error}");
    transient(Reason::PrepareFailed, message)
}

/// Returns the first file in `folder` that contains one of the patterns, and the index of the pattern.
fn find(folder: &Path, patterns: &AhoCorasick) -> io::Result<Option<(PathBuf, usize)>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        let found = if metadata.is_dir() {
            find(&path, patterns)?
        } else if metadata.is_file() {
            let first = patterns.stream_find_iter(File::open(&path)?).next();
            let first = first.transpose()?;
            first.map(|first| (path, first.pattern().as_usize()))
        } else {
            None
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rstest::rstest;

    use super::*;

    const TOKEN: &str = "glpat/0123456789";

    fn marks() -> [Mark; 2] {
        [("spec.other", "another-token-0"), ("spec.field", TOKEN)].map(|(origin, text)| Mark {
            origin: format!("the token in {origin}"),
            text: text.to_owned(),
        })
    }

    /// Returns the failure of a module that contains a file with `content`.
    fn failure_of(content: &[u8]) -> Option<Failure> {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("modules/x");
        fs::create_dir_all(&module).unwrap();
        fs::write(module.join("file"), content).unwrap();
        let absent = folder.path().join("absent");
        check(&marks(), [absent, folder.path().to_owned()]).err()
    }

    #[rstest]
    #[case::plain("password = glpat/0123456789\n".into())]
    #[case::in_an_address(r#"{"Source": "http://a.test/glpat%2F0123456789"}"#.into())]
    #[case::in_base64(STANDARD.encode(format!("git:{TOKEN}")).into())]
    #[case::in_a_binary([b"\0\xff", TOKEN.as_bytes(), b"\0"].concat())]
    #[case::in_a_large_file(format!("{}{TOKEN}", " ".repeat((3 << 20) - 7)).into())]
    fn copied_credentials_are_refused(#[case] content: Vec<u8>) {
        let failure = failure_of(&content).unwrap();
        assert_eq!(failure.reason, Reason::CredentialsInImage);
        let start = "modules/x/file contains the token in spec.field, ";
        assert!(failure.message.starts_with(start), "{}", failure.message);
        assert!(!failure.message.contains(TOKEN));
    }

    #[test]
    fn other_files_are_accepted() {
        assert_eq!(failure_of(b"output \"a\" {}\n"), None);
        assert_eq!(failure_of(&TOKEN.as_bytes()[1..]), None);
        assert_eq!(check(&[], [PathBuf::from("/")]), Ok(()));
        // The search must not follow a link out of the folder, or in a cycle.
        let folder = tempfile::tempdir().unwrap();
        let secret = tempfile::tempdir().unwrap();
        fs::write(secret.path().join("token"), TOKEN).unwrap();
        std::os::unix::fs::symlink(secret.path(), folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("cycle")).unwrap();
        assert_eq!(check(&marks(), [folder.path().to_owned()]), Ok(()));
    }
}
