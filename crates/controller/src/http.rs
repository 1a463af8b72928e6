//! HTTP server of the operator.

mod connections;
mod hooks;
mod open_metrics;
mod probes;
mod request_body;
mod shared_secrets;
mod sync;
mod tls;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;

use crate::args::Config;
use crate::health::Health;
use crate::metacontroller::SyncHandler;
pub(crate) use connections::{listen, listen_with};
pub(crate) use hooks::{Push, PushRequest, WebhookEndpoints};
pub(crate) use open_metrics::MetricsSources;
use sync::SyncEndpoint;
pub(crate) use tls::{
    ClientCertificates, FlagFile, Identity, TlsFiles, TlsListener, has_client_certificate,
};

/// Components that the routes of the HTTP server use.
pub(crate) struct RouteState {
    pub(crate) health: Health,
    pub(crate) hooks: WebhookEndpoints,
    pub(crate) metrics_sources: MetricsSources,
    pub(crate) sync_handler: Arc<SyncHandler>,
}

/// Sockets that the HTTP server listens on.
pub(crate) struct Listeners {
    plain: TcpListener,
    /// Socket of `/sync`, if `--sync-listen` is set.
    sync: Option<TlsListener>,
}

impl Listeners {
    /// Binds the addresses and reads the certificates.
    ///
    /// # Errors
    /// If an address is in use or not available, or a certificate cannot be read.
    pub(crate) async fn bind(config: &Config) -> Result<Self> {
        let sync = match config.sync.listen {
            Some(address) => Some(TlsListener::new(
                bind("--sync-listen", address).await?,
                Identity::of(&config.sync)?,
            )?),
            None => None,
        };
        let plain = bind("--listen", config.listen).await?;
        Ok(Self { plain, sync })
    }

    /// Serves requests until `stop` completes.
    pub(crate) async fn serve<S>(self, config: &Config, state: RouteState, stop: impl Fn() -> S)
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let sync_endpoint = SyncEndpoint::new(
            config.driver,
            config.sync.token_dir.clone(),
            state.sync_handler,
        );
        let router = probes::router(state.health)
            .merge(hooks::router(state.hooks))
            .merge(open_metrics::router(state.metrics_sources));
        let Some(tls_listener) = self.sync else {
            return listen(
                self.plain,
                router.merge(sync::router(sync_endpoint)),
                stop(),
            )
            .await;
        };
        let sync = listen(tls_listener, sync::router(sync_endpoint), stop());
        tokio::join!(listen(self.plain, router, stop()), sync);
    }
}

/// Binds `address`. `flag` names the flag with the address, for errors.
///
/// # Errors
/// If the address is in use or not available.
pub(crate) async fn bind(flag: &str, address: SocketAddr) -> Result<TcpListener> {
    let listener = match (TcpListener::bind(address).await, address.ip()) {
        // Listen on IPv4 only if the node does not support IPv6.
        (Err(_), IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        (listener, _) => listener,
    };
    listener.with_context(|| format!("{flag} {address}: failed to bind the address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener that holds the port for IPv6 simulates a node without IPv6: in both cases `[::]` cannot be bound.
    #[tokio::test]
    async fn without_ipv6_all_addresses_of_ipv4_are_bound() {
        let occupied = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await;
        let port = occupied
            .as_ref()
            .map_or(0, |listener| listener.local_addr().unwrap().port());
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = bind("--listen", any).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(address.ip(), Ipv4Addr::UNSPECIFIED);
        let error = bind("--listen", address).await.unwrap_err().to_string();
        assert!(error.contains("--listen 0.0.0.0"), "{error}");
    }
}
