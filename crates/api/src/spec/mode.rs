//! Mode of a resource (`spec.mode`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether plans are applied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
pub enum Mode {
    /// Plans are applied.
    #[default]
    Apply,
    /// Plans are reported and never applied. Nothing is destroyed.
    PlanOnly,
}

impl Mode {
    /// Whether the mode is the default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
