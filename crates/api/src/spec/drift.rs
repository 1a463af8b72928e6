//! Detection and correction of drift (`spec.driftDetection`).

use kube_core::Duration;
use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::duration::{DURATION, DURATION_HELP, MAX_DURATION, one_hour};

/// Handling of drift.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DriftMode {
    /// Drift is detected and corrected by an apply.
    #[default]
    Correct,
    /// Drift is detected and reported in status.
    Report,
    /// Drift is not detected.
    Ignore,
}

/// Detection and correction of drift.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct DriftDetection {
    /// `Correct` corrects drift by an apply. `Report` reports drift in status. `Ignore` does not check for drift. Default: Correct.
    #[serde(default)]
    pub mode: DriftMode,
    /// Interval between drift checks. The checks of different resources are spread over the interval. The first drift check after an apply
    /// starts after at least half an interval, or immediately if the apply was a correction. A check starts late if no slot is free; if it
    /// ends more than half an interval late, it replaces the next check. Missed checks are not repeated. Default: 1h.
    #[serde(default = "one_hour")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub interval: Duration,
}

impl Default for DriftDetection {
    fn default() -> Self {
        Self {
            mode: DriftMode::default(),
            interval: one_hour(),
        }
    }
}
