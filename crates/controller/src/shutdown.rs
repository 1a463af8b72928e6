//! Shutdown on SIGTERM or SIGINT.

use std::time::Duration;

/// Maximum time for open HTTP requests to finish after the process has stopped.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        }
        _ => std::future::pending().await,
    }
}
