//! Bodies of requests from untrusted callers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Maximum time to receive a body.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum total size of bodies in memory, in bytes. For an incomplete body, the total includes only the bytes that have arrived.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Memory budget of request bodies.
#[derive(Clone)]
pub(super) struct BodyBudget(Arc<Semaphore>);

/// Body of a request. Dropping it frees its share of the memory budget.
pub(super) struct RequestBody {
    pub(super) bytes: Vec<u8>,
    _held: Option<OwnedSemaphorePermit>,
}

/// Reason why a body was not received.
pub(super) enum BodyError {
    /// The body did not arrive within [`BODY_TIMEOUT`].
    TooSlow,
    /// The body exceeds the maximum size.
    TooLarge,
    /// The transfer failed.
    Broken(axum::Error),
    /// Bodies of other requests occupy the memory budget.
    Busy,
}

impl Default for BodyBudget {
    fn default() -> Self {
        Self::of(MAX_TOTAL_BYTES)
    }
}

impl BodyBudget {
    fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Reads `body`, of at most `max_bytes` bytes.
    pub(super) async fn receive(
        &self,
        body: Body,
        max_bytes: usize,
    ) -> Result<RequestBody, BodyError> {
        let result = timeout(BODY_TIMEOUT, self.read(body, max_bytes)).await;
        result.map_err(|_| BodyError::TooSlow)?
    }

    async fn read(&self, body: Body, max_bytes: usize) -> Result<RequestBody, BodyError> {
        let (mut bytes, mut permit) = (Vec::new(), None::<OwnedSemaphorePermit>);
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(BodyError::Broken)?;
            let size = u32::try_from(chunk.len()).map_err(|_| BodyError::TooLarge)?;
            if bytes.len() + chunk.len() > max_bytes {
                return Err(BodyError::TooLarge);
            }
            let chunk_permit = self.0.clone().try_acquire_many_owned(size);
            let chunk_permit = chunk_permit.map_err(|_| BodyError::Busy)?;
            match &mut permit {
                Some(permit) => permit.merge(chunk_permit),
                None => permit = Some(chunk_permit),
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(RequestBody {
            bytes,
            _held: permit,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn body_buffers_are_bounded_and_released() {
        let budget = BodyBudget::of(10);
        let first = budget.receive(Body::from("12345678"), 8).await;
        let refused = budget.receive(Body::from("123"), 8).await;
        assert!(matches!(refused, Err(BodyError::Busy)));
        drop(first);
        let second = budget.receive(Body::from("123"), 8).await;
        assert_eq!(second.map(|body| body.bytes).ok().unwrap(), b"123");
        let long = budget.receive(Body::from("123456789"), 8).await;
        assert!(matches!(long, Err(BodyError::TooLarge)));
    }

    #[tokio::test]
    async fn at_most_64_mib_of_bodies_are_buffered_by_default() {
        let budget = BodyBudget::default();
        let body = budget
            .receive(Body::from(vec![0_u8; 64 << 20]), usize::MAX)
            .await;
        let second = budget.receive(Body::from("1"), 1).await;
        assert!(body.is_ok() && matches!(second, Err(BodyError::Busy)));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_body_reserves_only_received_bytes_and_times_out() {
        let budget = BodyBudget::of(10);
        let begun = stream::iter([Ok::<_, std::io::Error>("12")]);
        let slow = Body::from_stream(begun.chain(stream::pending()));
        let (slow, fast) = tokio::join!(budget.receive(slow, 8), async {
            tokio::time::sleep(BODY_TIMEOUT / 2).await;
            budget.receive(Body::from("12345678"), 8).await
        });
        assert!(matches!(slow, Err(BodyError::TooSlow)) && fast.is_ok());
    }
}
