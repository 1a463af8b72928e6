//! Exponential backoff, used by runs, queries, reconciles and notifications.

use std::time::Duration;

/// Returns the backoff after `count` consecutive failures: `first`, doubled with each further failure, at most `max`.
pub fn doubled(first: Duration, count: u32, max: Duration) -> Duration {
    let factor = 1_u32
        .checked_shl(count.saturating_sub(1))
        .unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_maximum() {
        let seconds =
            |count| doubled(Duration::from_secs(2), count, Duration::from_mins(1)).as_secs();
        let backoffs = [0, 1, 2, 5, 6, 32, 33, u32::MAX].map(seconds);
        assert_eq!(backoffs, [2, 2, 4, 32, 60, 60, 60, 60]);
    }
}
