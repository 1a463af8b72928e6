//! Lock of a state.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Lock of a state, with fields of the engine's lock info.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateLock {
    /// Lock id of the engine.
    pub id: String,
    /// Operation that holds the lock. Example: `OperationTypeApply`.
    pub operation: String,
    /// Holder of the lock, as `user@host`.
    pub who: String,
    /// Time at which the lock was acquired.
    pub at: Timestamp,
}
