//! `/livez`, `/readyz` and `/version`.
//!
//! Alive: the loop turns, also while there is nothing to do, and no look hangs. A look is bounded by
//! the time limits of its calls; one that goes on for [`HUNG`] will not end. Ready: all watches have
//! listed everything once, and the Lease was read; who stands by is ready, too, to take over. From
//! then on the operator stays ready: an API server that is out of reach is not mended by taking the
//! operator away.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::time::Instant;
use tracing::warn;

use crate::Ref;
use crate::leader::{Leader, Role};
use crate::version::Version;

/// A loop that did not turn for this long is stuck: it turns every ten seconds at least.
const STUCK: Duration = Duration::from_mins(1);
/// A look that goes on for this long hangs.
const HUNG: Duration = Duration::from_mins(10);

/// Whether the operator is well.
#[derive(Clone)]
pub(crate) struct Health(Arc<Inner>);

struct Inner {
    leader: Leader,
    warm: AtomicBool,
    loops: Mutex<Loop>,
}

struct Loop {
    turned: Instant,
    /// Looks that go on, by their numbers.
    looks: BTreeMap<u64, (Instant, Ref)>,
    next: u64,
}

/// A look that goes on, until it is dropped.
pub(crate) struct Looking {
    health: Health,
    number: u64,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.health.lock().looks.remove(&self.number);
    }
}

impl Health {
    /// Alive, not yet ready; `leader` knows what part it takes.
    pub(crate) fn new(leader: Leader) -> Self {
        Self(Arc::new(Inner {
            leader,
            warm: AtomicBool::default(),
            loops: Mutex::new(Loop {
                turned: Instant::now(),
                looks: BTreeMap::new(),
                next: 0,
            }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Loop> {
        self.0.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watches have listed everything.
    pub(crate) fn set_ready(&self) {
        self.0.warm.store(true, Ordering::Release);
    }

    /// The loop turned.
    pub(crate) fn turn(&self) {
        self.lock().turned = Instant::now();
    }

    /// A look at `who` begins.
    pub(crate) fn look(&self, who: &Ref) -> Looking {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.looks.insert(number, (Instant::now(), who.clone()));
        Looking {
            health: self.clone(),
            number,
        }
    }

    /// Whether it is alive, and why or why not.
    fn live(&self) -> Result<String, String> {
        let state = self.lock();
        let turned = state.turned.elapsed();
        let age = turned.as_secs();
        if turned >= STUCK {
            return Err(format!("the loop has not turned for {age} s"));
        }
        // Numbers grow with time: the first is the oldest.
        let Some((began, who)) = state.looks.values().next() else {
            return Ok(format!("the loop turned {age} s ago; no look goes on"));
        };
        let oldest = began.elapsed();
        let (many, seconds) = (state.looks.len(), oldest.as_secs());
        if oldest >= HUNG {
            // Callers of the probe may lack permission to list resources.
            warn!(resource = %who, seconds, "reconcile hangs");
            return Err(format!("a reconcile hangs for {seconds} s: see the log"));
        }
        Ok(format!(
            "the loop turned {age} s ago; looks that go on: {many}, the oldest for {seconds} s"
        ))
    }

    /// Whether the watches have listed everything.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.warm.load(Ordering::Acquire)
    }

    fn ready(&self) -> Result<String, String> {
        if !self.is_ready() {
            return Err("the watches have not yet listed everything once".to_owned());
        }
        match self.0.leader.role() {
            Role::Has(role) => Ok(format!("the watches have listed everything; {role}")),
            Role::None(why) => Err(why),
        }
    }
}

/// The routes.
pub(crate) fn router(health: Health) -> Router {
    let live = get(|State(health): State<Health>| async move { answer(health.live()) });
    let ready = get(|State(health): State<Health>| async move { answer(health.ready()) });
    Router::new()
        .route("/livez", live)
        .route("/readyz", ready)
        .route("/version", get(version))
        .with_state(health)
}

fn answer(well: Result<String, String>) -> (StatusCode, String) {
    match well {
        Ok(why) => (StatusCode::OK, format!("ok: {why}\n")),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ok: {why}\n")),
    }
}

async fn version() -> impl IntoResponse {
    let text = serde_json::to_string(&Version::this()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text + "\n")
}

#[cfg(test)]
mod tests {
    use alustan_api::run::PROTOCOL;
    use alustan_core::lease::Identity;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    fn alive() -> Health {
        Health::new(Leader::leading())
    }

    async fn ask(health: &Health, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router(health.clone()).oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_waits_for_events_is_alive_and_one_that_does_not_turn_is_not() {
        let health = alive();
        for _ in 0..30 {
            tokio::time::advance(Duration::from_secs(10)).await;
            health.turn();
        }
        assert_eq!(ask(&health, "/livez").await.0, 200);
        tokio::time::advance(STUCK).await;
        let (code, why) = ask(&health, "/livez").await;
        assert_eq!(
            (code, why.as_str()),
            (503, "not ok: the loop has not turned for 60 s\n")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_told_although_the_loop_turns_and_others_end() {
        let health = alive();
        let hanging = health.look(&Ref::new("web").within("team"));
        for _ in 0..59 {
            tokio::time::advance(Duration::from_secs(10)).await;
            drop(health.look(&Ref::new("other").within("team")));
            health.turn();
        }
        let (code, why) = ask(&health, "/livez").await;
        assert_eq!(code, 200);
        assert!(
            why.contains("looks that go on: 1, the oldest for 590 s"),
            "{why}"
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        health.turn();
        let (code, why) = ask(&health, "/livez").await;
        assert_eq!(
            (code, why.as_str()),
            (503, "not ok: a reconcile hangs for 600 s: see the log\n")
        );
        drop(hanging);
        assert_eq!(ask(&health, "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn it_is_ready_once_the_caches_are_warm_whoever_leads() {
        let leads = Leader::leading();
        let stands_by = Leader::following(None);
        for (leader, role) in [
            (leads, "this replica leads"),
            (stands_by, "stands by while other leads"),
        ] {
            let health = Health::new(leader);
            assert_eq!(ask(&health, "/readyz").await.0, 503);
            assert_eq!(ask(&health, "/livez").await.0, 200);
            health.set_ready();
            let told = format!("ok: the watches have listed everything; {role}\n");
            assert_eq!(ask(&health, "/readyz").await, (200, told));
        }
    }

    #[tokio::test]
    async fn who_cannot_read_the_lease_is_no_replica_to_count_on() {
        let health = Health::new(Leader::new(Identity::new(None, "test")));
        health.set_ready();
        let told = "not ok: the Lease is being read\n".to_owned();
        assert_eq!(ask(&health, "/readyz").await, (503, told));
    }

    #[tokio::test]
    async fn the_version_tells_what_runs() {
        let (code, text) = ask(&alive(), "/version").await;
        assert_eq!(code, 200);
        let mut told: Value = serde_json::from_str(&text).unwrap();
        told.as_object_mut().unwrap().remove("commit");
        let version = env!("CARGO_PKG_VERSION");
        let wanted =
            json!({"version": version, "protocol": PROTOCOL, "crd": "alustan.io/v1alpha1"});
        assert_eq!(told, wanted);
    }
}
