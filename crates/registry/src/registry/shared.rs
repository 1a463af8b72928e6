//! Options, HTTP clients and sessions that all clones of a [`Registry`](crate::Registry) share.

use tempfile::TempPath;

use super::{options::Options, session_cache::SessionCache};

pub(super) struct Shared {
    pub(super) options: Options,
    /// Client for token requests.
    pub(super) http: reqwest::Client,
    /// Client for reads of manifests and blobs.
    pub(super) reads: reqwest::Client,
    /// Client for pushes and deletions of manifests and blobs.
    pub(super) writes: reqwest::Client,
    /// CA bundle of credential helpers, if [`Options`] have certificates. Deleted with the last clone.
    pub(super) helper_certificates: Option<TempPath>,
    pub(super) sessions: SessionCache,
}
