//! Client layer that refuses writes unless this replica leads.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::{Method, Request, Response};
use tokio::time::timeout_at;
use tower::{BoxError, Layer, Service};

use super::Leader;
use crate::error::NotLeading;

/// Layer, and the service that it creates around the service `inner`. Passes all reads. A write starts only while this replica leads
/// according to its own clock, and is aborted before another replica can lead.
#[derive(Clone)]
pub(crate) struct Fence<S = ()> {
    leader: Leader,
    inner: S,
}

impl Fence {
    /// Creates a layer that passes writes while `leader` leads.
    pub(crate) fn new(leader: Leader) -> Self {
        Self { leader, inner: () }
    }
}

impl<S> Layer<S> for Fence {
    type Service = Fence<S>;

    fn layer(&self, inner: S) -> Fence<S> {
        Fence {
            leader: self.leader.clone(),
            inner,
        }
    }
}

impl<S, A, B> Service<Request<A>> for Fence<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            let response = self.inner.call(request);
            return Box::pin(async move { response.await.map_err(Into::into) });
        }
        match self.leader.begin_write() {
            Ok(guard) => {
                let (response, leader) = (self.inner.call(request), self.leader.clone());
                Box::pin(async move {
                    let _guard = guard;
                    before_deadline(&leader, response)
                        .await?
                        .map_err(Into::into)
                })
            }
            Err(refused) => Box::pin(async move { Err(refused.into()) }),
        }
    }
}

/// Waits for `response` as long as `leader` leads. A renewal extends the wait.
async fn before_deadline<T>(
    leader: &Leader,
    response: impl Future<Output = T>,
) -> Result<T, NotLeading> {
    let mut response = std::pin::pin!(response);
    loop {
        let deadline = leader.write_deadline();
        if let Ok(response) = timeout_at(deadline, &mut response).await {
            return Ok(response);
        }
        if leader.write_deadline() <= deadline {
            return Err(NotLeading);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use alustan_core::leader_election::{WRITE_PERIOD, WRITE_START_PERIOD};
    use tokio::time::{Instant, advance, sleep};
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// Calls a server that responds after `seconds`. Returns the result, and whether the server received the request.
    async fn call(leader: &Leader, method: Method, seconds: u64) -> (Result<(), NotLeading>, bool) {
        let arrived = Arc::new(AtomicUsize::new(0));
        let seen = arrived.clone();
        let server = service_fn(move |_: Request<()>| {
            seen.fetch_add(1, Ordering::SeqCst);
            async move {
                sleep(Duration::from_secs(seconds)).await;
                Ok::<_, BoxError>(Response::new(()))
            }
        });
        let request = Request::builder().method(method).body(()).unwrap();
        let response = Fence::new(leader.clone())
            .layer(server)
            .oneshot(request)
            .await;
        let response = response
            .map(drop)
            .map_err(|error| *error.downcast().unwrap());
        (response, arrived.load(Ordering::SeqCst) == 1)
    }

    #[tokio::test(start_paused = true)]
    async fn writes_need_a_recently_renewed_lease_and_reads_do_not() {
        let leader = Leader::leading();
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        for method in writes.clone() {
            assert_eq!(call(&leader, method, 0).await, (Ok(()), true));
        }
        advance(WRITE_START_PERIOD).await;
        for method in writes {
            assert_eq!(call(&leader, method, 0).await, (Err(NotLeading), false));
        }
        assert_eq!(call(&leader, Method::GET, 600).await, (Ok(()), true));
    }

    #[tokio::test(start_paused = true)]
    async fn standby_replica_writes_nothing() {
        let follower = Leader::following(None);
        assert_eq!(
            call(&follower, Method::PATCH, 0).await,
            (Err(NotLeading), false)
        );
        assert_eq!(call(&follower, Method::GET, 0).await, (Ok(()), true));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_write_is_aborted_before_another_replica_leads() {
        let leader = Leader::leading();
        let began = Instant::now();
        advance(Duration::from_secs(9)).await;
        assert_eq!(
            call(&leader, Method::PATCH, 60).await,
            (Err(NotLeading), true)
        );
        assert_eq!(began.elapsed().as_secs(), WRITE_PERIOD.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_write_completes_while_the_lease_is_renewed() {
        let leader = Leader::leading();
        let renewed = leader.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                sleep(Duration::from_secs(3)).await;
                renewed.renew();
            }
        });
        assert_eq!(call(&leader, Method::PATCH, 20).await, (Ok(()), true));
    }
}
