//! Backoff between attempts.

use std::time::Duration;

/// Returns the backoff after `count` consecutive failures: `first`, doubled with each further failure, at most `longest`.
pub(crate) fn doubled(first: Duration, count: u32, longest: Duration) -> Duration {
    let wait = first.saturating_mul(1 << count.saturating_sub(1).min(16));
    wait.min(longest)
}
