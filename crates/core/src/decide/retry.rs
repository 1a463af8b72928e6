//! Backoff and retry budget (rule 10).

use alustan_api::Retry;
use alustan_api::run::Failures;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::backoff::doubled;

/// Maximum clock skew. A failure with a time further in the future causes no backoff.
const AHEAD: SignedDuration = SignedDuration::from_mins(10);

/// Decision about a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Retry now.
    Go,
    /// Retry at this timestamp.
    WaitUntil(Timestamp),
    /// The retry budget is exhausted.
    Stalled,
}

/// Returns the decision about a retry at `now`. `key`: key under which failures of the current configuration are counted. Failures with
/// another key are ignored.
pub(super) fn verdict(failures: &Failures, key: &str, retry: &Retry, now: Timestamp) -> Verdict {
    let Some(at) = failures.at.filter(|_| failures.of == key) else {
        return Verdict::Go;
    };
    if failures.count >= u32::try_from(retry.limit).unwrap_or(1) {
        return Verdict::Stalled;
    }
    let next = at + backoff(failures.count.max(failures.transient), retry);
    if next <= now || at > now + AHEAD {
        Verdict::Go
    } else {
        Verdict::WaitUntil(next)
    }
}

/// Returns the backoff of runs after `failures` consecutive failures.
fn backoff(failures: u32, retry: &Retry) -> SignedDuration {
    let backoff = doubled(retry.min_backoff.into(), failures, retry.max_backoff.into());
    SignedDuration::try_from(backoff).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failures(count: u32, transient: u32) -> Failures {
        Failures {
            of: "h".to_owned(),
            count,
            transient,
            at: Some(at(1_000)),
            ..Failures::default()
        }
    }

    #[test]
    fn backoff_doubles_up_to_maximum() {
        let retry = Retry {
            limit: 10,
            ..Retry::default()
        };
        let backoffs: Vec<i64> = (1..9)
            .map(
                |count| match verdict(&failures(count, 0), "h", &retry, at(1_000)) {
                    Verdict::WaitUntil(next) => next.as_second() - 1_000,
                    verdict => panic!("{verdict:?}"),
                },
            )
            .collect();
        assert_eq!(backoffs, [10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[test]
    fn retry_budget_is_per_config_hash_and_does_not_expire() {
        let retry = Retry::default();
        assert_eq!(
            verdict(&failures(5, 0), "h", &retry, at(9_000)),
            Verdict::Stalled
        );
        assert_eq!(
            verdict(&failures(5, 0), "other", &retry, at(1_000)),
            Verdict::Go
        );
        assert_eq!(
            verdict(&failures(4, 0), "h", &retry, at(9_000)),
            Verdict::Go
        );
    }

    #[test]
    fn transient_failures_back_off_without_using_budget() {
        let retry = Retry::default();
        assert_eq!(
            verdict(&failures(0, 500), "h", &retry, at(1_599)),
            Verdict::WaitUntil(at(1_600))
        );
        assert_eq!(
            verdict(&failures(0, 500), "h", &retry, at(1_600)),
            Verdict::Go
        );
    }
}
