//! HTTP server that answers each state request with 204 (no state), for `init` in a build. The build needs no managed state.

use std::net::Ipv4Addr;

use axum::Router;
use axum::http::StatusCode;

use crate::paths::Vars;

/// Starts the server. Returns the environment variables that connect the engine's `http` backend to the server.
pub(super) async fn serve() -> std::io::Result<Vars> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/state", listener.local_addr()?);
    let router = Router::new().fallback(|| async { StatusCode::NO_CONTENT });
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(Vars::from([("TF_HTTP_ADDRESS".to_owned(), url)]))
}
