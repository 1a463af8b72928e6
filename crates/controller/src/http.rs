//! The operator's HTTP server.

mod hooks;
mod metrics;
mod probes;
mod sync;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::serve::Listener;
use tokio::net::TcpListener;

use crate::config::Config;
use crate::sync::Syncs;
pub(crate) use hooks::{Hooks, Push, Pushed};
pub(crate) use metrics::Measured;
pub(crate) use probes::Health;
use sync::Door;
use tls::{Identity, TlsListener};

/// What the routes need.
pub(crate) struct Parts {
    pub(crate) health: Health,
    pub(crate) hooks: Hooks,
    pub(crate) measured: Measured,
    pub(crate) syncs: Arc<Syncs>,
}

/// Serves until `stop` ends.
pub(crate) async fn serve<S>(config: &Config, parts: Parts, stop: impl Fn() -> S) -> Result<()>
where
    S: Future<Output = ()> + Send + 'static,
{
    let Parts {
        health,
        hooks,
        measured,
        syncs,
    } = parts;
    let door = Door::new(config.driver, config.sync.token_dir.clone(), syncs);
    let listener = bound("--listen", config.listen).await?;
    let router = probes::router(health)
        .merge(hooks::router(hooks))
        .merge(metrics::router(measured));
    let Some(apart) = config.sync.listen else {
        return listen(listener, router.merge(sync::router(door)), stop()).await;
    };
    let identity = Identity::of(&config.sync)?;
    let by_tls = TlsListener::new(bound("--sync-listen", apart).await?, identity)?;
    let sync = listen(by_tls, sync::router(door), stop());
    tokio::try_join!(listen(listener, router, stop()), sync).map(drop)
}

async fn bound(flag: &str, address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{flag} {address}: the address is taken or not ours"))
}

async fn listen<L>(
    listener: L,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()>
where
    L: Listener,
    L::Addr: std::fmt::Debug,
{
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
        .context("serve http")
}
