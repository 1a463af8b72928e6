//! Kinds of runs: what a run does, and whether it may change real objects.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// Makes a plan that waits for approval.
    Plan,
    /// Plans, and applies that very plan.
    Apply,
    /// Looks for differences between the real objects and the configuration.
    Drift,
    /// Destroys everything in the state.
    Destroy,
}

impl RunKind {
    /// Whether a run of this kind may change real objects.
    pub const fn changes(self) -> bool {
        match self {
            Self::Apply | Self::Destroy => true,
            Self::Plan | Self::Drift => false,
        }
    }

    /// The word used in names of Jobs and in `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Apply => "apply",
            Self::Drift => "drift",
            Self::Destroy => "destroy",
        }
    }
}

impl fmt::Display for RunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
