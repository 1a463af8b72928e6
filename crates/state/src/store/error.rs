//! Errors of reads and writes of a managed state.

use super::layout::CHUNK;
use crate::secrets::StoreError;

/// Error of a read or write of the state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A read or write of a Secret failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pointer is not valid JSON.
    #[error("the state pointer in Secret {0} cannot be parsed as JSON")]
    Pointer(String, #[source] serde_json::Error),
    /// The pointer Secret does not exist.
    #[error("Secret {0} with the state pointer does not exist")]
    NoPointer(String),
    /// A slot that the pointer names does not exist or is empty.
    #[error(
        "Secret {slot} with a part of version {version} of the state does not exist or is empty; \
         {advice}"
    )]
    NoSlot {
        /// Name of the Secret.
        slot: String,
        /// Version of the state that the slot is a part of.
        version: u64,
        /// Whether the previous version is intact, and how to restore it.
        advice: String,
    },
    /// The stored state is damaged, or the pointer names too many Secrets or a Secret twice.
    #[error("{0}")]
    Corrupt(String),
    /// Another writer has changed the pointer since this writer read it.
    #[error("the state was changed by another client since this run read it")]
    Moved,
    /// Too few slots are free for the new version.
    #[error(
        "the new version of the state needs {needed} free slots of {CHUNK} bytes, but only {free} \
         of {all} slots are free"
    )]
    NoRoom {
        /// Number of slots that the new version needs.
        needed: usize,
        /// Number of free slots.
        free: usize,
        /// Number of all slots, free or used.
        all: usize,
    },
}
