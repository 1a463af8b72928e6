//! Errors of reads and writes of a managed state.

use super::layout::CHUNK;
use crate::secrets::StoreError;

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A Secret could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pointer is no pointer.
    #[error("pointer of the state in secret {0} is unreadable")]
    Pointer(String, #[source] serde_json::Error),
    /// The Secret that says where the state is does not exist.
    #[error("secret {0}, which says where the state is, does not exist")]
    NoPointer(String),
    /// A Secret that the pointer names does not exist, or is empty.
    #[error(
        "secret {slot} with a part of version {version} of the state is gone or empty; {advice}"
    )]
    NoSlot {
        /// The Secret.
        slot: String,
        /// The version that it is a part of.
        version: u64,
        /// What is left.
        advice: String,
    },
    /// The stored state is damaged.
    #[error("{0}")]
    Corrupt(String),
    /// Another writer moved the state since we read it.
    #[error("state was changed by somebody else since this run read it")]
    Moved,
    /// There are too few slots.
    #[error("state needs {needed} more slots of {CHUNK} bytes, but {free} of {all} are free")]
    NoRoom {
        /// Slots that the new version needs.
        needed: usize,
        /// Slots that it may use.
        free: usize,
        /// Slots that there are.
        all: usize,
    },
}
