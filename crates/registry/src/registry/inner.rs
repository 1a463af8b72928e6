//! Options, HTTP clients and sessions, which all clones of the client of registries share.

use super::options::Options;
use crate::session::Sessions;

/// Options, clients and sessions.
pub(super) struct Inner {
    pub(super) options: Options,
    /// For tokens.
    pub(super) http: reqwest::Client,
    /// Reads manifests and blobs.
    pub(super) reads: reqwest::Client,
    /// Pushes and deletes manifests and blobs.
    pub(super) writes: reqwest::Client,
    pub(super) sessions: Sessions,
}
