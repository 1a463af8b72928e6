//! Contexts: the files of a repository that a run or a build needs.

use std::fmt;

use alustan_api::WrapperName;
use sha2::{Digest, Sha256};
use tempfile::TempPath;

use crate::{
    closure::invalid_var_file, commit_info::CommitInfo, error::Error, reference::Revision,
    repopath, url::RepositoryUrl,
};

/// Returns whether submodules may be fetched from a repository. Allow lists for repositories apply to submodules as well.
pub type Allows<'a> = &'a (dyn Fn(&RepositoryUrl) -> bool + Send + Sync);

/// Returns the revision that the caller currently wants. Called again after each wait, for another fetch and for a permit to read, so that
/// the request reads the newest revision.
pub type Newest<'a> = &'a (dyn Fn() -> Revision + Send + Sync);

/// Part of a repository that a context contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContextSpec {
    /// Folder of the module, relative to the folder of the URL (`//subdir`) of a git repository, or to the root of another source.
    pub path: Option<String>,
    /// Additional files and folders for the context, with paths from the root of the repository.
    pub include: Vec<String>,
    /// Files with values of variables (`spec.varFiles`), with paths from the folder of the module.
    pub var_files: Vec<String>,
    /// Whether to fetch git submodules.
    pub submodules: bool,
    /// Wrapper whose configuration determines further files.
    pub wrapper: Option<WrapperName>,
}

impl ContextSpec {
    /// Returns the folder of the module in the repository; `""` for its root.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] if the path is absolute or contains `..`.
    pub fn module_path(&self, url: &RepositoryUrl) -> Result<String, Error> {
        let path = self.folder()?;
        let parts = [url.subdir().unwrap_or_default(), &path];
        Ok(parts
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("/"))
    }

    /// Returns [`Self::path`] without empty components and `.`; `""` without a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] if the path is absolute or contains `..`.
    pub(crate) fn folder(&self) -> Result<String, Error> {
        relative(self.path.as_deref().unwrap_or_default())
    }

    pub(crate) fn includes(&self) -> Result<Vec<String>, Error> {
        self.include.iter().map(|path| relative(path)).collect()
    }

    /// Returns the paths of the variable files from the folder of the module.
    ///
    /// # Errors
    /// [`Error::InvalidVarFile`] if a path is absolute or contains control characters.
    pub(crate) fn valid_var_files(&self) -> Result<&[String], Error> {
        for path in &self.var_files {
            if path.starts_with('/') {
                return Err(invalid_var_file(path, "is absolute"));
            }
            if path.chars().any(char::is_control) {
                return Err(invalid_var_file(path, "contains control characters"));
            }
        }
        Ok(&self.var_files)
    }
}

fn relative(path: &str) -> Result<String, Error> {
    let refuse = |why: String| Error::InvalidPath {
        path: path.escape_debug().to_string(),
        why,
    };
    if path.starts_with('/') {
        return Err(refuse("is absolute".into()));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(refuse("contains `..`".into()));
    }
    repopath::normalise(path).map_err(refuse)
}

/// Name of a context: `sha256:` and the digest of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextDigest(String);

impl ContextDigest {
    /// Returns the digest of the bytes of a context.
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_hash(Sha256::new_with_prefix(bytes))
    }

    /// Returns the digest of the bytes that `hash` has read.
    pub(crate) fn of_hash(hash: Sha256) -> Self {
        Self(format!("sha256:{}", hex::encode(hash.finalize())))
    }

    /// Returns the digest as text, with `sha256:`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the 64 hexadecimal digits.
    pub fn hex(&self) -> &str {
        self.0.strip_prefix("sha256:").unwrap_or(&self.0)
    }
}

impl fmt::Display for ContextDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A deterministic tar.gz of the files that a module needs. The same content gives the same bytes, independent of the commit.
///
/// Entries are sorted and keep their paths from the root of the repository. Times, user ids and group ids are zero. Modes are 0644 or 0755
/// for files, and 0777 for links.
#[derive(Debug)]
pub struct Context {
    /// Digest of the tar.gz.
    pub digest: ContextDigest,
    /// Size of the tar.gz, in bytes.
    pub size: u64,
    /// The tar.gz, in a file that is deleted on drop; `None` if the cache has packed the same files before.
    pub archive: Option<TempPath>,
    /// Folder of the root module in the context; `""` for its root.
    pub module_path: String,
    /// Type of the `backend` block of the root module, or `cloud`.
    pub module_backend: Option<String>,
    /// Header and subject of the commit. Not part of the tar.gz.
    pub commit: CommitInfo,
    /// Number of files and links.
    pub files: usize,
    /// Size of the files before compression, in bytes.
    pub uncompressed: u64,
    /// Submodules in the included folders that are not in the context, because [`ContextSpec::submodules`] is false.
    pub submodules: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str, path: Option<&str>) -> Result<String, Error> {
        let spec = ContextSpec {
            path: path.map(str::to_owned),
            ..ContextSpec::default()
        };
        spec.module_path(&RepositoryUrl::parse(url)?)
    }

    #[test]
    fn folder_in_the_url_precedes_the_path() {
        assert_eq!(path("https://h/r//a", Some("b/./c/")).unwrap(), "a/b/c");
        assert_eq!(path("https://h/r", Some("b")).unwrap(), "b");
        assert_eq!(path("https://h/r//a", None).unwrap(), "a");
        assert_eq!(path("https://h/r", Some(".")).unwrap(), "");
    }

    #[test]
    fn paths_that_leave_the_repository_are_refused() {
        for bad in ["..", "a/../../b", "/etc", "a/../b", "a\nb"] {
            let error = path("https://h/r", Some(bad)).unwrap_err();
            assert_eq!(
                (error.reason().as_str(), error.is_transient()),
                ("InvalidPath", false),
                "{bad}"
            );
            let spec = ContextSpec {
                include: vec!["good".to_owned(), bad.to_owned()],
                ..ContextSpec::default()
            };
            let error = spec.includes().unwrap_err();
            assert_eq!(error.reason().as_str(), "InvalidPath", "{bad}");
        }
    }

    #[test]
    fn invalid_paths_of_variable_files_are_refused() {
        for (bad, why) in [
            ("/etc/x.tfvars", "is absolute"),
            ("a\nb.tfvars", "contains control characters"),
        ] {
            let spec = ContextSpec {
                var_files: vec!["../good.tfvars".to_owned(), bad.to_owned()],
                ..ContextSpec::default()
            };
            let error = spec.valid_var_files().unwrap_err();
            assert_eq!(error.reason().as_str(), "InvalidPath", "{bad}");
            let text = error.to_string();
            assert!(
                text.contains("spec.varFiles") && text.contains(why),
                "{text}"
            );
        }
    }
}
