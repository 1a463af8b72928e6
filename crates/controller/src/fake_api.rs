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
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) uri: String,
    /// Content type of the body.
    pub(crate) content_type: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Requests recorded so far.
pub(crate) type RequestLog = Arc<Mutex<Vec<RecordedRequest>>>;

/// Response to a request: status code and body.
type FakeResponse = (u16, Value);

/// Starts a server that responds with `respond`. Returns a client for it, and the log of its requests.
pub(crate) async fn serve(
    respond: impl FnMut(&RecordedRequest) -> FakeResponse + Send + 'static,
) -> (Client, RequestLog) {
    let (url, requests) = address(respond).await;
    let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
    (client, requests)
}

/// Starts a server that responds with `respond`. Returns its URL, and the log of its requests.
pub(crate) async fn address(
    respond: impl FnMut(&RecordedRequest) -> FakeResponse + Send + 'static,
) -> (String, RequestLog) {
    let (requests, respond) = (RequestLog::default(), Arc::new(Mutex::new(respond)));
    let recorded = requests.clone();
    let app = Router::new().fallback(move |request: Request| {
        let (requests, respond) = (requests.clone(), respond.clone());
        async move {
            let recorded_request = read(request).await;
            requests.lock().push(recorded_request.clone());
            let (status, body) = (respond.lock())(&recorded_request);
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
    (url, recorded)
}

async fn read(request: Request) -> RecordedRequest {
    let (parts, body) = request.into_parts();
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.map(|content_type| content_type.to_str().unwrap().to_owned());
    let body = to_bytes(body, usize::MAX).await.unwrap();
    RecordedRequest {
        method: parts.method.to_string(),
        uri: parts.uri.to_string(),
        content_type: content_type.unwrap_or_default(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

/// Returns the response to a list request, with `items`.
pub(crate) fn list(items: &[Value]) -> FakeResponse {
    (200, json!({"metadata": {}, "items": items}))
}

/// Returns the response to the lookup of the kinds in `v1`: `ConfigMap`.
pub(crate) fn kinds() -> FakeResponse {
    let kind = json!({"name": "configmaps", "kind": "ConfigMap", "namespaced": true});
    (200, json!({"groupVersion": "v1", "resources": [kind]}))
}

/// Returns a response with status 403.
pub(crate) fn forbidden() -> FakeResponse {
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no",
    });
    (403, status)
}

/// Returns a response with status 409.
pub(crate) fn conflict() -> FakeResponse {
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "changed",
    });
    (409, status)
}

/// Returns a response with status 404.
pub(crate) fn not_found() -> FakeResponse {
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "gone",
    });
    (404, status)
}
