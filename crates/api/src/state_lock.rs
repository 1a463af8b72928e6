//! The lock of a state, as the engine describes it.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The engine's own lock information.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateLock {
    /// The engine's lock id.
    pub id: String,
    /// `OperationTypeApply` and the like.
    pub operation: String,
    /// `user@host` as the engine tells it.
    pub who: String,
    /// When the lock was taken.
    pub at: Timestamp,
}
