//! `/metrics` in the text format of `OpenMetrics`
//! (<https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>).

use std::sync::Arc;

use alustan_core::metric_definitions::{Counts, count};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;

use crate::health::Health;
use crate::indexed_store::IndexedStore;
use crate::leader::Leader;
use crate::metrics::{Metrics, ScrapeValues};
use crate::queue::{Dispatcher, Load};
use crate::resource::Guarded;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counters, and the sources of gauges that are computed for each scrape.
#[derive(Clone)]
pub(crate) struct MetricsSources {
    /// Counters and histograms.
    pub(crate) metrics: Arc<Metrics>,
    /// All resources.
    pub(crate) resources: IndexedStore<Guarded>,
    /// Active and queued runs.
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Health of the operator, which knows whether the watches have listed all objects.
    pub(crate) health: Health,
    /// Role of this replica in the leader election.
    pub(crate) leader: Leader,
}

/// Returns the route `/metrics`.
pub(crate) fn router(sources: MetricsSources) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .with_state(sources)
}

async fn scrape(State(sources): State<MetricsSources>) -> Response {
    let MetricsSources {
        metrics,
        resources,
        dispatcher,
        health,
        leader,
    } = sources;
    metrics.retain_failing(|resource| resources.contains(resource));
    // All replicas watch the resources. Only the leader reports them, so that a sum over replicas is correct.
    let (counts, load) = if leader.holds_lease() {
        let now = Timestamp::now();
        let summaries = resources.summaries().into_iter();
        let counts = count(summaries.map(|summary| summary.state), now);
        (counts, dispatcher.load(now))
    } else {
        (Counts::default(), Load::default())
    };
    let now = ScrapeValues {
        counts,
        load,
        ready: health.is_ready(),
        leads: leader.leads(),
    };
    match metrics.text(&now) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use alustan_core::queue::SlotLimits;
    use std::time::Duration;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use kube::runtime::watcher;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tower::ServiceExt;

    use super::*;
    use crate::error::Error;
    use crate::indexed_store::indexed_store;
    use crate::resource::Ref;

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
        Guarded(Ok(tf.unwrap()))
    }

    async fn scraped(sources: &MetricsSources) -> String {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let response = router(sources.clone()).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], OPEN_METRICS);
        let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(text.to_vec()).unwrap()
    }

    #[track_caller]
    fn assert_has_line(text: &str, line: &str) {
        assert!(
            text.lines().any(|candidate| candidate == line),
            "{line}\n{text}"
        );
    }

    fn sources(resources: IndexedStore<Guarded>, leader: Leader) -> MetricsSources {
        let (wake, _woken) = mpsc::unbounded_channel();
        MetricsSources {
            metrics: Metrics::new(),
            resources,
            dispatcher: Arc::new(Dispatcher::new(SlotLimits::new(7, 0), wake)),
            health: Health::new(leader.clone()),
            leader,
        }
    }

    #[tokio::test]
    async fn a_scrape_counts_the_resources_and_names_none() {
        let (resources, mut writer) = indexed_store();
        for (name, reason) in [("secret-project", "StateLost"), ("other", "StateLost")] {
            writer.apply(watcher::Event::Apply(resource(name, reason)));
        }
        let text = scraped(&sources(resources, Leader::leading())).await;
        assert_has_line(&text, "alustan_leader 1");
        assert_has_line(&text, "alustan_resources{state=\"Stalled\"} 2");
        assert_has_line(&text, "alustan_resources_stalled{reason=\"StateLost\"} 2");
        assert_has_line(&text, "alustan_run_places 7");
        for name in ["secret-project", "team", "git.test", "registry.test"] {
            assert!(!text.contains(name), "{name}");
        }
    }

    #[tokio::test]
    async fn scrape_reports_ready_0_until_the_caches_are_filled() {
        let (resources, mut writer) = indexed_store();
        writer.apply(watcher::Event::Apply(resource("web", "StateLost")));
        let sources = sources(resources, Leader::leading());
        let text = scraped(&sources).await;
        assert_has_line(&text, "alustan_ready 0");
        assert_has_line(&text, "alustan_reconciles_total{result=\"ok\"} 0");
        assert!(!text.contains("alustan_last_reconcile_timestamp_seconds{"));
        sources.health.set_ready();
        assert_has_line(&scraped(&sources).await, "alustan_ready 1");
    }

    #[tokio::test]
    async fn failing_resource_counts_once_until_success_or_deletion() {
        let (resources, mut writer) = indexed_store();
        let web = resource("web", "Rejected");
        writer.apply(watcher::Event::Apply(web.clone()));
        let sources = sources(resources, Leader::leading());
        let (reference, duration) = (Ref::new("web").within("team"), Duration::ZERO);
        let failed: Result<(), Error> = Err(Error::RandomSourceUnavailable);
        for _ in 0..3 {
            sources
                .metrics
                .record_reconcile(&reference, &failed, duration);
        }
        let text = scraped(&sources).await;
        assert_has_line(&text, "alustan_resources_reconcile_failed 1");
        assert_has_line(&text, "alustan_reconciles_total{result=\"error\"} 3");
        sources
            .metrics
            .record_reconcile(&reference, &Ok(()), duration);
        assert_has_line(
            &scraped(&sources).await,
            "alustan_resources_reconcile_failed 0",
        );
        sources
            .metrics
            .record_reconcile(&reference, &failed, duration);
        writer.apply(watcher::Event::Delete(web));
        assert_has_line(
            &scraped(&sources).await,
            "alustan_resources_reconcile_failed 0",
        );
    }

    #[tokio::test]
    async fn standby_replica_counts_no_resources() {
        let (resources, mut writer) = indexed_store();
        writer.apply(watcher::Event::Apply(resource("web", "StateLost")));
        let text = scraped(&sources(resources, Leader::following(None))).await;
        assert_has_line(&text, "alustan_leader 0");
        assert_has_line(&text, "alustan_run_places 0");
        assert_has_line(&text, "alustan_resources_drifted 0");
        assert!(!text.contains("alustan_resources{"), "{text}");
    }
}
