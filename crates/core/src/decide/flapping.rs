//! Rate limit for runs that changed inputs trigger (rule 14): the first run starts at once, then one run per minute, and fewer while inputs
//! keep changing.

use std::time::Duration;

use alustan_api::run::InputRuns;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::backoff::doubled;

/// Minimum time between the first two runs. The minimum time doubles with each further run.
const FIRST: Duration = Duration::from_mins(1);
/// Upper bound of the minimum time between two runs.
const MAX: Duration = Duration::from_hours(1);
/// Minimum number of consecutive runs for changed inputs at which status reports `InputFlapping`.
const FLAPPING: u32 = 3;

/// Returns the minimum time between the last of `runs` and the next run: [`FIRST`], doubled with each run, at most [`MAX`].
fn gap(runs: &InputRuns) -> SignedDuration {
    SignedDuration::try_from(doubled(FIRST, runs.times, MAX)).unwrap_or(SignedDuration::MAX)
}

/// Returns the earliest start of the next run. `None` if it may start now.
pub(super) fn due(runs: &InputRuns, now: Timestamp) -> Option<Timestamp> {
    // A timestamp in the future comes from clock skew and is ignored.
    let last = runs.last.filter(|last| *last <= now)?;
    let next = last + gap(runs);
    (now < next).then_some(next)
}

/// Whether inputs change often enough to report `InputFlapping`.
pub(super) fn is_flapping(runs: &InputRuns) -> bool {
    runs.times >= FLAPPING
}

/// Returns `runs` with a further run at `now`. The counter restarts if no run started for twice the minimum time between runs.
pub(super) fn next(runs: &InputRuns, now: Timestamp) -> InputRuns {
    let is_recent = runs.last.is_some_and(|last| now < last + gap(runs) * 2);
    InputRuns {
        times: if is_recent {
            runs.times.saturating_add(1)
        } else {
            1
        },
        last: Some(now),
    }
}
