//! Deadline and backoff of retries.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Time after which an operation is not retried.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    end: Instant,
}

impl Patience {
    /// Returns a deadline `time` from now.
    pub fn lasting(time: Duration) -> Self {
        Self {
            end: Instant::now() + time,
        }
    }

    /// Returns the deadline `end`.
    pub fn until(end: Instant) -> Self {
        Self { end }
    }

    /// Returns true once the deadline has passed.
    pub fn is_over(self) -> bool {
        Instant::now() >= self.end
    }
}

/// Returns the backoff between attempts: exponential with jitter, 100 ms to 5 s, without a limit on attempts.
pub fn pause_between_tries() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(5))
        .with_jitter()
        .without_max_times()
        .build()
}
