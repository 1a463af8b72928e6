//! The state of the managed backend in Secrets (rule 12).
//!
//! A version is compressed, cut into chunks, and written whole into slots that neither the
//! current nor the previous version uses; then the pointer moves. So at every instant between two
//! writes the pointer names a version that is complete. Each slot is written by compare-and-swap
//! against the version that we saw: a second writer fails instead of destroying anything.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::record::to_json;
use crate::retry::{Patience, pause_between_tries};
use crate::secrets::{Changes, Secrets, StoreError};

use read::{join, parse_pointer, read_pointer, read_slot, read_with_patience};

/// Key of the pointer Secret's data.
pub const POINTER: &str = "pointer";
/// Key of a slot Secret's data.
pub const DATA: &str = "data";
/// How many bytes one slot takes: a Secret may have 1 MiB in all.
pub const CHUNK: usize = 900 * 1024;
/// How long a write waits for the API server.
const PATIENCE: Duration = Duration::from_mins(2);

/// What the pointer Secret says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pointer {
    /// The state.
    pub current: Option<Version>,
    /// The state before the last write.
    pub previous: Option<Version>,
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

/// Where more slots come from.
#[async_trait]
pub trait MoreSlots: Send + Sync {
    /// Asks for `wanted` slots in all, waits a bounded time, and gives those there are.
    async fn more_slots(&self, wanted: usize) -> Vec<String>;
}

struct Memory {
    pointer: Pointer,
    pointer_version: String,
    slots: Vec<String>,
    slot_versions: BTreeMap<String, String>,
    state: Option<Arc<Vec<u8>>>,
}

/// The state of one resource.
pub struct StateStore {
    secrets: Arc<dyn Secrets>,
    pointer: String,
    more: Arc<dyn MoreSlots>,
    chunk: usize,
    memory: Mutex<Memory>,
}

impl StateStore {
    /// Reads the state that the Secret `pointer` names, and checks it. No state is what an empty
    /// pointer says; one that is missing is a loss.
    pub async fn open(
        secrets: Arc<dyn Secrets>,
        pointer: String,
        slots: Vec<String>,
        more: Arc<dyn MoreSlots>,
    ) -> Result<Self, StateError> {
        Self::open_with_chunk(secrets, pointer, slots, more, CHUNK).await
    }

    /// As [`Self::open`], with slots of another size.
    pub async fn open_with_chunk(
        secrets: Arc<dyn Secrets>,
        pointer: String,
        slots: Vec<String>,
        more: Arc<dyn MoreSlots>,
        chunk: usize,
    ) -> Result<Self, StateError> {
        let names: BTreeSet<&String> = slots.iter().collect();
        let all = try_join_all(names.into_iter().map(|slot| read_slot(&*secrets, slot)));
        let (found, read) =
            futures::future::try_join(read_pointer(&*secrets, &pointer), all).await?;
        let parsed = parse_pointer(&pointer, &found)?;
        let snapshots: BTreeMap<_, _> = read.into_iter().flatten().collect();
        let state = match &parsed.current {
            None => None,
            Some(current) => Some(Arc::new(
                join(&*secrets, current, &parsed, &snapshots).await?,
            )),
        };
        let slots = slots
            .into_iter()
            .filter(|slot| snapshots.contains_key(slot))
            .collect();
        let slot_versions = snapshots
            .into_iter()
            .map(|(slot, snapshot)| (slot, snapshot.version))
            .collect();
        let memory = Memory {
            pointer: parsed,
            pointer_version: found.version,
            slots,
            slot_versions,
            state,
        };
        Ok(Self {
            secrets,
            pointer,
            more,
            chunk: chunk.max(1),
            memory: Mutex::new(memory),
        })
    }

    /// The state, as it was read or written last.
    pub async fn get(&self) -> Option<Arc<Vec<u8>>> {
        self.memory.lock().await.state.clone()
    }

    /// Writes a new version of the state.
    pub async fn put(&self, state: Vec<u8>) -> Result<(), StateError> {
        let mut memory = self.memory.lock().await;
        let sha256 = sha256_hex(&state);
        if memory
            .pointer
            .current
            .as_ref()
            .is_some_and(|current| current.sha256 == sha256)
        {
            return Ok(());
        }
        let packed = compress(&state);
        let chunks: Vec<&[u8]> = packed.chunks(self.chunk).collect();
        let slots = self.find_room(&mut memory, chunks.len()).await?;
        self.write_chunks(&mut memory, &slots, &chunks).await?;
        let next = version_of(&state, sha256, slots, memory.pointer.current.as_ref());
        let previous = memory.pointer.current.clone();
        self.move_pointer(
            &mut memory,
            Pointer {
                current: Some(next),
                previous,
            },
        )
        .await?;
        memory.state = Some(Arc::new(state));
        Ok(())
    }

    /// Removes the state; the version before stays.
    pub async fn delete(&self) -> Result<(), StateError> {
        let mut memory = self.memory.lock().await;
        if memory.pointer.current.is_none() {
            return Ok(());
        }
        let previous = memory.pointer.current.clone();
        self.move_pointer(
            &mut memory,
            Pointer {
                current: None,
                previous,
            },
        )
        .await?;
        memory.state = None;
        Ok(())
    }

    /// Slots for a version of `needed` chunks: free ones, then new ones, and at last those of
    /// the previous version, which the pointer forgets first.
    async fn find_room(
        &self,
        memory: &mut Memory,
        needed: usize,
    ) -> Result<Vec<String>, StateError> {
        if memory.free_slots().len() < needed {
            // Room for the current version, the one before and the next, all of this size.
            let wanted = (memory.pointer.used().len() + needed).max(3 * needed);
            self.add_slots(memory, wanted).await?;
        }
        if memory.free_slots().len() < needed && memory.pointer.previous.is_some() {
            crate::say!("too few state slots: giving up the previous version of the state");
            let current = memory.pointer.current.clone();
            self.move_pointer(
                memory,
                Pointer {
                    current,
                    previous: None,
                },
            )
            .await?;
        }
        let mut free = memory.free_slots();
        if free.len() < needed {
            return Err(StateError::NoRoom {
                needed,
                free: free.len(),
                all: memory.slots.len(),
            });
        }
        free.truncate(needed);
        Ok(free)
    }

    async fn add_slots(&self, memory: &mut Memory, wanted: usize) -> Result<(), StateError> {
        for slot in self.more.more_slots(wanted).await {
            if memory.slots.contains(&slot) {
                continue;
            }
            if let Some((slot, snapshot)) = read_slot(&*self.secrets, &slot).await? {
                memory.slot_versions.insert(slot.clone(), snapshot.version);
                memory.slots.push(slot);
            }
        }
        Ok(())
    }

    async fn write_chunks(
        &self,
        memory: &mut Memory,
        slots: &[String],
        chunks: &[&[u8]],
    ) -> Result<(), StateError> {
        let writes = slots.iter().zip(chunks).map(|(slot, chunk)| {
            let version = memory.slot_versions.get(slot).cloned().unwrap_or_default();
            async move {
                let written = self.swap(slot, version, DATA, chunk.to_vec()).await?;
                Ok::<_, StateError>((slot.clone(), written))
            }
        });
        let written = try_join_all(writes).await?;
        memory.slot_versions.extend(written);
        Ok(())
    }

    async fn move_pointer(&self, memory: &mut Memory, next: Pointer) -> Result<(), StateError> {
        let version = memory.pointer_version.clone();
        memory.pointer_version = self
            .swap(&self.pointer, version, POINTER, to_json(&next))
            .await?;
        memory.pointer = next;
        Ok(())
    }

    /// Writes one key, with patience. The answer of a write may be lost, so a conflict is looked
    /// at: what we wanted may stand there already.
    async fn swap(
        &self,
        name: &str,
        version: String,
        key: &str,
        value: Vec<u8>,
    ) -> Result<String, StateError> {
        let patience = Patience::lasting(PATIENCE);
        let mut pauses = pause_between_tries();
        loop {
            let changes = Changes::from([(key.to_owned(), Some(value.clone()))]);
            match self.secrets.swap(name, &version, changes).await {
                Err(StoreError::Conflict(_)) => {
                    let found = read_with_patience(&*self.secrets, name).await?;
                    let ours = found.data.get(key) == Some(&value);
                    return if ours {
                        Ok(found.version)
                    } else {
                        Err(StateError::Moved)
                    };
                }
                Err(error) if error.is_passing() && !patience.is_over() => {
                    tokio::time::sleep(pauses.next().unwrap_or_default()).await;
                }
                other => return Ok(other?),
            }
        }
    }
}

impl Pointer {
    /// The slots of the versions that the pointer names.
    fn used(&self) -> BTreeSet<&String> {
        self.current
            .iter()
            .chain(&self.previous)
            .flat_map(|version| &version.slots)
            .collect()
    }
}

impl Memory {
    fn free_slots(&self) -> Vec<String> {
        let used = self.pointer.used();
        self.slots
            .iter()
            .filter(|slot| !used.contains(slot))
            .cloned()
            .collect()
    }
}

fn compress(state: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(state);
    encoder.finish().unwrap_or_default()
}

fn version_of(
    state: &[u8],
    sha256: String,
    slots: Vec<String>,
    before: Option<&Version>,
) -> Version {
    #[derive(Default, Deserialize)]
    struct Head {
        serial: Option<u64>,
        lineage: Option<String>,
    }
    let head: Head = serde_json::from_slice(state).unwrap_or_default();
    Version {
        version: before.map_or(0, |it| it.version) + 1,
        slots,
        size: u64::try_from(state.len()).unwrap_or(u64::MAX),
        sha256,
        serial: head.serial,
        lineage: head.lineage,
    }
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests;
