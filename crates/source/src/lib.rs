//! Resolves git references, and packs the files of a module into a deterministic context.
//!
//! [`RepositoryUrl`] and [`Reference`] validate input. [`GitCache::resolve`] requests the commit of a reference from the remote.
//! [`GitCache::find_context`] fetches the commit into a bare repository and packs the files that the module needs. If the same files were packed
//! before, it does not pack them again. [`pack_files`] packs files of other sources: [`inline_files`], [`root_module_files`] and
//! [`artifact_files`]. [`unpack`] unpacks a context in the build pod. Git runs as a child process, and no shell interprets its
//! arguments. The selection of files (`closure`) performs no I/O.

mod archive;
mod artifact;
mod cache;
mod closure;
mod commit_info;
mod context;
#[doc(hidden)]
pub mod corpus;
mod credentials;
mod error;
mod fair_semaphore;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod git;
mod known_hosts;
mod module;
mod packed;
mod reference;
mod repopath;
mod secret;
mod ssh_key;
mod tree;
mod unpack;
mod url;
mod written_files;

pub use artifact::{ArtifactFormat, artifact_files};
pub use cache::{CacheOptions, GitCache, Listing, LsRefs};
pub use commit_info::CommitInfo;
pub use context::{Allows, Context, ContextDigest, ContextSpec, Newest};
pub use credentials::{Credentials, HttpsCredentials};
pub use error::{Error, GitFailure};
pub use fair_semaphore::{FairSemaphore, Permit};
pub use files::{FileContent, FilePart, SourceFile, SourceFiles, pack_files};
pub use git::GitAccess;
pub use known_hosts::BUILT_IN_KNOWN_HOSTS;
pub use module::facts::is_host_path;
pub use reference::{CommitId, RefName, Reference, Revision};
pub use secret::{SecretBytes, SecretString};
pub use tempfile::TempPath;
pub use unpack::{UnpackError, UnpackLimits, unpack};
pub use url::{RepositoryUrl, Scheme};
pub use written_files::{inline_files, root_module_files};
