//! Layout of a managed state in Secrets: keys, limits, the pointer and its versions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Key of the pointer Secret's data.
pub const POINTER: &str = "pointer";
/// Key of a slot Secret's data.
pub const DATA: &str = "data";
/// Key of a slot Secret's writer: the same chunk of another writer is another version of the Secret.
pub(super) const WRITER: &str = "writer";
/// How many bytes one slot takes: a Secret may have 1 MiB in all.
pub const CHUNK: usize = 900 * 1024;
/// Maximum size of a state, in bytes.
pub const LARGEST: usize = 256 << 20;
/// Maximum number of Secrets of one version.
pub(super) const SLOTS: usize = 1024;

/// What the pointer Secret says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pointer {
    /// The state.
    pub current: Option<Version>,
    /// The state before the last write.
    pub previous: Option<Version>,
    /// Unique identifier of the writer that changed the pointer last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<String>,
}

impl Pointer {
    /// The slots of the versions that the pointer names.
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
    /// Counted from 1.
    pub version: u64,
    /// The Secrets with its chunks, in order.
    pub slots: Vec<String>,
    /// Bytes of the uncompressed state.
    pub size: u64,
    /// SHA-256 of the uncompressed state.
    pub sha256: String,
    /// The engine's serial number.
    pub serial: Option<u64>,
    /// The engine's lineage.
    pub lineage: Option<String>,
}

/// SHA-256 of `bytes`, in hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
