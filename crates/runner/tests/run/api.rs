//! Fake API server that serves the only requests that a runner sends: get and patch of Secrets by name.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use alustan_state::fake::FakeSecrets;
use alustan_state::secrets::{Changes, Secrets, Snapshot, StoreError};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Verb and Secret of each request, in order, for example `get web-run`.
pub(crate) type Calls = Arc<Mutex<Vec<String>>>;

struct Served {
    secrets: Arc<FakeSecrets>,
    calls: Calls,
    is_overloaded: Arc<AtomicBool>,
}

impl Served {
    /// Records a request. Returns the response of an overloaded API server: of four requests with the same verb and Secret, the first gets
    /// status 429 and the third status 500.
    fn note(&self, verb: &str, name: &str) -> Option<Response> {
        let mut calls = self.calls.lock().unwrap();
        let call = format!("{verb} {name}");
        let before = calls.iter().filter(|other| **other == call).count();
        calls.push(call);
        if !self.is_overloaded.load(Ordering::SeqCst) {
            return None;
        }
        match before % 4 {
            0 => Some(refusal(429, "TooManyRequests")),
            2 => Some(refusal(500, "InternalError")),
            _ => None,
        }
    }
}

/// Serves `secrets` for the duration of the test. Records the requests in `calls`. Refuses every other request while `is_overloaded`.
pub(crate) fn serve(
    secrets: Arc<FakeSecrets>,
    calls: Calls,
    is_overloaded: Arc<AtomicBool>,
) -> SocketAddr {
    let path = "/api/v1/namespaces/{namespace}/secrets/{name}";
    let router = Router::new()
        .route(path, get(read).patch(patch))
        .with_state(Arc::new(Served {
            secrets,
            calls,
            is_overloaded,
        }));
    serve_router(router.layer(axum::extract::DefaultBodyLimit::disable()))
}

/// Serves `router` for the duration of the test.
pub(crate) fn serve_router(router: Router) -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    address
}

type Store = State<Arc<Served>>;

async fn read(State(served): Store, Path((_, name)): Path<(String, String)>) -> Response {
    if let Some(refusal) = served.note("get", &name) {
        return refusal;
    }
    answer(&name, served.secrets.read(&name).await)
}

async fn patch(
    State(served): Store,
    Path((_, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    if let Some(refusal) = served.note("patch", &name) {
        return refusal;
    }
    let secrets = &served.secrets;
    let patch: Value = serde_json::from_slice(&body).unwrap();
    if patch.is_array() {
        return answer(&name, replace(secrets, &name, &patch).await);
    }
    let version = patch["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let changes: Changes = patch["data"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| {
            (
                key.clone(),
                value.as_str().map(|data| STANDARD.decode(data).unwrap()),
            )
        })
        .collect();
    let swapped = secrets.swap(&name, &version, changes).await;
    answer(&name, swapped.map(|_| secrets.get(&name).unwrap()))
}

/// Applies a JSON patch with the operations `test` and `replace` of one value.
async fn replace(secrets: &FakeSecrets, name: &str, patch: &Value) -> Result<Snapshot, StoreError> {
    let key = patch[0]["path"].as_str().unwrap();
    let key = key.strip_prefix("/data/").unwrap();
    let [before, after] =
        [0, 1].map(|operation| STANDARD.decode(patch[operation]["value"].as_str().unwrap()));
    let replaced = secrets
        .replace(name, key, &before.unwrap(), &after.unwrap())
        .await;
    replaced.map_err(|error| match error {
        StoreError::Conflict(name) => StoreError::Refused {
            name,
            text: "the server rejected our request due to an error in our request".to_owned(),
        },
        error => error,
    })
}

fn answer(name: &str, result: Result<Snapshot, StoreError>) -> Response {
    match result {
        Ok(snapshot) => secret(name, snapshot).to_string().into_response(),
        Err(StoreError::Missing(_)) => refusal(404, "NotFound"),
        Err(StoreError::Conflict(_)) => refusal(409, "Conflict"),
        Err(StoreError::Refused { .. }) => refusal(422, "Invalid"),
        Err(StoreError::Unavailable { .. }) => refusal(503, "ServiceUnavailable"),
    }
}

fn refusal(code: u16, reason: &str) -> Response {
    let body = status(code, reason).to_string();
    (StatusCode::from_u16(code).unwrap(), body).into_response()
}

fn secret(name: &str, snapshot: Snapshot) -> Value {
    let data: serde_json::Map<String, Value> = snapshot
        .data
        .into_iter()
        .map(|(key, value)| (key, STANDARD.encode(value).into()))
        .collect();
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "resourceVersion": snapshot.version}, "data": data})
}

fn status(code: u16, reason: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code})
}
