//! Schedule of drift checks. The uid of a resource determines one time per interval for its check, which spreads the checks of many
//! resources over the interval.
//!
//! A resource has at most one check in the queue, and missed checks are not repeated. While more checks are due than there are slots for
//! drift checks, checks start late. A check that ends more than half an interval late replaces the next one, so intervals stretch until
//! demand and capacity match.

use std::time::Duration;

use alustan_api::run::History;
use alustan_api::{DriftMode, Terraform};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use crate::digest;

/// Number of consecutive late checks after which the status reports them. One late check, for example after an outage of the operator,
/// causes no write.
const REPORTED_LATE_CHECKS: u8 = 2;
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// A hundred years. Longer intervals exceed the range of timestamps.
const MAX_INTERVAL: Duration = Duration::from_hours(100 * 365 * 24);

/// A drift check of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueCheck {
    /// Time of the last comparison of the real objects with the configuration.
    pub checked: Timestamp,
    /// Time at which the check is due.
    pub at: Timestamp,
    /// Time between two checks of the resource.
    pub interval: SignedDuration,
}

impl DueCheck {
    /// Returns the next drift check of `tf`. `None` if the resource was never checked, or in the future because of clock skew: then a check is
    /// due.
    pub fn of(
        tf: &Terraform,
        history: &History,
        leading_since: Timestamp,
        now: Timestamp,
    ) -> Option<Self> {
        let checked = history.checked_at.filter(|at| *at <= now)?;
        let interval = tf.spec.drift_detection.interval.into();
        let uid = tf.uid().unwrap_or_default();
        Some(Self::after(checked, interval, &uid, leading_since))
    }

    /// Returns the drift check after a comparison with the real objects at `checked`: at the first time of the resource that is at least half
    /// an interval later. A check that was overdue by more than an interval when this operator started to lead is skipped: the check is at
    /// the first time of the resource after `leading_since`. After an outage, the checks are therefore spread over an interval.
    pub fn after(
        checked: Timestamp,
        interval: Duration,
        uid: &str,
        leading_since: Timestamp,
    ) -> Self {
        let interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL).as_millis();
        let interval = i64::try_from(interval).unwrap_or(i64::MAX);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the product is less than `interval`, which is an i64"
        )]
        #[expect(clippy::cast_precision_loss, reason = "jitter needs no precision")]
        let offset = (digest::fraction(uid) * interval as f64) as i64;
        let next_time =
            |after: i64| ((after - offset).div_euclid(interval) + 1) * interval + offset;
        let due = next_time(checked.as_millisecond() + interval / 2);
        let leading_since = leading_since.as_millisecond();
        let at = if leading_since - due > interval {
            next_time(leading_since)
        } else {
            due
        };
        Self {
            checked,
            at: Timestamp::from_millisecond(at).unwrap_or(Timestamp::MAX),
            interval: SignedDuration::from_millis(interval),
        }
    }

    /// Returns the time from the last comparison to a check that starts at `start`, in multiples of the interval.
    pub fn stretch(self, start: Timestamp) -> f64 {
        start.duration_since(self.checked).as_secs_f64() / self.interval.as_secs_f64()
    }

    /// Whether a check that starts at `start` is late: more than one and a half intervals after the last comparison. A check that starts at
    /// its time is never late.
    pub fn is_late(self, start: Timestamp) -> bool {
        self.stretch(start) > 1.5
    }
}

/// Returns the number of consecutive late checks after another check. `previous`: the number before that check.
pub(crate) fn late_checks(previous: u8, is_late: bool) -> u8 {
    if is_late {
        previous.saturating_add(1).min(REPORTED_LATE_CHECKS)
    } else {
        0
    }
}

/// Returns a message suffix if the last drift checks of `tf` were late.
pub(crate) fn late_suffix(tf: &Terraform, history: &History) -> String {
    let drift = &tf.spec.drift_detection;
    if history.late_checks < REPORTED_LATE_CHECKS || drift.mode == DriftMode::Ignore {
        return String::new();
    }
    format!(
        "; the last {REPORTED_LATE_CHECKS} drift checks started more than 1.5 times \
         spec.driftDetection.interval after the check before, usually because all slots for drift \
         checks were in use"
    )
}

#[cfg(test)]
mod tests;
