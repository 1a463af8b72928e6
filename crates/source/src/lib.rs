//! From a git reference to a deterministic context.
//!
//! [`RepositoryUrl`] and [`Reference`] validate input. [`GitCache::resolve`] requests the commit from the remote.
//! [`GitCache::find_context`] fetches it into a bare repository and packs the files that the module needs, unless they were packed before.
//! [`unpack`] unpacks a context in the build pod. The git command line transports data, as a child process without a shell. Selection
//! (`closure`) and packing (`archive`) are pure.

mod archive;
mod cache;
mod closure;
mod context;
mod credentials;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod git;
mod known_hosts;
mod module;
mod reference;
mod repopath;
mod secret;
mod ssh_key;
mod tree;
mod turns;
mod unpack;
mod url;

pub use cache::{CacheOptions, GitCache, Listing};
pub use context::{Allows, Context, ContextDigest, ContextSpec, Newest};
pub use credentials::{Credentials, HttpsCredentials};
pub use error::{Error, GitFailure};
pub use git::GitAccess;
pub use known_hosts::BUILT_IN_KNOWN_HOSTS;
pub use reference::{CommitId, RefName, Reference, Revision};
pub use secret::{SecretBytes, SecretString};
pub use turns::{Turn, Turns};
pub use unpack::{UnpackError, UnpackLimits, unpack};
pub use url::{RepositoryUrl, Scheme};
