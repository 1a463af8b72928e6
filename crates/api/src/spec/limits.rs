//! Retries and time limits of runs (`spec.retry` and `spec.timeouts`).

use kube_core::Duration;
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::spec::duration::{DURATION, DURATION_HELP, MAX_DURATION, one_hour, seconds};

/// Retry policy for failures of runs and builds. Transient failures (network, throttling, eviction, locks) are retried without limit.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Number of consecutive failures with the same configuration after which the resource is `Stalled`. Transient failures are not included. Between
    /// 1 and 100. Default: 5.
    #[serde(default = "five")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 100").message("must be between 1 and 100"))]
    pub limit: i32,
    /// Delay before the first retry. It doubles with each further failure. Default: 10s.
    #[serde(default = "ten_seconds")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub min_backoff: Duration,
    /// Maximum delay between retries. Default: 10m.
    #[serde(default = "ten_minutes")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub max_backoff: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            limit: five(),
            min_backoff: ten_seconds(),
            max_backoff: ten_minutes(),
        }
    }
}

/// Time limits of a run. When a limit is exceeded, the runner interrupts the engine. The engine then has the grace period of the pod to end, as on
/// a node drain. `--max-timeout` of the operator (24h) is the upper limit of each value.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Time limit of init and plan. Default: 30m.
    #[serde(default = "thirty_minutes")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub plan: Duration,
    /// Time limit of apply. Default: 1h.
    #[serde(default = "one_hour")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub apply: Duration,
    /// Time limit of destroy. Default: 1h.
    #[serde(default = "one_hour")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub destroy: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            plan: thirty_minutes(),
            apply: one_hour(),
            destroy: one_hour(),
        }
    }
}

fn five() -> i32 {
    5
}

fn ten_seconds() -> Duration {
    seconds(10)
}

fn ten_minutes() -> Duration {
    seconds(600)
}

fn thirty_minutes() -> Duration {
    seconds(1_800)
}
