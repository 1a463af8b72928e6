//! Options, HTTP clients and sessions, shared by all clones of the registry client.

use super::options::Options;
use crate::session::Sessions;

pub(super) struct Inner {
    pub(super) options: Options,
    /// Requests tokens.
    pub(super) http: reqwest::Client,
    /// Reads manifests and blobs.
    pub(super) reads: reqwest::Client,
    /// Pushes and deletes manifests and blobs.
    pub(super) writes: reqwest::Client,
    pub(super) sessions: Sessions,
}
