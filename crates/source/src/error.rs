//! Everything that can go wrong between an address and a context, told for people. Pure.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

pub use crate::git::GitFailure;
use crate::reference::Reference;

/// Why there is no revision or no context.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be read.
    #[error("invalid git address `{url}`: {why}")]
    InvalidUrl {
        /// The address without user and password.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Git would not accept the name of a branch, tag or commit.
    #[error("invalid git reference `{name}`: {why}")]
    InvalidReference {
        /// The name, escaped.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A path in the resource cannot be one inside the repository.
    #[error("invalid path `{path}`: it {why}; give a folder inside the repository")]
    InvalidPath {
        /// The path as given, escaped.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The repository has nothing at the path.
    #[error("path `{path}` is not in the repository at commit {commit}")]
    PathNotFound {
        /// Path from the repository's root.
        path: String,
        /// The commit that was looked at.
        commit: String,
    },
    /// The repository has no such branch or tag.
    #[error("{reference} does not exist in {remote}{}", default.as_ref().map(|name| format!("; its default branch is {name}")).unwrap_or_default())]
    ReferenceNotFound {
        /// The reference.
        reference: Reference,
        /// The repository.
        remote: String,
        /// Its default branch, where the host tells it.
        default: Option<String>,
    },
    /// The repository has no commit that its `HEAD` leads to.
    #[error("{remote} is empty, or its default branch does not exist: push a first commit")]
    RepositoryEmpty {
        /// The repository.
        remote: String,
    },
    /// A commit that was asked for by its id is not to be had.
    #[error(
        "commit {commit} is not to be had from {remote}: no branch and no tag holds it (any more), and the host does not hand it out by its id; name a commit of a branch, or push a branch or tag that keeps this one"
    )]
    CommitNotFound {
        /// The commit.
        commit: String,
        /// The repository.
        remote: String,
    },
    /// The reference moved on between being read and being fetched.
    #[error("commit {commit} is no longer at {reference} of {remote}; it is looked up again")]
    CommitGone {
        /// The commit.
        commit: String,
        /// The reference.
        reference: String,
        /// The repository.
        remote: String,
    },
    /// ssh without a key.
    #[error(
        "no ssh key for {remote}: name the Secret with a private key in `gitRepo.sshKeySecret`"
    )]
    SshKeyMissing {
        /// The repository.
        remote: String,
    },
    /// What should be a private key is none.
    #[error("the ssh key cannot be used: {why}")]
    SshKeyInvalid {
        /// What is wrong with it.
        why: &'static str,
    },
    /// The private key has a passphrase.
    #[error(
        "the ssh key has a passphrase, and nobody is there to type it: make a deploy key without one (`ssh-keygen -t ed25519 -N ''`)"
    )]
    SshKeyEncrypted,
    /// Git failed.
    #[error("could not {action} {remote}: {failure}{}; {}", detail_of(detail), failure.advice(remote))]
    Git {
        /// What git was to do.
        action: &'static str,
        /// The repository.
        remote: String,
        /// What kind of fault it was.
        failure: GitFailure,
        /// Git's own last lines, without credentials.
        detail: String,
    },
    /// Git took too long; it and all its children were killed.
    #[error("could not {action} {remote}: no end after {} s; it is tried again", after.as_secs())]
    Timeout {
        /// What git was to do.
        action: &'static str,
        /// The repository.
        remote: String,
        /// The limit.
        after: Duration,
    },
    /// A local module's source climbs out of the repository.
    #[error("{file}:{line}: module \"{module}\": source `{source_path}` leaves the repository")]
    PathLeavesRepository {
        /// The file with the block.
        file: String,
        /// Line of the block, from 1; 0 in JSON.
        line: usize,
        /// Name of the block.
        module: String,
        /// The source as written.
        source_path: String,
    },
    /// A local module's source is no folder of the repository.
    #[error(
        "{file}:{line}: module \"{module}\": the repository has no folder `{source_path}`{why}"
    )]
    ModuleNotFound {
        /// The file with the block.
        file: String,
        /// Line of the block, from 1; 0 in JSON.
        line: usize,
        /// Name of the block.
        module: String,
        /// The source as written.
        source_path: String,
        /// More about it, with its own leading space.
        why: &'static str,
    },
    /// A symbolic link points out of what the module may see.
    #[error("symbolic link `{link}` -> `{target}` {why}; put the file itself into the module")]
    SymlinkLeavesContext {
        /// Path of the link from the repository's root.
        link: String,
        /// Where it points, as written.
        target: String,
        /// What is wrong with the target.
        why: &'static str,
    },
    /// What the module needs is larger than allowed.
    #[error(
        "the module needs {size} {unit}, more than the limit of {limit}; large files do not belong next to a module, or `gitRepo.path` names too much"
    )]
    ContextTooLarge {
        /// How much it is.
        size: u64,
        /// Of what: `bytes` or `files`.
        unit: &'static str,
        /// How much is allowed.
        limit: u64,
    },
    /// The repository itself is larger than allowed.
    #[error(
        "{remote} is larger than the limit of {limit} bytes for one fetch (at most `--git-cache-mib`)"
    )]
    RepositoryTooLarge {
        /// The repository.
        remote: String,
        /// How much is allowed.
        limit: u64,
    },
    /// The operator's cache is full of repositories that are fetched just now.
    #[error(
        "the operator's git cache has no room: repositories that are fetched now have more than {limit} bytes together; it is tried again (`--git-cache-mib` allows more)"
    )]
    CacheFull {
        /// How much is allowed.
        limit: u64,
    },
    /// A submodule of git cannot be fetched.
    #[error("submodule `{path}` of {remote}: {why}")]
    Submodule {
        /// Its path from the repository's root.
        path: String,
        /// The repository that it is in.
        remote: String,
        /// What is wrong with it.
        why: String,
    },
    /// The operator's own cache cannot be used.
    #[error("could not {action} {}", path.display())]
    Cache {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
    /// The root of the cache cannot be given to ssh.
    #[error("the cache folder `{}` holds characters other than letters, digits and `/._-`", path.display())]
    CacheRoot {
        /// The folder.
        path: PathBuf,
    },
    /// The git program cannot be started.
    #[error("could not start `git`: the operator's image must have git and ssh in PATH")]
    GitUnavailable {
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Stable word for conditions, events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidUrl { .. } => "InvalidGitUrl",
            Self::InvalidReference { .. } => "InvalidReference",
            Self::InvalidPath { .. } => "InvalidPath",
            Self::PathNotFound { .. } => "PathNotFound",
            Self::ReferenceNotFound {
                reference: Reference::Tag(_),
                ..
            } => "TagNotFound",
            Self::ReferenceNotFound { .. } => "BranchNotFound",
            Self::RepositoryEmpty { .. } => "RepositoryEmpty",
            Self::CommitNotFound { .. } => "CommitNotFound",
            Self::CommitGone { .. } => "RevisionMoved",
            Self::SshKeyMissing { .. } => "SshKeyMissing",
            Self::SshKeyInvalid { .. } => "SshKeyInvalid",
            Self::SshKeyEncrypted => "SshKeyEncrypted",
            Self::Git { failure, .. } => failure.reason(),
            Self::Timeout { .. } => "GitTimeout",
            Self::PathLeavesRepository { .. } => "PathLeavesRepository",
            Self::ModuleNotFound { .. } => "ModuleNotFound",
            Self::SymlinkLeavesContext { .. } => "SymlinkLeavesContext",
            Self::ContextTooLarge { .. } => "ContextTooLarge",
            Self::RepositoryTooLarge { .. } => "RepositoryTooLarge",
            Self::CacheFull { .. } => "GitCacheFull",
            Self::Submodule { .. } => "SubmoduleUnusable",
            Self::Cache { .. } | Self::CacheRoot { .. } => "GitCacheUnusable",
            Self::GitUnavailable { .. } => "GitUnavailable",
        }
    }

    /// Whether it can pass by itself (the world's fault), so that it must not eat the resource's budget of retries.
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
            | Self::PathNotFound { .. }
            | Self::ReferenceNotFound { .. }
            | Self::RepositoryEmpty { .. }
            | Self::CommitNotFound { .. }
            | Self::SshKeyMissing { .. }
            | Self::SshKeyInvalid { .. }
            | Self::SshKeyEncrypted
            | Self::PathLeavesRepository { .. }
            | Self::ModuleNotFound { .. }
            | Self::SymlinkLeavesContext { .. }
            | Self::ContextTooLarge { .. }
            | Self::RepositoryTooLarge { .. }
            | Self::Submodule { .. } => false,
        }
    }
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(" (git says: {detail})")
    }
}
