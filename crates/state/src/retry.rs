//! How long, and how often, something is tried again.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The time until which it is worth trying.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    end: Instant,
}

impl Patience {
    /// From now on for `time`.
    pub fn lasting(time: Duration) -> Self {
        Self {
            end: Instant::now() + time,
        }
    }

    /// Until `end`.
    pub fn until(end: Instant) -> Self {
        Self { end }
    }

    /// Whether it is over.
    pub fn is_over(self) -> bool {
        Instant::now() >= self.end
    }
}

/// The pauses between tries: short first, 5 s at most, without an end.
pub fn pause_between_tries() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(5))
        .with_jitter()
        .without_max_times()
        .build()
}
