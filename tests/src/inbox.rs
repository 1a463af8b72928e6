//! HTTP server outside of the cluster that receives notifications.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::addresses::host;

/// Receiver of notifications, which keeps all messages.
#[derive(Clone)]
pub struct Inbox {
    /// `host:port`, as reached by pods.
    pub address: String,
    messages: Arc<Mutex<Vec<Message>>>,
    refused: Arc<AtomicUsize>,
}

/// Received message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Headers of the request.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: String,
    /// Whether the inbox accepted the message. It refuses messages with status 503.
    pub accepted: bool,
}

impl Message {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    /// Returns the body, parsed as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Inbox {
    /// Starts an empty inbox that refuses the first `refused` messages.
    pub async fn start(refused: usize) -> Self {
        let listener = TcpListener::bind((host(), 0))
            .await
            .expect("an address of the dev cluster's link");
        let inbox = Self {
            address: listener.local_addr().expect("an address").to_string(),
            messages: Arc::default(),
            refused: Arc::new(AtomicUsize::new(refused)),
        };
        let router = Router::new()
            .route("/", post(take))
            .with_state(inbox.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        inbox
    }

    /// Returns all messages in order, including refused ones.
    pub fn messages(&self) -> Vec<Message> {
        self.messages.lock().unwrap().clone()
    }
}

async fn take(State(inbox): State<Inbox>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let fewer = |remaining: usize| remaining.checked_sub(1);
    let refused = inbox
        .refused
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    let message = Message {
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
        accepted: refused.is_err(),
    };
    inbox.messages.lock().unwrap().push(message);
    match refused {
        Ok(_) => StatusCode::SERVICE_UNAVAILABLE,
        Err(_) => StatusCode::NO_CONTENT,
    }
}
