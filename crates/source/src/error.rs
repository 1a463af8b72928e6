//! Errors of git repositories, references and contexts.

mod git_failure;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use alustan_api::Reason;

pub use git_failure::GitFailure;

/// Error of resolving a reference, or of packing a context.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is invalid.
    #[error("invalid git URL `{url}`: {why}")]
    InvalidUrl {
        /// URL without user and password.
        url: String,
        /// Reason for which the URL is invalid.
        why: String,
    },
    /// Git does not accept the name of a branch, tag or commit.
    #[error("invalid git reference `{name}`: {why}")]
    InvalidReference {
        /// Name of the reference, with special characters escaped.
        name: String,
        /// Reason for which the name is invalid.
        why: &'static str,
    },
    /// A path is not a valid path in the repository.
    #[error("invalid path `{path}`: the path {why}; set a folder in the repository")]
    InvalidPath {
        /// Invalid path, with special characters escaped.
        path: String,
        /// Reason for which the path is invalid.
        why: String,
    },
    /// An entry of `spec.varFiles` is not a valid path in the repository.
    #[error(
        "spec.varFiles: the path `{path}` {why}; set a path relative to the folder of the module"
    )]
    InvalidVarFile {
        /// Invalid path, with special characters escaped.
        path: String,
        /// Reason for which the path is invalid.
        why: &'static str,
    },
    /// The commit does not have a file of `spec.varFiles`.
    #[error("spec.varFiles: there is no file `{path}`{why}")]
    VarFileNotFound {
        /// Path from the root of the repository.
        path: String,
        /// Additional reason with a leading space, or empty.
        why: &'static str,
    },
    /// The path does not exist in the repository.
    #[error("path `{path}` does not exist")]
    PathNotFound {
        /// Path from the root of the repository.
        path: String,
    },
    /// A source other than a git repository is invalid.
    #[error("{field}: {why}")]
    InvalidSource {
        /// Field below `spec`.
        field: &'static str,
        /// Reason for which the value is invalid.
        why: String,
    },
    /// The content of an artifact is damaged, or has an entry that is not allowed.
    #[error("the artifact cannot be used: {why}; push another artifact")]
    InvalidArtifact {
        /// Reason for which the artifact cannot be used.
        why: String,
    },
    /// The content of an artifact exceeds a limit.
    #[error("the artifact contains more than {limit} {unit}; move large files out of the artifact")]
    ArtifactTooLarge {
        /// Limit, in `unit`.
        limit: u64,
        /// Unit of the limit: `bytes` or `entries`.
        unit: &'static str,
    },
    /// The repository does not have the branch or tag.
    #[error("{reference} does not exist in {remote}{}", default.as_ref().map(|name| format!("; its default branch is {name}")).unwrap_or_default())]
    ReferenceNotFound {
        /// Missing reference, for example `branch main`.
        reference: String,
        /// Whether the reference is a tag.
        is_tag: bool,
        /// URL of the repository.
        remote: String,
        /// Default branch, if the host reports it.
        default: Option<String>,
    },
    /// `HEAD` of the repository points to no commit.
    #[error("{remote} is empty or its default branch does not exist; push a commit")]
    RepositoryEmpty {
        /// URL of the repository.
        remote: String,
    },
    /// A commit requested by id is not available.
    #[error(
        "commit {commit} is not available from {remote}: no branch or tag contains it, and the \
         host does not serve it by its id; set a commit of a branch, or push a branch or tag that \
         contains this commit"
    )]
    CommitNotFound {
        /// Id of the missing commit.
        commit: String,
        /// URL of the repository.
        remote: String,
    },
    /// The reference moved between its resolution and the fetch.
    #[error("{reference} of {remote} no longer points to commit {commit}; retried automatically")]
    CommitGone {
        /// Commit to which the reference was resolved.
        commit: String,
        /// Reference that moved.
        reference: String,
        /// URL of the repository.
        remote: String,
    },
    /// The URL requires an ssh key, and the resource has none.
    #[error("no ssh key for {remote}: set `gitRepo.sshKeySecret` to a Secret with a private key")]
    SshKeyMissing {
        /// URL of the repository.
        remote: String,
    },
    /// The private key is invalid.
    #[error("invalid ssh key: {why}")]
    SshKeyInvalid {
        /// Reason for which the key is invalid.
        why: &'static str,
    },
    /// The private key has a passphrase.
    #[error(
        "the ssh key has a passphrase: create a deploy key without a passphrase (`ssh-keygen -t \
         ed25519 -N ''`)"
    )]
    SshKeyEncrypted,
    /// A git command failed.
    #[error(
        "failed to {action} {remote}: {failure}{}; {}",
        detail_of(detail),
        failure.advice(remote)
    )]
    Git {
        /// Failed action, as a verb phrase for the message: `fetch from`, `create`.
        action: &'static str,
        /// URL of the repository.
        remote: String,
        /// Category of the failure.
        failure: GitFailure,
        /// Last lines of git's output, without credentials.
        detail: String,
    },
    /// A git command exceeded its time limit and was killed with all its children.
    #[error(
        "failed to {action} {remote}: timed out after {} s; retried automatically",
        after.as_secs()
    )]
    Timeout {
        /// Failed action, as a verb phrase for the message: `fetch from`, `create`.
        action: &'static str,
        /// URL of the repository.
        remote: String,
        /// Timeout of the action.
        after: Duration,
    },
    /// The source of a local module leads out of the repository.
    #[error("{file}:{line}: module \"{module}\": source `{source_path}` leaves the repository")]
    PathLeavesRepository {
        /// File with the `module` block.
        file: String,
        /// Line of the `module` block, from 1; 0 in a JSON file.
        line: usize,
        /// Name of the `module` block.
        module: String,
        /// Value of `source` in the `module` block.
        source_path: String,
    },
    /// The source of a module is an absolute path or a `file` URL.
    #[error(
        "{file}:{line}: module \"{module}\": source `{source_path}` is a path outside of the repository; set a relative path such as \
         ./modules/network, or a git, registry or https source"
    )]
    ModuleSourceNotAllowed {
        /// File with the `module` block.
        file: String,
        /// Line of the `module` block, from 1; 0 in a JSON file.
        line: usize,
        /// Name of the `module` block.
        module: String,
        /// Value of `source` in the `module` block.
        source_path: String,
    },
    /// The source of a local module is not a folder of the repository.
    #[error(
        "{file}:{line}: module \"{module}\": the repository has no folder `{source_path}`{why}"
    )]
    ModuleNotFound {
        /// File with the `module` block.
        file: String,
        /// Line of the `module` block, from 1; 0 in a JSON file.
        line: usize,
        /// Name of the `module` block.
        module: String,
        /// Value of `source` in the `module` block.
        source_path: String,
        /// Additional reason with a leading space, or empty.
        why: &'static str,
    },
    /// The target of a symbolic link cannot be resolved, or is not one of the files of the module.
    #[error("symbolic link `{link}` -> `{target}` {why}; replace the link with the file")]
    SymlinkLeavesContext {
        /// Path of the link from the root of the repository.
        link: String,
        /// Target of the link, unresolved.
        target: String,
        /// Reason for which the target is refused.
        why: &'static str,
    },
    /// The files of the module exceed a limit.
    #[error(
        "the context of the module has {size} {unit}, more than the limit of {limit}; move large \
         files out of the module, or narrow `gitRepo.path`"
    )]
    ContextTooLarge {
        /// Actual size, in `unit`.
        size: u64,
        /// Unit of `size` and `limit`: `bytes`, `files` or `folders`.
        unit: &'static str,
        /// Limit, in `unit`.
        limit: u64,
    },
    /// A path of the module exceeds the limit.
    #[error(
        "the path of a file of the module is {size} bytes, more than the limit of {limit}: \
         `{beginning}…`; shorten the names of its folders, or narrow `gitRepo.path`"
    )]
    PathTooLong {
        /// Beginning of the path from the root of the repository, escaped.
        beginning: String,
        /// Size of the path, in bytes.
        size: usize,
        /// Maximum size, in bytes.
        limit: usize,
    },
    /// A repository exceeds the size limit of one fetch.
    #[error(
        "{remote} exceeds the limit of {limit} bytes for one fetch; remove large files from the \
         repository, or increase `--git-cache-mib` if it is less than 2048"
    )]
    RepositoryTooLarge {
        /// URL of the repository.
        remote: String,
        /// Exceeded limit, in bytes.
        limit: u64,
    },
    /// The repositories that are being fetched, and therefore cannot be evicted, exceed the size limit of the cache.
    #[error(
        "the git cache of the operator is full: the repositories that are being fetched exceed \
         {limit} bytes in total; retried automatically. To increase the limit, set \
         `--git-cache-mib`"
    )]
    CacheFull {
        /// Exceeded limit, in bytes.
        limit: u64,
    },
    /// A submodule cannot be fetched.
    #[error("submodule `{path}` of {remote}: {why}")]
    Submodule {
        /// Path from the root of the repository.
        path: String,
        /// URL of the superproject.
        remote: String,
        /// Reason for which the submodule cannot be fetched.
        why: String,
    },
    /// A file or folder of the cache cannot be read or written.
    #[error("failed to {action} {}", path.display())]
    Cache {
        /// Failed action, as a verb phrase for the message: `fetch from`, `create`.
        action: &'static str,
        /// Path of the file or folder on which the action failed.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },
    /// The path of the cache contains characters that are not allowed in the ssh command.
    #[error(
        "the path of the cache directory `{}` contains characters other than letters, digits and \
         `/._-`",
        path.display()
    )]
    CacheRoot {
        /// Root folder of the cache.
        path: PathBuf,
    },
    /// The program `git` cannot be started.
    #[error("failed to start `git`: the operator image must have git and ssh in PATH")]
    GitUnavailable {
        /// Error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Returns the reason for conditions, events and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::InvalidUrl { .. } => Reason::InvalidGitUrl,
            Self::InvalidReference { .. } => Reason::InvalidReference,
            Self::InvalidPath { .. } | Self::InvalidVarFile { .. } => Reason::InvalidPath,
            Self::VarFileNotFound { .. } => Reason::VarFileNotFound,
            Self::InvalidSource { .. } => Reason::InvalidSource,
            Self::InvalidArtifact { .. } => Reason::ArtifactInvalid,
            Self::PathNotFound { .. } => Reason::PathNotFound,
            Self::ReferenceNotFound { is_tag: true, .. } => Reason::TagNotFound,
            Self::ReferenceNotFound { is_tag: false, .. } => Reason::BranchNotFound,
            Self::RepositoryEmpty { .. } => Reason::RepositoryEmpty,
            Self::CommitNotFound { .. } => Reason::CommitNotFound,
            Self::CommitGone { .. } => Reason::RevisionMoved,
            Self::SshKeyMissing { .. } => Reason::SshKeyMissing,
            Self::SshKeyInvalid { .. } => Reason::SshKeyInvalid,
            Self::SshKeyEncrypted => Reason::SshKeyEncrypted,
            Self::Git { failure, .. } => failure.reason(),
            Self::Timeout { .. } => Reason::GitTimeout,
            Self::PathLeavesRepository { .. } => Reason::PathLeavesRepository,
            Self::ModuleSourceNotAllowed { .. } => Reason::ModuleSourceNotAllowed,
            Self::ModuleNotFound { .. } => Reason::ModuleNotFound,
            Self::SymlinkLeavesContext { .. } => Reason::SymlinkLeavesContext,
            Self::ContextTooLarge { .. }
            | Self::PathTooLong { .. }
            | Self::ArtifactTooLarge { .. } => Reason::ContextTooLarge,
            Self::RepositoryTooLarge { .. } => Reason::RepositoryTooLarge,
            Self::CacheFull { .. } => Reason::GitCacheFull,
            Self::Submodule { .. } => Reason::SubmoduleUnusable,
            Self::Cache { .. } | Self::CacheRoot { .. } => Reason::GitCacheUnusable,
            Self::GitUnavailable { .. } => Reason::GitUnavailable,
        }
    }

    /// Whether the failure is transient and does not use the retry budget (rule 10).
    pub fn is_transient(&self) -> bool {
        match self {
            Self::CommitGone { .. }
            | Self::Timeout { .. }
            | Self::CacheFull { .. }
            | Self::Cache { .. }
            | Self::CacheRoot { .. }
            | Self::GitUnavailable { .. } => true,
            Self::Git { failure, .. } => failure.is_transient(),
            Self::InvalidUrl { .. }
            | Self::InvalidReference { .. }
            | Self::InvalidPath { .. }
            | Self::InvalidVarFile { .. }
            | Self::VarFileNotFound { .. }
            | Self::InvalidSource { .. }
            | Self::InvalidArtifact { .. }
            | Self::ArtifactTooLarge { .. }
            | Self::PathNotFound { .. }
            | Self::ReferenceNotFound { .. }
            | Self::RepositoryEmpty { .. }
            | Self::CommitNotFound { .. }
            | Self::SshKeyMissing { .. }
            | Self::SshKeyInvalid { .. }
            | Self::SshKeyEncrypted
            | Self::PathLeavesRepository { .. }
            | Self::ModuleSourceNotAllowed { .. }
            | Self::ModuleNotFound { .. }
            | Self::SymlinkLeavesContext { .. }
            | Self::ContextTooLarge { .. }
            | Self::PathTooLong { .. }
            | Self::RepositoryTooLarge { .. }
            | Self::Submodule { .. } => false,
        }
    }
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(" (git: {detail})")
    }
}
