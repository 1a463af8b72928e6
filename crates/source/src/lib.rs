//! From a git reference to a deterministic context.
//!
//! One way through: [`RepositoryUrl`] and [`Reference`] are parsed at the edge, [`GitCache::resolve`] asks the
//! remote for the commit, [`GitCache::find_context`] fetches it into a bare cache and packs what the module
//! needs, unless it did so before. [`unpack`] is the other end, inside the build pod. The git command line does the transport, as a child
//! process without a shell; what is taken from the tree (`closure`) and how it is packed (`archive`) is pure.

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
