//! Turns of queues: whoever waits in one keeps no other queue waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Turns, so many at once in each queue.
pub(crate) struct Turns {
    at_once: usize,
    queues: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Turns {
    /// Queues in which nothing waits yet.
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            at_once,
            queues: Mutex::default(),
        }
    }

    /// A turn of `queue`, until it is dropped.
    pub(crate) async fn take(&self, queue: &str) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut all = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever waits or has a turn has a share in it.
            all.retain(|_, turns| Arc::strong_count(turns) > 1);
            let new = || Arc::new(Semaphore::new(self.at_once));
            all.entry(queue.to_owned()).or_insert_with(new).clone()
        };
        turns.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn those_who_wait_for_a_slow_place_keep_nobody_else_waiting() {
        let turns = Turns::new(8);
        let taken = join_all((0..8).map(|_| turns.take("team"))).await;
        let soon = Duration::from_millis(50);
        assert!(timeout(soon, turns.take("team")).await.is_err());
        for other in ["other", "https://events.test/"] {
            assert!(timeout(soon, turns.take(other)).await.is_ok(), "{other}");
        }
        drop(taken);
        assert!(timeout(soon, turns.take("team")).await.is_ok());
        assert!(
            turns.queues.lock().unwrap().len() <= 3,
            "who is done is forgotten"
        );
    }
}
