//! `/metrics`: text of `OpenMetrics`
//! (<https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>).

use std::sync::Arc;

use alustan_core::metrics::count;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kube::runtime::reflector::Store;

use crate::Guarded;
use crate::dispatch::Dispatcher;
use crate::metrics::Metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is measured, and what is counted when somebody asks.
#[derive(Clone)]
pub(crate) struct Measured {
    /// What was counted so far.
    pub(crate) metrics: Arc<Metrics>,
    /// All resources.
    pub(crate) resources: Store<Guarded>,
    /// Who runs and who waits.
    pub(crate) dispatcher: Arc<Dispatcher>,
}

/// The route.
pub(crate) fn router(measured: Measured) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .with_state(measured)
}

async fn scrape(State(measured): State<Measured>) -> Response {
    let all = measured.resources.state();
    let counts = count(all.iter().map(|it| it.0.as_ref().ok()));
    let load = measured.dispatcher.load();
    match measured.metrics.text(&counts, &load) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use kube::core::DeserializeGuard;
    use kube::runtime::{reflector, watcher};
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tower::ServiceExt;

    use super::*;

    fn resource(name: &str, reason: &str) -> Guarded {
        let condition = |kind: &str, status: &str| -> Value {
            json!({
                "type": kind, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let tf = serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {
                "gitRepo": {"url": "https://git.test/a/b"},
                "containerRegistry": {"imageName": "registry.test/a/b"},
            },
            "status": {
                "state": "Stalled",
                "conditions": [condition("Ready", "False"), condition("Stalled", "True")],
            },
        }));
        DeserializeGuard(Ok(tf.unwrap()))
    }

    #[tokio::test]
    async fn a_scrape_counts_the_resources_and_names_none() {
        let (resources, mut writer) = reflector::store();
        for (name, reason) in [("secret-project", "StateLost"), ("other", "StateLost")] {
            writer.apply_watcher_event(&watcher::Event::Apply(resource(name, reason)));
        }
        let (wake, _woken) = mpsc::unbounded_channel();
        let app = router(Measured {
            metrics: Metrics::new(),
            resources,
            dispatcher: Arc::new(Dispatcher::new(7, wake)),
        });
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let answer = app.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], OPEN_METRICS);
        let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        for line in [
            "alustan_resources{state=\"Stalled\"} 2",
            "alustan_resources_stalled{reason=\"StateLost\"} 2",
            "alustan_run_places 7",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        for name in ["secret-project", "team", "git.test", "registry.test"] {
            assert!(!text.contains(name), "{name}");
        }
    }
}
