//! Layout of a managed state in Secrets: keys, limits, pointer and versions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Key of the pointer in the data of the pointer Secret.
pub const POINTER: &str = "pointer";
/// Key of the chunk in the data of a slot.
pub const DATA: &str = "data";
/// Key of the writer's identifier in the data of a slot. Because of the identifier, a write changes the resource version even if another writer has
/// written the same chunk.
pub(super) const WRITER: &str = "writer";
/// Maximum size of a chunk, in bytes. A Secret holds at most 1 MiB in total.
pub const CHUNK: usize = 900 * 1024;
/// Maximum size of a state, in bytes.
pub const MAX_STATE_BYTES: usize = 256 << 20;
/// Maximum size of a compressed state, in bytes. Gzip adds less than 1 MiB to a state that it cannot compress.
pub(super) const PACKED: usize = MAX_STATE_BYTES + (1 << 20);
/// Maximum number of slots of one version.
pub(super) const SLOTS: usize = 1024;

/// Content of the pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pointer {
    /// Current version of the state; `None` without a state.
    pub current: Option<Version>,
    /// Version before the last write; `None` if the previous version was not kept.
    pub previous: Option<Version>,
    /// Unique identifier of the writer that changed or claimed the pointer last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
}

impl Pointer {
    /// Returns the slots of the current and the previous version.
    pub(super) fn used(&self) -> BTreeSet<&String> {
        self.current
            .iter()
            .chain(&self.previous)
            .flat_map(|version| &version.slots)
            .collect()
    }
}

/// One version of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// Number of the version, counted from 1.
    pub version: u64,
    /// Names of the slots that contain the chunks of the version, in order.
    pub slots: Vec<String>,
    /// Size of the uncompressed state, in bytes.
    pub size: u64,
    /// SHA-256 of the uncompressed state, in hexadecimal.
    pub sha256: String,
    /// Serial number that the engine assigned.
    pub serial: Option<u64>,
    /// Lineage that the engine assigned.
    pub lineage: Option<String>,
}

/// Returns the SHA-256 of `bytes`, in hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
