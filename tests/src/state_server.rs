//! HTTP server outside of the cluster that stores states for the engine's `http` backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use k8s_openapi::ByteString;
use tokio::net::TcpListener;

use crate::addresses::host;

/// Keeps states and locks in memory, for one user.
#[derive(Clone)]
pub struct StateServer {
    /// `host:port`, as reached by pods.
    pub address: String,
    content: Arc<Mutex<Content>>,
    authorization: Arc<String>,
}

#[derive(Default)]
struct Content {
    states: BTreeMap<String, Bytes>,
    locks: BTreeMap<String, Bytes>,
}

impl StateServer {
    /// Starts an empty server for the given user.
    pub async fn start(user: &str, password: &str) -> Self {
        let listener = TcpListener::bind((host(), 0))
            .await
            .expect("an address of the dev cluster's link");
        let login = ByteString(format!("{user}:{password}").into_bytes());
        let login = serde_json::to_value(login).expect("base64");
        let server = Self {
            address: listener.local_addr().expect("an address").to_string(),
            content: Arc::default(),
            authorization: Arc::new(format!("Basic {}", login.as_str().unwrap_or_default())),
        };
        let router = Router::new()
            .route("/{name}", any(serve))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    /// Returns the state `name`.
    pub fn state(&self, name: &str) -> Option<String> {
        let state = self.content.lock().unwrap().states.get(name).cloned()?;
        Some(String::from_utf8_lossy(&state).into_owned())
    }
}

async fn serve(
    State(server): State<StateServer>,
    Path(name): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let given = headers.get(header::AUTHORIZATION);
    if given.is_none_or(|value| value != server.authorization.as_str()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let mut content = server.content.lock().unwrap();
    match method.as_str() {
        "GET" => content.states.get(&name).cloned().map_or_else(
            || StatusCode::NOT_FOUND.into_response(),
            IntoResponse::into_response,
        ),
        "POST" => {
            content.states.insert(name, body);
            StatusCode::OK.into_response()
        }
        "LOCK" => {
            if let Some(held) = content.locks.get(&name).cloned() {
                return (StatusCode::LOCKED, held).into_response();
            }
            content.locks.insert(name, body);
            StatusCode::OK.into_response()
        }
        "UNLOCK" => {
            content.locks.remove(&name);
            StatusCode::OK.into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}
