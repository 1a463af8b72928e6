//! Fake S3 server with one bucket and the operations of the engine's `s3` backend, including lock files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde_json::{Value, json};

use crate::api::serve_router;

/// Response of the server to a list request if the bucket is empty.
const EMPTY: &str = "<ListBucketResult><Name>store</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>";

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Bucket with the name `store`.
pub(crate) struct Bucket {
    address: SocketAddr,
    objects: Objects,
    head_requests: Arc<AtomicUsize>,
}

impl Bucket {
    /// Serves an empty bucket for the duration of the test.
    pub(crate) fn serve() -> Self {
        let objects = Objects::default();
        let head_requests = Arc::new(AtomicUsize::new(0));
        let counted = head_requests.clone();
        let bucket = move |method: Method| {
            counted.fetch_add(usize::from(method == Method::HEAD), Ordering::Relaxed);
            std::future::ready(EMPTY)
        };
        let router = Router::new()
            .route("/store", any(bucket.clone()))
            .route("/store/", any(bucket))
            .route("/store/{*key}", any(object))
            .with_state(objects.clone());
        let address = serve_router(router);
        Self {
            address,
            objects,
            head_requests,
        }
    }

    /// Returns the partial configuration of the backend.
    pub(crate) fn config(&self) -> BTreeMap<String, Value> {
        let config = json!({
            "bucket": "store", "key": "team/web.tfstate", "region": "us-east-1",
            "access_key": "test", "secret_key": "test", "use_lockfile": true,
            "use_path_style": true, "endpoints": {"s3": self.url()},
            "skip_credentials_validation": true, "skip_region_validation": true,
            "skip_requesting_account_id": true, "skip_metadata_api_check": true,
            "skip_s3_checksum": true,
        });
        serde_json::from_value(config).unwrap()
    }

    /// Returns the URL of the server.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of `HEAD` requests for the bucket.
    pub(crate) fn head_requests(&self) -> usize {
        self.head_requests.load(Ordering::Relaxed)
    }

    /// Returns the address of the state with the object key `key`.
    pub(crate) fn place(&self, key: &str) -> String {
        format!("s3://{}/store/{key}", self.address)
    }

    pub(crate) fn put(&self, key: &str, value: &Value) {
        let value = value.to_string().into_bytes();
        self.objects.lock().unwrap().insert(key.into(), value);
    }

    pub(crate) fn remove(&self, key: &str) {
        self.objects.lock().unwrap().remove(key);
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        let objects = self.objects.lock().unwrap();
        Some(serde_json::from_slice(objects.get(key)?).unwrap())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.objects.lock().unwrap().contains_key(key)
    }
}

async fn object(
    State(objects): State<Objects>,
    method: Method,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut objects = objects.lock().unwrap();
    match method {
        Method::PUT => {
            let free = headers.get("if-none-match").is_none();
            if !free && objects.contains_key(&key) {
                let error = "<Error><Code>PreconditionFailed</Code></Error>";
                return (StatusCode::PRECONDITION_FAILED, error).into_response();
            }
            objects.insert(key, plain(&headers, &body));
            StatusCode::OK.into_response()
        }
        Method::DELETE => {
            objects.remove(&key);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => objects.get(&key).cloned().map_or_else(
            || {
                let error = "<Error><Code>NoSuchKey</Code></Error>";
                (StatusCode::NOT_FOUND, error).into_response()
            },
            IntoResponse::into_response,
        ),
    }
}

/// Removes the frames of `aws-chunked` from the body.
fn plain(headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let encoding = headers.get("content-encoding");
    if encoding.is_none_or(|encoding| encoding.as_bytes() != b"aws-chunked") {
        return body.to_vec();
    }
    let mut plain = Vec::new();
    let mut rest = body;
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        let size = head.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        plain.extend(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
    plain
}
