//! A fake HTTP server in the role of a registry and its token service. Each test defines the responses.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Response, header},
};
use tokio::net::TcpListener;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    /// URL query, or the form fields in the body.
    pub(crate) fields: String,
    pub(crate) authorization: String,
    /// Size of the body, in bytes.
    pub(crate) bytes: usize,
}

/// Status, `WWW-Authenticate` and body of a response.
type Answer = (u16, Option<String>, String);

/// Computes the response from the host of the server and the request.
type Mood = dyn Fn(&str, &Seen) -> Answer + Send + Sync;

pub(crate) struct Fake {
    pub(crate) host: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

struct Behaviour {
    host: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Box<Mood>,
}

impl Fake {
    /// Starts the server. `answer` computes the response from the host of the server and the request.
    pub(crate) async fn start(
        answer: impl Fn(&str, &Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let behaviour = Behaviour {
            host: host.clone(),
            seen: seen.clone(),
            answer: Box::new(answer),
        };
        let app = Router::new()
            .fallback(serve)
            .with_state(Arc::new(behaviour));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { host, seen, task }
    }

    /// Returns the requests for `path` so far.
    pub(crate) fn seen(&self, path: &str) -> Vec<Seen> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .filter(|seen| seen.path == path)
            .cloned()
            .collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(State(behaviour): State<Arc<Behaviour>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let text = |name| {
        head.headers
            .get(name)
            .map(|value: &header::HeaderValue| value.to_str().unwrap().to_owned())
    };
    let form = String::from_utf8_lossy(&body).into_owned();
    let seen = Seen {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        fields: head.uri.query().map_or(form, str::to_owned),
        authorization: text(header::AUTHORIZATION).unwrap_or_default(),
        bytes: body.len(),
    };
    behaviour.seen.lock().unwrap().push(seen.clone());
    let (status, challenge, body) = (behaviour.answer)(&behaviour.host, &seen);
    let mut response = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(challenge) = challenge {
        response = response.header(header::WWW_AUTHENTICATE, challenge);
    }
    if (300..400).contains(&status) {
        response = response.header(header::LOCATION, &body);
    }
    response.body(Body::from(body)).unwrap()
}
