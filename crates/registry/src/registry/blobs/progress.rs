//! Progress of an upload, to detect an upload that stalls.

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use reqwest::Body;
use tokio::time::timeout;

use crate::error::Error;

/// Progress of an upload.
pub(super) struct Progress {
    size: u64,
    sent: AtomicU64,
    /// Error that ended the reading of the content to upload; `None` without an error.
    fault: parking_lot::Mutex<Option<Error>>,
}

/// Error of an upload that made no progress for the contained duration.
pub(super) struct Stalled(pub(super) Duration);

impl Progress {
    pub(super) fn new(size: u64) -> Self {
        Self {
            size,
            sent: AtomicU64::new(0),
            fault: parking_lot::Mutex::default(),
        }
    }

    /// Returns a request body that records its progress and its error in `self`.
    pub(super) fn body(
        self: &Arc<Self>,
        content: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
    ) -> Body {
        let progress = self.clone();
        Body::wrap_stream(content.map(move |chunk| progress.note(chunk)))
    }

    fn note(&self, chunk: Result<Bytes, Error>) -> io::Result<Bytes> {
        match chunk {
            Ok(chunk) => {
                self.sent.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                Ok(chunk)
            }
            Err(error) => {
                *self.fault.lock() = Some(error);
                Err(io::Error::other("failed to read the content of the upload"))
            }
        }
    }

    pub(super) fn fault(&self) -> Option<Error> {
        self.fault.lock().take()
    }

    /// Waits for `work`, an upload. Fails if no byte is sent within `stall`, or if `work` does not end within `end` after the last byte.
    /// Checks the progress at intervals of `stall` until the last byte is sent, and then at intervals of `end`. An idle upload therefore
    /// fails after at most two intervals.
    pub(super) async fn watch<T>(
        &self,
        work: impl Future<Output = T>,
        stall: Duration,
        end: Duration,
    ) -> Result<T, Stalled> {
        let mut work = pin!(work);
        loop {
            let before = self.sent.load(Ordering::Relaxed);
            let patience = if before < self.size { stall } else { end };
            match timeout(patience, &mut work).await {
                Ok(done) => return Ok(done),
                Err(_) if self.sent.load(Ordering::Relaxed) == before => {
                    return Err(Stalled(patience));
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn upload_without_progress_is_stalled() {
        let progress = Progress::new(2);
        let stall = Duration::from_secs(1);
        let end = Duration::from_mins(1);
        let stuck = progress.watch(std::future::pending::<()>(), stall, end);
        assert_eq!(stuck.await.unwrap_err().0, stall);
        let slow = async {
            for _ in 0..2 {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                progress.note(Ok(Bytes::from_static(b"x"))).unwrap();
            }
            tokio::time::sleep(Duration::from_secs(59)).await;
        };
        let stall = Duration::from_secs(2);
        assert!(progress.watch(slow, stall, end).await.is_ok());
        let stuck = progress.watch(std::future::pending::<()>(), stall, end);
        assert_eq!(stuck.await.unwrap_err().0, end);
    }
}
