//! Fake API server for tests. Records its requests.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) uri: String,
    /// Content type of the body.
    pub(crate) kind: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Requests recorded so far.
pub(crate) type Log = Arc<Mutex<Vec<Asked>>>;

/// Response to a request: status code and body.
type Answer = (u16, Value);

/// Starts a server that responds with `answer`. Returns a client for it, and the log of its requests.
pub(crate) async fn serve(answer: impl FnMut(&Asked) -> Answer + Send + 'static) -> (Client, Log) {
    let (url, seen) = address(answer).await;
    let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
    (client, seen)
}

/// Starts a server that responds with `answer`. Returns its URL, and the log of its requests.
pub(crate) async fn address(
    answer: impl FnMut(&Asked) -> Answer + Send + 'static,
) -> (String, Log) {
    let (log, answer) = (Log::default(), Arc::new(Mutex::new(answer)));
    let seen = log.clone();
    let app = Router::new().fallback(move |request: Request| {
        let (log, answer) = (log.clone(), answer.clone());
        async move {
            let asked = read(request).await;
            log.lock().push(asked.clone());
            let (status, body) = (answer.lock())(&asked);
            Response::builder()
                .status(StatusCode::from_u16(status).unwrap())
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string()))
                .unwrap()
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, seen)
}

async fn read(request: Request) -> Asked {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let kind = kind.map(|kind| kind.to_str().unwrap().to_owned());
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Asked {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        kind: kind.unwrap_or_default(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

/// Returns a list of `items`.
pub(crate) fn list(items: &[Value]) -> Answer {
    (200, json!({"metadata": {}, "items": items}))
}

/// Returns a response with status 403.
pub(crate) fn forbidden() -> Answer {
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no",
    });
    (403, status)
}

/// Returns a response with status 404.
pub(crate) fn not_found() -> Answer {
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "gone",
    });
    (404, status)
}
