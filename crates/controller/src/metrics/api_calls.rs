//! Client layer that counts calls of the API server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{Method, Request, Response};
use tower::{Layer, Service};

use super::Metrics;

/// Layer, and the service that it creates around the service `inner`.
#[derive(Clone)]
pub(crate) struct CallCounter<S = ()> {
    metrics: Arc<Metrics>,
    inner: S,
}

impl CallCounter {
    /// Creates a client layer that counts API server calls in `metrics`.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, inner: () }
    }
}

impl<S> Layer<S> for CallCounter {
    type Service = CallCounter<S>;

    fn layer(&self, inner: S) -> CallCounter<S> {
        CallCounter {
            metrics: self.metrics.clone(),
            inner,
        }
    }
}

impl<S, A, B> Service<Request<A>> for CallCounter<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (metrics, method) = (self.metrics.clone(), method(request.method()));
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            let code = response
                .as_ref()
                .ok()
                .map(|response| response.status().as_u16());
            metrics.record_call(method, code);
            response
        })
    }
}

/// Returns the label of `method`. Methods that Kubernetes does not use share a label.
fn method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use kube::client::ClientBuilder;
    use kube::{Api, Config};

    use super::super::ScrapeValues;
    use super::*;
    use crate::fake_api;

    #[tokio::test]
    async fn api_requests_are_counted_by_status_code() {
        let (address, _requests) = fake_api::address(|_| fake_api::not_found()).await;
        let metrics = Metrics::new();
        let mut config = Config::new(address.parse().unwrap());
        config.default_retry = false;
        let client = ClientBuilder::try_from(config).unwrap();
        let client = client
            .with_layer(&CallCounter::new(metrics.clone()))
            .build();
        let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client, "team");
        for _ in 0..2 {
            assert!(api.get_opt("web").await.unwrap().is_none());
        }
        let text = metrics.text(&ScrapeValues::default()).unwrap();
        let line = "alustan_api_requests_total{method=\"GET\",code=\"404\"} 2\n";
        assert!(text.contains(line), "{text}");
    }
}
