//! Proxy of an API server that injects faults and counts requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::server::Server;

/// Fault of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Forwards all requests.
    None,
    /// Refuses a share of the requests, forwards some writes without their response, and ends each watch after three events.
    Share,
    /// Ends each watch before its first event.
    ShortWatches,
    /// Refuses all requests: the requests with the same method, path and selector with 429, 503, 429 and 500 in turn. The first 429 has
    /// `Retry-After`.
    All,
}

/// Response to one request.
enum Answer {
    Forward,
    /// Refuses the request with this status, and with `Retry-After` of this number of seconds.
    Refuse(u16, Option<u16>),
    /// Forwards a write, and responds with this status.
    LoseResponse(u16),
}

/// Status and `Retry-After` of refused requests with the same method, path and selector, in turn.
const REFUSALS: [(u16, Option<u16>); 4] = [(429, Some(1)), (503, None), (429, None), (500, None)];

/// Number of events after which [`Fault::Share`] ends a watch.
const EVENTS: usize = 3;

/// Proxy on loopback, for plain HTTP. Requests are sent as a client with all rights; their headers may impersonate a user.
pub(crate) struct FaultProxy {
    pub(crate) url: String,
    proxied: Arc<Proxied>,
    task: tokio::task::JoinHandle<()>,
}

struct Proxied {
    client: Client,
    /// Each change ends the open watches.
    fault: watch::Sender<Fault>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Number of requests by method, path and selector since the last change of the fault.
    requests: BTreeMap<String, usize>,
    /// Number of requests since the last change of the fault.
    total: usize,
    /// Paths of the watches that the API server refused because their resource version is too old.
    expired: BTreeSet<String>,
}

impl FaultProxy {
    /// Starts a proxy of `server` without a fault.
    pub(crate) async fn start(server: &Server) -> Self {
        let mut config = server.client_config().await;
        // Each response of the API server reaches the client of the proxy.
        config.default_retry = false;
        let proxied = Arc::new(Proxied {
            client: Client::try_from(config).unwrap(),
            fault: watch::Sender::new(Fault::None),
            seen: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(serve).with_state(proxied.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, proxied, task }
    }

    /// Changes the fault, ends the open watches, and starts to count from zero.
    pub(crate) fn set(&self, fault: Fault) {
        let mut seen = self.proxied.seen.lock().unwrap();
        seen.requests.clear();
        seen.total = 0;
        self.proxied.fault.send_replace(fault);
    }

    /// Returns the number of requests by method, path and selector since the last change of the fault.
    pub(crate) fn requests(&self) -> BTreeMap<String, usize> {
        self.proxied.seen.lock().unwrap().requests.clone()
    }

    /// Returns the paths of the watches that the API server refused because their resource version is too old.
    pub(crate) fn expired(&self) -> BTreeSet<String> {
        self.proxied.seen.lock().unwrap().expired.clone()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(State(proxied): State<Arc<Proxied>>, request: Request) -> Response<Body> {
    // Subscribes before the request is sent, so that no change of the fault is missed.
    let mut changes = proxied.fault.subscribe();
    let (fault, number, total) = {
        let mut seen = proxied.seen.lock().unwrap();
        let fault = *changes.borrow_and_update();
        let number = seen.requests.entry(described(&request)).or_default();
        *number += 1;
        let number = *number - 1;
        seen.total += 1;
        (fault, number, seen.total)
    };
    let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
    match answer(fault, number, total) {
        Answer::Refuse(code, retry_after) => refusal(code, retry_after),
        Answer::LoseResponse(code) if is_write => {
            drop(proxied.forward(request, fault, changes).await);
            refusal(code, None)
        }
        Answer::Forward | Answer::LoseResponse(_) => proxied.forward(request, fault, changes).await,
    }
}

/// Returns the response to request `number` (counted from 0) of its method, path and selector, which is request `total` of all.
fn answer(fault: Fault, number: usize, total: usize) -> Answer {
    match fault {
        Fault::None | Fault::ShortWatches => Answer::Forward,
        Fault::All => {
            let (code, retry_after) = REFUSALS[number % REFUSALS.len()];
            Answer::Refuse(code, retry_after)
        }
        Fault::Share => match total % 31 {
            3 | 11 => Answer::Refuse(429, None),
            6 => Answer::LoseResponse(504),
            9 => Answer::Refuse(429, Some(1)),
            15 => Answer::LoseResponse(500),
            19 => Answer::Refuse(503, None),
            25 => Answer::Refuse(500, None),
            _ => Answer::Forward,
        },
    }
}

impl Proxied {
    /// Sends `request` to the API server. If it is a watch, its response ends at the first of `changes`.
    async fn forward(
        self: &Arc<Self>,
        request: Request,
        fault: Fault,
        mut changes: watch::Receiver<Fault>,
    ) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let is_watch = head.uri.query().unwrap_or_default().contains("watch=true");
        head.headers.remove(header::HOST);
        let body = to_bytes(body, 1 << 24).await.unwrap().to_vec();
        let request = Request::from_parts(head, kube::client::Body::from(body));
        let Ok(response) = self.client.send(request).await else {
            return refusal(502, None);
        };
        let (head, body) = response.into_parts();
        let body = Body::new(body);
        if !is_watch {
            return Response::from_parts(head, body);
        }
        if head.status == StatusCode::GONE {
            self.add_expired(&path);
        }
        let events = match fault {
            Fault::ShortWatches => 0,
            Fault::Share => EVENTS,
            Fault::None | Fault::All => usize::MAX,
        };
        let proxied = self.clone();
        let events = body
            .into_data_stream()
            .inspect_ok(move |event| {
                if is_expiry(event) {
                    proxied.add_expired(&path);
                }
            })
            .take(events)
            .take_until(async move { drop(changes.changed().await) });
        Response::from_parts(head, Body::from_stream(events))
    }

    fn add_expired(&self, path: &str) {
        self.seen.lock().unwrap().expired.insert(path.to_owned());
    }
}

/// Whether an event of a watch has type `ERROR` and status code 410.
fn is_expiry(event: &[u8]) -> bool {
    let event: Option<Value> = serde_json::from_slice(event).ok();
    event.is_some_and(|event| event["type"] == "ERROR" && event["object"]["code"] == 410)
}

/// Returns method, path and query of a request, without the parameters that differ between repeated requests.
fn described(request: &Request) -> String {
    let query = request.uri().query().unwrap_or_default();
    let kept: Vec<_> = query
        .split('&')
        .filter(|parameter| {
            let name = parameter.split('=').next().unwrap_or_default();
            !["resourceVersion", "continue"].contains(&name)
        })
        .collect();
    format!(
        "{} {}?{}",
        request.method(),
        request.uri().path(),
        kept.join("&")
    )
}

fn refusal(code: u16, retry_after: Option<u16>) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "message": "fault of the test",
    });
    let response = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json");
    let response = match retry_after {
        Some(seconds) => response.header(header::RETRY_AFTER, seconds),
        None => response,
    };
    response.body(status.to_string().into()).unwrap()
}
