//! Times and durations in the words of the pages.

use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A time, and the time relative to the request. Serializes as the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The time.
    pub(crate) at: Timestamp,
    /// Time relative to the request. Example: `3 min ago`.
    pub(crate) text: String,
}

impl Moment {
    /// Describes `at` relative to `now`.
    pub(crate) fn new(at: Timestamp, now: Timestamp) -> Self {
        let difference = now.as_second().saturating_sub(at.as_second());
        let amount = amount(difference.saturating_abs());
        let text = match difference {
            -4..=4 => "now".to_owned(),
            5.. => format!("{amount} ago"),
            _ => format!("in {amount}"),
        };
        Self { at, text }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.at.serialize(serializer)
    }
}

/// Returns a duration in its largest unit. Example: `3 min`.
fn amount(seconds: i64) -> String {
    match seconds {
        0..=59 => format!("{seconds} s"),
        60..=3599 => format!("{} min", seconds / 60),
        3600..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns a duration in its two largest units. Example: `1 min 20 s`.
pub(crate) fn seconds(seconds: i64) -> String {
    let (larger, smaller) = match seconds {
        ..60 => return format!("{} s", seconds.max(0)),
        60..3600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        _ => ((seconds / 3600, "h"), (seconds % 3600 / 60, "min")),
    };
    match smaller {
        (0, _) => format!("{} {}", larger.0, larger.1),
        (number, unit) => format!("{} {} {number} {unit}", larger.0, larger.1),
    }
}

/// Returns a duration of `milliseconds`. Below 10 s with one decimal. Example: `1.4 s`.
pub(crate) fn milliseconds(milliseconds: u64) -> String {
    if milliseconds < 10_000 {
        return format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100);
    }
    seconds(i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(100, "now")]
    #[case(88, "12 s ago")]
    #[case(-80, "3 min ago")]
    #[case(-7200, "2 h ago")]
    #[case(-300_000, "3 d ago")]
    #[case(220, "in 2 min")]
    fn moments_are_relative_to_now(#[case] at: i64, #[case] expected: &str) {
        let [at, now] = [at, 100].map(|second| Timestamp::from_second(second).unwrap());
        assert_eq!(Moment::new(at, now).text, expected);
    }

    #[rstest]
    #[case(45, "45 s")]
    #[case(80, "1 min 20 s")]
    #[case(120, "2 min")]
    #[case(3720, "1 h 2 min")]
    #[case(-5, "0 s")]
    fn durations_have_at_most_two_units(#[case] duration: i64, #[case] expected: &str) {
        assert_eq!(seconds(duration), expected);
    }

    #[rstest]
    #[case(1450, "1.4 s")]
    #[case(80_000, "1 min 20 s")]
    fn short_steps_have_a_decimal(#[case] duration: u64, #[case] expected: &str) {
        assert_eq!(milliseconds(duration), expected);
    }
}
