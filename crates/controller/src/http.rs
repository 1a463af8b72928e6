//! The operator's HTTP server.

mod hooks;
mod metrics;
mod probes;

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use axum::Router;
use tokio::net::TcpListener;

pub(crate) use hooks::{Hooks, Push, Pushed};
pub(crate) use metrics::Measured;
pub(crate) use probes::Health;

/// Serves until `stop` ends.
pub(crate) async fn serve(
    listen: SocketAddr,
    health: Health,
    hooks: Hooks,
    measured: Measured,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("--listen {listen}: the address is taken or not ours"))?;
    let router: Router = probes::router(health)
        .merge(hooks::router(hooks))
        .merge(metrics::router(measured));
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
        .context("serve http")
}
