//! Kinds of runs.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of a run. `plan` creates a plan that waits for approval. `apply` creates a plan and applies it. `drift` checks for drift. `destroy`
/// destroys every managed object of the state.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// Creates a plan that waits for approval.
    Plan,
    /// Creates a plan and applies it, or applies an approved plan.
    Apply,
    /// Compares the real objects with the configuration and changes nothing.
    Drift,
    /// Destroys every managed object of the state.
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

    /// Returns the name of the kind for names of Jobs and for `status`.
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
