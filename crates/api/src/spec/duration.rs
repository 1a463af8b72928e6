//! CEL rule of durations in a spec, and default values of such fields.

use std::time::Duration as StdDuration;

use kube_core::Duration;

pub(super) const DURATION: &str = r"self.matches('^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')";
pub(super) const DURATION_HELP: &str = "must be a duration from 1s to 8760h, such as 30s, 5m or 1h";

/// Maximum number of characters of a duration.
pub(super) const MAX_DURATION: u64 = 64;

pub(super) fn seconds(seconds: u64) -> Duration {
    StdDuration::from_secs(seconds).into()
}

pub(super) fn one_hour() -> Duration {
    seconds(3_600)
}
