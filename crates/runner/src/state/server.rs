//! State server for the engine's `http` backend, on loopback (rule 12).

mod locks;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::run::StateLock;
use alustan_state::secrets::to_json;
use alustan_state::store::{MAX_STATE_BYTES, SlotSource, StateError, StateStore};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::paths::Vars;
use crate::record::{RecordError, RecordHandle};
use locks::Locks;

/// User name with which the engine authenticates.
const USER: &str = "alustan";
/// Maximum wait for the operator to create state slots. [`SLOTS_PAUSE`] is the interval between checks for the slots.
const SLOTS_PATIENCE: Duration = Duration::from_mins(1);
const SLOTS_PAUSE: Duration = Duration::from_millis(500);

/// Running state server. Stops when the runner process ends.
pub struct StateServer {
    address: SocketAddr,
    password: String,
    context: Arc<ServerContext>,
}

struct ServerContext {
    store: Arc<StateStore>,
    authorization: String,
    locks: Locks,
}

impl StateServer {
    /// Serves `store` on a free loopback port.
    pub async fn start(
        store: Arc<StateStore>,
        record: RecordHandle,
        password: String,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let authorization = format!("Basic {}", STANDARD.encode(format!("{USER}:{password}")));
        let context = Arc::new(ServerContext {
            store,
            authorization,
            locks: Locks::new(record),
        });
        let router = Router::new().fallback(answer).with_state(context.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            password,
            context,
        })
    }

    /// Returns the environment variables that connect the engine's `http` backend to this server.
    pub fn environment(&self) -> Vars {
        let url = format!("http://{}/state", self.address);
        Vars::from([
            ("TF_HTTP_ADDRESS".to_owned(), url.clone()),
            ("TF_HTTP_LOCK_ADDRESS".to_owned(), url.clone()),
            ("TF_HTTP_UNLOCK_ADDRESS".to_owned(), url),
            ("TF_HTTP_LOCK_METHOD".to_owned(), "LOCK".to_owned()),
            ("TF_HTTP_UNLOCK_METHOD".to_owned(), "UNLOCK".to_owned()),
            ("TF_HTTP_USERNAME".to_owned(), USER.to_owned()),
            ("TF_HTTP_PASSWORD".to_owned(), self.password.clone()),
            // Disables the retries of the engine, because this server already retries its requests to the Kubernetes API server.
            ("TF_HTTP_RETRY_MAX".to_owned(), "0".to_owned()),
        ])
    }

    /// Returns the store of the served state.
    pub fn store(&self) -> &StateStore {
        &self.context.store
    }

    /// Reserves the state lock for the next engine process of the run. The run report already contains the lock, with the id `id`.
    pub fn reserve_lock(&self, id: String) {
        self.context.locks.reserve(id);
    }

    /// Returns the id of the state lock of this run in the run report, if any.
    pub fn recorded_lock(&self) -> Option<String> {
        self.context.locks.recorded()
    }

    /// Returns the last lock of another holder that blocked a lock request of the engine.
    pub fn lock_of_others(&self) -> Option<StateLock> {
        self.context.locks.in_the_way()
    }
}

async fn answer(State(context): State<Arc<ServerContext>>, request: Request) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    if given.map(header::HeaderValue::as_bytes) != Some(context.authorization.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_STATE_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    match parts.method.as_str() {
        "GET" => get(&context.store).await,
        "POST" => written("saved", context.store.put(body.to_vec()).await),
        "DELETE" => written("deleted", context.store.delete().await),
        "LOCK" => lock(&context, &body).await,
        "UNLOCK" => unlock(&context, &body).await,
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

async fn get(store: &StateStore) -> Response {
    match store.get_certain().await {
        Ok(Some(state)) => Body::from(state.to_vec()).into_response(),
        Ok(None) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refused("read", &error),
    }
}

fn written(action: &str, result: Result<(), StateError>) -> Response {
    match result {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => refused(action, &error),
    }
}

/// Returns the HTTP response for `error`. Also logs `error`, because the engine shows only the HTTP status of a response.
fn refused(action: &str, error: &StateError) -> Response {
    crate::log!("the state was not {action}: {error}");
    let status = match error {
        StateError::Moved => StatusCode::CONFLICT,
        StateError::NoRoom { .. } => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string()).into_response()
}

/// Lock information in the format of the engine.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct LockInfo {
    #[serde(rename = "ID")]
    id: String,
    operation: String,
    info: String,
    who: String,
    version: String,
    created: Option<Timestamp>,
    path: String,
}

async fn lock(context: &ServerContext, body: &[u8]) -> Response {
    let Ok(info) = serde_json::from_slice::<LockInfo>(body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let lock = StateLock {
        id: info.id,
        operation: info.operation,
        who: info.who,
        at: info.created.unwrap_or_else(Timestamp::now),
    };
    lock_response("locked", context.locks.lock(lock).await)
}

async fn unlock(context: &ServerContext, body: &[u8]) -> Response {
    let info = serde_json::from_slice::<LockInfo>(body).unwrap_or_default();
    let id = Some(info.id.as_str()).filter(|id| !id.is_empty());
    lock_response("unlocked", context.locks.unlock(id).await)
}

/// Returns status 200, or 423 with the lock that blocks the request.
fn lock_response(action: &str, result: Result<Option<StateLock>, RecordError>) -> Response {
    match result {
        Ok(None) => StatusCode::OK.into_response(),
        Ok(Some(lock)) => {
            let info = LockInfo {
                id: lock.id,
                operation: lock.operation,
                who: lock.who,
                created: Some(lock.at),
                ..LockInfo::default()
            };
            (StatusCode::LOCKED, to_json(&info)).into_response()
        }
        Err(error) => {
            crate::log!("the state was not {action}: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

/// Source of state slots for a run. Requests slots through the run report; the operator creates the slots.
pub struct SlotsOfRecord(pub RecordHandle);

#[async_trait::async_trait]
impl SlotSource for SlotsOfRecord {
    async fn request_slots(&self, wanted: usize) -> Vec<String> {
        let count = u32::try_from(wanted).unwrap_or(u32::MAX);
        crate::log!("requesting {wanted} state slots");
        let end = tokio::time::Instant::now() + SLOTS_PATIENCE;
        loop {
            let slots = self.0.request_slots(count).await.unwrap_or_default();
            if slots.len() >= wanted || tokio::time::Instant::now() >= end {
                return slots;
            }
            tokio::time::sleep(SLOTS_PAUSE).await;
        }
    }

    fn discarding_previous(&self) {
        crate::log!("too few state slots; overwriting the previous version of the state");
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::record::Identity;
    use alustan_state::fake::FakeSecrets;

    #[tokio::test]
    async fn a_request_larger_than_a_state_is_refused() {
        let secrets = Arc::new(FakeSecrets::new());
        secrets.put("web-state", []);
        let record = RecordHandle::new(secrets.clone(), Identity::of_run_7());
        let slot_source = Arc::new(SlotsOfRecord(record.clone()));
        let store = StateStore::open(
            secrets,
            "web-state".into(),
            vec![],
            slot_source,
            "uid".into(),
        );
        let context = Arc::new(ServerContext {
            store: Arc::new(store.await.unwrap()),
            authorization: "Basic password".into(),
            locks: Locks::new(record),
        });
        for method in ["POST", "LOCK"] {
            let request = Request::builder()
                .method(method)
                .header(header::AUTHORIZATION, "Basic password")
                .body(Body::from(vec![0_u8; MAX_STATE_BYTES + 1]))
                .unwrap();
            let response = answer(State(context.clone()), request).await;
            assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        }
    }
}
