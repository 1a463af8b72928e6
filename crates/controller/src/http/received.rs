//! The body of a request, from a caller who may be anybody.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};

/// How long a request may take to arrive.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Why there is no body.
pub(super) enum Unreceived {
    /// It did not arrive within [`PATIENCE`].
    TooSlow,
    /// It has more bytes than are read, or broke off.
    TooLarge(axum::Error),
}

/// All of `body`, if it has no more than `longest` bytes.
pub(super) async fn received(body: Body, longest: usize) -> Result<Bytes, Unreceived> {
    tokio::time::timeout(PATIENCE, to_bytes(body, longest))
        .await
        .map_err(|_| Unreceived::TooSlow)?
        .map_err(Unreceived::TooLarge)
}
