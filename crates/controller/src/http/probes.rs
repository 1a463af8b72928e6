//! `/livez`: the loop turns. `/readyz`: the watches have listed everything once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::{Mutex, PoisonError};

/// A loop that did not turn for this long is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// Whether the operator is well.
#[derive(Clone)]
pub(crate) struct Health {
    ready: Arc<AtomicBool>,
    turned: Arc<Mutex<Instant>>,
}

impl Health {
    /// Alive, not yet ready.
    pub(crate) fn new() -> Self {
        Self {
            ready: Arc::default(),
            turned: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// The watches have listed everything.
    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// The loop turned.
    pub(crate) fn turn(&self) {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn alive(&self) -> bool {
        self.turned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
            < STUCK
    }
}

/// The probes' routes.
pub(crate) fn router(health: Health) -> Router {
    Router::new()
        .route(
            "/livez",
            get(|State(health): State<Health>| async move { answer(health.alive()) }),
        )
        .route(
            "/readyz",
            get(|State(health): State<Health>| async move {
                answer(health.ready.load(Ordering::Acquire))
            }),
        )
        .with_state(health)
}

fn answer(well: bool) -> (StatusCode, &'static str) {
    if well {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not yet\n")
    }
}
