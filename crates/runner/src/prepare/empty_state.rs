//! State server without a state. `init` in a build queries it once, and stores nothing of it.

use std::net::Ipv4Addr;

use axum::Router;
use axum::http::StatusCode;

use crate::layout::Vars;

/// Starts the server. Returns the environment that connects the engine's `http` backend to it.
pub(super) async fn serve() -> std::io::Result<Vars> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/state", listener.local_addr()?);
    let router = Router::new().fallback(|| async { StatusCode::NO_CONTENT });
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(Vars::from([("TF_HTTP_ADDRESS".to_owned(), url)]))
}
