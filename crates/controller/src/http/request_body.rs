//! Bodies of requests from untrusted callers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Maximum time to receive a body.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum total size of bodies in memory, in bytes. A slow request counts only with the bytes that have arrived.
const MOST: usize = 64 << 20;

/// Memory budget of request bodies.
#[derive(Clone)]
pub(super) struct Budget(Arc<Semaphore>);

/// Body of a request. Dropping it frees its share of the memory budget.
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    _held: Option<OwnedSemaphorePermit>,
}

/// Reason why a body was not received.
pub(super) enum Unreceived {
    /// The body did not arrive within [`PATIENCE`].
    TooSlow,
    /// The body exceeds the maximum size.
    TooLarge,
    /// The transfer failed.
    Broken(axum::Error),
    /// Bodies of other requests occupy the memory budget.
    Busy,
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(MOST)
    }
}

impl Budget {
    fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Reads `body`, of at most `longest` bytes.
    pub(super) async fn receive(&self, body: Body, longest: usize) -> Result<Received, Unreceived> {
        let received = timeout(PATIENCE, self.read(body, longest)).await;
        received.map_err(|_| Unreceived::TooSlow)?
    }

    async fn read(&self, body: Body, longest: usize) -> Result<Received, Unreceived> {
        let (mut bytes, mut held) = (Vec::new(), None::<OwnedSemaphorePermit>);
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(Unreceived::Broken)?;
            let size = u32::try_from(chunk.len()).map_err(|_| Unreceived::TooLarge)?;
            if bytes.len() + chunk.len() > longest {
                return Err(Unreceived::TooLarge);
            }
            let more = self.0.clone().try_acquire_many_owned(size);
            let more = more.map_err(|_| Unreceived::Busy)?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Received { bytes, _held: held })
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn body_buffers_are_bounded_and_released() {
        let budget = Budget::of(10);
        let first = budget.receive(Body::from("12345678"), 8).await;
        let refused = budget.receive(Body::from("123"), 8).await;
        assert!(matches!(refused, Err(Unreceived::Busy)));
        drop(first);
        let second = budget.receive(Body::from("123"), 8).await;
        assert_eq!(second.map(|it| it.bytes).ok().unwrap(), b"123");
        let long = budget.receive(Body::from("123456789"), 8).await;
        assert!(matches!(long, Err(Unreceived::TooLarge)));
    }

    #[tokio::test]
    async fn at_most_64_mib_of_bodies_are_buffered_by_default() {
        let budget = Budget::default();
        let all = budget
            .receive(Body::from(vec![0_u8; 64 << 20]), usize::MAX)
            .await;
        let more = budget.receive(Body::from("1"), 1).await;
        assert!(all.is_ok() && matches!(more, Err(Unreceived::Busy)));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_body_reserves_only_received_bytes_and_times_out() {
        let budget = Budget::of(10);
        let begun = stream::iter([Ok::<_, std::io::Error>("12")]);
        let slow = Body::from_stream(begun.chain(stream::pending()));
        let (slow, fast) = tokio::join!(budget.receive(slow, 8), async {
            tokio::time::sleep(PATIENCE / 2).await;
            budget.receive(Body::from("12345678"), 8).await
        });
        assert!(matches!(slow, Err(Unreceived::TooSlow)) && fast.is_ok());
    }
}
