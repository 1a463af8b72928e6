//! `/livez`, `/readyz` and `/version`.
//!
//! Live: the controller loop iterates, even if idle, and no reconcile takes longer than
//! [`RECONCILE_TIMEOUT`](crate::health::RECONCILE_TIMEOUT). All calls of a reconcile have time limits, so a longer reconcile hangs. Ready:
//! all watches have listed all objects once, and the Lease was read. Standby replicas are ready, too, because they can take over. A ready
//! operator stays ready if the API server becomes unreachable: marking it as unready would not repair the API server.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::health::Health;
use crate::version::Version;

/// Returns the routes `/livez`, `/readyz` and `/version`.
pub(crate) fn router(health: Health) -> Router {
    let live = get(|State(health): State<Health>| async move { respond(health.live()) });
    let ready = get(|State(health): State<Health>| async move { respond(health.ready()) });
    Router::new()
        .route("/livez", live)
        .route("/readyz", ready)
        .route("/version", get(version))
        .with_state(health)
}

fn respond(health: Result<String, String>) -> (StatusCode, String) {
    match health {
        Ok(detail) => (StatusCode::OK, format!("ok: {detail}\n")),
        Err(detail) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ok: {detail}\n"),
        ),
    }
}

async fn version() -> impl IntoResponse {
    let text = serde_json::to_string(&Version::this()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text + "\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use alustan_api::run::PROTOCOL;
    use alustan_core::leader_election::Identity;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::health::ITERATION_TIMEOUT;
    use crate::leader::Leader;
    use crate::resource::Ref;

    fn alive() -> Health {
        Health::new(Leader::leading())
    }

    async fn get_probe(health: &Health, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(health.clone()).oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn livez_fails_if_the_event_loop_hangs() {
        let health = alive();
        for _ in 0..30 {
            tokio::time::advance(Duration::from_secs(10)).await;
            health.record_iteration();
        }
        assert_eq!(get_probe(&health, "/livez").await.0, 200);
        tokio::time::advance(ITERATION_TIMEOUT).await;
        let (code, body) = get_probe(&health, "/livez").await;
        assert_eq!(
            (code, body.as_str()),
            (
                503,
                "not ok: no iteration of the controller loop for 60 s\n"
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn livez_fails_if_one_reconcile_hangs() {
        let health = alive();
        let hanging = health.begin_reconcile(&Ref::new("web").within("team"));
        for _ in 0..59 {
            tokio::time::advance(Duration::from_secs(10)).await;
            drop(health.begin_reconcile(&Ref::new("other").within("team")));
            health.record_iteration();
        }
        let (code, body) = get_probe(&health, "/livez").await;
        assert_eq!(code, 200);
        assert!(
            body.contains("active reconciles: 1, the oldest for 590 s"),
            "{body}"
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        health.record_iteration();
        let (code, body) = get_probe(&health, "/livez").await;
        assert_eq!(
            (code, body.as_str()),
            (
                503,
                "not ok: a reconcile has not finished for 600 s; see the log for the resource\n"
            )
        );
        drop(hanging);
        assert_eq!(get_probe(&health, "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn readyz_succeeds_on_each_replica_once_caches_are_filled() {
        let leads = Leader::leading();
        let stands_by = Leader::following(None);
        for (leader, role) in [
            (leads, "this replica is the leader"),
            (stands_by, "on standby; the leader is other"),
        ] {
            let health = Health::new(leader);
            assert_eq!(get_probe(&health, "/readyz").await.0, 503);
            assert_eq!(get_probe(&health, "/livez").await.0, 200);
            health.set_ready();
            let body = format!("ok: the initial lists of the watches are complete; {role}\n");
            assert_eq!(get_probe(&health, "/readyz").await, (200, body));
        }
    }

    #[tokio::test]
    async fn readyz_fails_until_the_lease_is_read() {
        let health = Health::new(Leader::new(Identity::new(None, "test")));
        health.set_ready();
        let body = "not ok: reading the Lease\n".to_owned();
        assert_eq!(get_probe(&health, "/readyz").await, (503, body));
    }

    #[tokio::test]
    async fn version_endpoint_returns_version_protocol_and_crd() {
        let (code, text) = get_probe(&alive(), "/version").await;
        assert_eq!(code, 200);
        let mut body: Value = serde_json::from_str(&text).unwrap();
        body.as_object_mut().unwrap().remove("commit");
        let version = env!("CARGO_PKG_VERSION");
        let wanted =
            json!({"version": version, "protocol": PROTOCOL, "crd": "alustan.io/v1alpha1"});
        assert_eq!(body, wanted);
    }
}
