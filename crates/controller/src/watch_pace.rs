//! Client layer that limits the rate of watch requests.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{Request, Uri};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tower::{Layer, Service};

/// Minimum time between two watch requests with the same path and selector. The watcher of kube-runtime has a backoff after an error only: when
/// the API server ends a watch, it requests the next one immediately, also if no watch lasts, for example because a proxy ends each response.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Layer, and the service that it creates around the service `inner`. Delays watch requests. `inner` must send a request only when its future
/// is polled, as the client of kube does.
#[derive(Clone, Default)]
pub(crate) struct WatchPace<S = ()> {
    /// Time of the last watch request within [`MIN_INTERVAL`] by path and query, without the resource version.
    last: Arc<Mutex<HashMap<String, Instant>>>,
    inner: S,
}

impl<S> Layer<S> for WatchPace {
    type Service = WatchPace<S>;

    fn layer(&self, inner: S) -> WatchPace<S> {
        WatchPace {
            last: self.last.clone(),
            inner,
        }
    }
}

impl<S, A> Service<Request<A>> for WatchPace<S>
where
    S: Service<Request<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let start = watched(request.uri()).map(|watched| self.next_start(watched));
        let response = self.inner.call(request);
        Box::pin(async move {
            if let Some(start) = start {
                sleep_until(start).await;
            }
            response.await
        })
    }
}

impl<S> WatchPace<S> {
    /// Returns when the next request for `watched` may be sent, and records it.
    fn next_start(&self, watched: String) -> Instant {
        let now = Instant::now();
        let mut last = self.last.lock();
        last.retain(|_, sent| *sent + MIN_INTERVAL > now);
        let start = last.get(&watched).map_or(now, |sent| *sent + MIN_INTERVAL);
        last.insert(watched, start);
        start
    }
}

/// Returns path and query of a watch request, without the resource version. `None` for other requests.
fn watched(uri: &Uri) -> Option<String> {
    let parameters = uri.query()?.split('&');
    let is_watch = parameters
        .clone()
        .any(|parameter| parameter == "watch=true");
    let kept = parameters.filter(|parameter| !parameter.starts_with("resourceVersion="));
    is_watch.then(|| format!("{}?{}", uri.path(), kept.collect::<Vec<_>>().join("&")))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watches_that_end_immediately_are_requested_once_per_second() {
        let server = service_fn(async |_: Request<()>| Ok::<_, Infallible>(()));
        let client = WatchPace::default().layer(server);
        let send = async |uri: &str| {
            let request = Request::builder().uri(uri).body(()).unwrap();
            client.clone().oneshot(request).await.unwrap();
        };
        let start = Instant::now();
        for version in 0..10 {
            send(&format!(
                "/api/v1/pods?watch=true&resourceVersion={version}"
            ))
            .await;
        }
        assert_eq!(start.elapsed(), 9 * MIN_INTERVAL);
        for other in [
            "/api/v1/pods",
            "/api/v1/pods?limit=1",
            "/api/v1/secrets?watch=true",
        ] {
            send(other).await;
        }
        assert_eq!(start.elapsed(), 9 * MIN_INTERVAL);
        assert_eq!(client.last.lock().len(), 2);
        tokio::time::advance(MIN_INTERVAL).await;
        send("/api/v1/pods?watch=true").await;
        assert_eq!(start.elapsed(), 10 * MIN_INTERVAL);
    }
}
