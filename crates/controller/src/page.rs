//! `alustan-controller page`: serves the page in the cluster.

mod arguments;

use alustan_page::{
    CookieKeys, Hosts, Impersonation, Page, ProxySignIn, SessionCookie, Settings, SignIn,
    TokenSignIn, VerifiedClient,
};
use anyhow::{Context as _, Result, anyhow};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Router};
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::{info, warn};

pub(crate) use arguments::PageArguments;
use arguments::SignInMethod;

use crate::http::{
    Identity, TlsFiles, TlsListener, bind, has_client_certificate, listen, listen_with,
};
use crate::shutdown::{SHUTDOWN_TIMEOUT, shutdown_signal};

/// First argument of the executable that selects the page.
pub(crate) const ARGUMENT: &str = "page";

/// Flag with the listen address, for errors.
const LISTEN_FLAG: &str = "--listen";

/// Serves the page until SIGTERM or SIGINT.
///
/// # Errors
/// If the flags are invalid, a file cannot be read, or the address cannot be bound.
pub(crate) async fn run(arguments: PageArguments) -> Result<()> {
    arguments.check()?;
    let tls = arguments.tls_files(LISTEN_FLAG);
    let listener = Socket::bind(&arguments, tls).await?;
    let config = kube::Config::infer()
        .await
        .context("failed to find the API server")?;
    let client = Client::try_from(config.clone()).context("failed to create a client")?;
    let page = Page::new(Settings {
        sign_in: sign_in(&arguments, client.clone(), config)?,
        client,
        namespace: arguments.namespace.clone(),
        hosts: Hosts::new(arguments.url.hosts()),
    });
    let followed = page.clone();
    tokio::spawn(async move { followed.follow().await });
    let router = alustan_page::router(page.clone()).merge(probes(page));
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(listener.serve(router, async {
        // An error means that the sender was dropped, which also stops the server.
        let _ = stopped.await;
    }));
    info!(address = %arguments.listen, url = %arguments.url, "serving the page");
    shutdown_signal().await;
    drop(stop);
    // Event streams do not end by themselves.
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, server)
        .await
        .is_err()
    {
        info!("closing open connections");
    }
    Ok(())
}

/// Builds the sign-in that the flags select.
fn sign_in(arguments: &PageArguments, client: Client, config: kube::Config) -> Result<SignIn> {
    let keys = CookieKeys::load(arguments.cookie_key_file.clone())
        .map_err(|error| anyhow!(error))
        .context("--cookie-key-file")?;
    Ok(match arguments.sign_in {
        SignInMethod::Token => {
            let cookie = SessionCookie::new(keys, arguments.url.is_https());
            SignIn::Token(TokenSignIn::new(client, config, cookie))
        }
        SignInMethod::Proxy => {
            let impersonation = Impersonation::new(
                arguments.impersonate_users.clone(),
                arguments.impersonate_groups.clone(),
            )
            .map_err(|error| anyhow!(error))
            .context("--impersonate-user, --impersonate-group")?;
            let headers = arguments.headers();
            SignIn::Proxy(ProxySignIn::new(
                client,
                config,
                headers,
                impersonation,
                keys,
            ))
        }
    })
}

/// Socket of the page.
enum Socket {
    Plain(TcpListener),
    Tls(TlsListener),
}

impl Socket {
    async fn bind(arguments: &PageArguments, tls: Option<TlsFiles>) -> Result<Self> {
        let identity = tls.map(Identity::new).transpose()?;
        let listener = bind(LISTEN_FLAG, arguments.listen).await?;
        if let Some(identity) = identity {
            return Ok(Self::Tls(TlsListener::new(listener, identity)?));
        }
        if arguments.url.is_https() {
            warn!(
                "serving plain HTTP: an ingress or a proxy must terminate TLS, and the network between it and this pod must be trusted"
            );
        }
        Ok(Self::Plain(listener))
    }

    /// Serves `router` until `stop` completes. Requests on connections with a client certificate have the extension [`VerifiedClient`].
    async fn serve(self, router: Router, stop: impl Future<Output = ()>) {
        match self {
            Self::Plain(listener) => listen(listener, router, stop).await,
            Self::Tls(listener) => {
                let verified = router.clone().layer(Extension(VerifiedClient));
                let router_of = |stream: &_| {
                    if has_client_certificate(stream) {
                        verified.clone()
                    } else {
                        router.clone()
                    }
                };
                listen_with(listener, router_of, stop).await;
            }
        }
    }
}

/// Returns the routes `/healthz` and `/readyz`. Ready: the overview is complete.
fn probes(page: Page) -> Router {
    let ready = get(|State(page): State<Page>| async move {
        if page.is_ready() {
            (StatusCode::OK, "ok\n")
        } else {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "not ok: the list of Terraform resources is not complete\n",
            )
        }
    });
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", ready)
        .with_state(page)
}
