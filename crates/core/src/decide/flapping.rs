//! How often changed inputs are a reason to run (rule 14): at once, then once a minute, and more
//! and more rarely while they go on changing.

use alustan_api::run::InputRuns;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The least time between two runs.
const FIRST: SignedDuration = SignedDuration::from_mins(1);
/// The longest.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);
/// From how many runs in a row on inputs are called flapping.
const FLAPPING: u32 = 3;

/// The time between the last of `runs` and the next.
fn gap(runs: &InputRuns) -> SignedDuration {
    let doubled = runs.times.saturating_sub(1).min(10);
    (FIRST * (1 << doubled)).min(LONGEST)
}

/// When the next run may start, if not at once.
pub(crate) fn due(runs: &InputRuns, now: Timestamp) -> Option<Timestamp> {
    // A run in the future was started by a wrong clock.
    let last = runs.last.filter(|last| *last <= now)?;
    let due = last + gap(runs);
    (now < due).then_some(due)
}

/// Whether there have been so many that somebody should know.
pub(crate) fn is_flapping(runs: &InputRuns) -> bool {
    runs.times >= FLAPPING
}

/// The same after one more at `now`. A quiet time of two gaps begins anew.
pub(crate) fn next(runs: &InputRuns, now: Timestamp) -> InputRuns {
    let close = runs.last.is_some_and(|last| now < last + gap(runs) * 2);
    InputRuns {
        times: if close {
            runs.times.saturating_add(1)
        } else {
            1
        },
        last: Some(now),
    }
}
