//! Session of an authenticated user.

use std::sync::Arc;

use crate::access::Viewer;

/// Session of an authenticated user.
pub(crate) struct Session {
    /// User.
    pub(crate) viewer: Arc<Viewer>,
    /// Id of the session: unpredictable, the same on all replicas, and without information about the credentials.
    pub(crate) id: String,
    /// Whether the session has a cookie, which `POST /sign-out` removes.
    pub(crate) can_sign_out: bool,
}
