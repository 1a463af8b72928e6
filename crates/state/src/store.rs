//! State of the managed backend in Secrets (rule 12).
//!
//! A new version is compressed, split into chunks and written completely into free slots: slots that neither the current nor the previous version
//! uses. Then the writer moves the pointer to the new version. Between any two writes, the pointer therefore names a complete version. Every Secret
//! is written by compare-and-swap against the resource version last read. After a conflict, a writer overwrites a slot only if the pointer is
//! unchanged.
//!
//! The pointer Secret is also the first slot. Its chunk is written in the request that moves the pointer, so most states need one request per
//! version. If the pointer Secret is the only slot, the next version replaces its chunk, and no previous version is kept. Other slots are read on
//! demand. Between the read of a slot and the first write to the slot, the writer claims the pointer: it sets `writer` in the pointer to its own
//! identifier. The claim changes the resource version of the pointer, so earlier writers can no longer move the pointer.
//!
//! The response of a write may be lost. Each write is recorded in memory from before its request is sent until its outcome is known. While the
//! outcome of a pointer write is unknown, no other write is sent.

mod error;
mod layout;
mod memory;
mod read;
mod write;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::try_join_all;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::secrets::{Secrets, Snapshot};

use layout::sha256_hex;
use memory::{Memory, PointerWrite, Slot};
use read::{PATIENCE, join, parse_pointer, read_pointer, read_slot, read_slots};

pub use error::StateError;
pub use layout::{CHUNK, DATA, MAX_STATE_BYTES, POINTER, Pointer, Version};

/// Source of additional state slots. In a run, the operator creates the slots.
#[async_trait]
pub trait SlotSource: Send + Sync {
    /// Requests that `wanted` slots exist in total. Waits for a bounded time, then returns the names of the slots that exist.
    async fn request_slots(&self, wanted: usize) -> Vec<String>;

    /// Called if there are too few slots, before the store discards the previous version and reuses its slots.
    fn discarding_previous(&self);
}

/// Managed state of one resource.
pub struct StateStore {
    secrets: Arc<dyn Secrets>,
    pointer: String,
    slot_source: Arc<dyn SlotSource>,
    writer: String,
    chunk: usize,
    patience: Duration,
    memory: Mutex<Memory>,
}

impl StateStore {
    /// Reads and verifies the state that the Secret `pointer` names. An empty pointer means no state. `writer` is the
    /// unique identifier of this writer, for example the uid of its pod.
    ///
    /// # Errors
    ///
    /// [`StateError::NoPointer`] or [`StateError::NoSlot`] if a Secret is missing, [`StateError::Corrupt`] if the
    /// state is damaged.
    pub async fn open(
        secrets: Arc<dyn Secrets>,
        pointer: String,
        slots: Vec<String>,
        slot_source: Arc<dyn SlotSource>,
        writer: String,
    ) -> Result<Self, StateError> {
        Self::open_with_chunk(secrets, pointer, slots, slot_source, writer, CHUNK).await
    }

    /// Opens the state like [`Self::open`], with `chunk` bytes per slot.
    pub async fn open_with_chunk(
        secrets: Arc<dyn Secrets>,
        pointer: String,
        slots: Vec<String>,
        slot_source: Arc<dyn SlotSource>,
        writer: String,
        chunk: usize,
    ) -> Result<Self, StateError> {
        let snapshot = read_pointer(&*secrets, &pointer).await?;
        let parsed = parse_pointer(&pointer, &snapshot)?;
        let slots = with_used(&parsed, &pointer, slots, &*slot_source).await;
        let others: Vec<String> = parsed
            .current
            .iter()
            .flat_map(|current| &current.slots)
            .filter(|slot| **slot != pointer)
            .cloned()
            .collect();
        let mut snapshots = read_slots(&*secrets, &others).await?;
        snapshots.insert(pointer.clone(), snapshot.clone());
        let state = match &parsed.current {
            None => None,
            Some(current) => Some(Arc::new(
                join(&*secrets, current, &parsed, &snapshots).await?,
            )),
        };
        let slots = known_slots(&pointer, slots, &snapshots);
        let memory = Memory::new(parsed, snapshot, slots, state);
        Ok(Self {
            secrets,
            pointer,
            slot_source,
            writer,
            chunk: chunk.max(1),
            patience: PATIENCE,
            memory: Mutex::new(memory),
        })
    }

    /// Returns the state as last read or written.
    pub async fn get(&self) -> Option<Arc<Vec<u8>>> {
        self.memory.lock().await.state.clone()
    }

    /// Returns the current version as last read or written; `None` without a state.
    pub async fn version(&self) -> Option<Version> {
        self.memory.lock().await.pointer.current.clone()
    }

    /// Returns the state that the Secrets contain. If the outcome of a pointer write is unknown, first repeats the write.
    ///
    /// # Errors
    ///
    /// The outcome cannot be determined, or another writer moved the pointer.
    pub async fn get_certain(&self) -> Result<Option<Arc<Vec<u8>>>, StateError> {
        let mut memory = self.memory.lock().await;
        self.settle(&mut memory).await?;
        Ok(memory.state.clone())
    }

    /// Prepares the next [`Self::put`]: claims the pointer, so that earlier writers can no longer change the state.
    pub async fn begin(&self) -> Result<(), StateError> {
        let mut memory = self.memory.lock().await;
        self.settle(&mut memory).await?;
        self.read_free_slots(&mut memory, 1).await?;
        if !self.is_claimed(&memory) {
            self.claim_pointer(&mut memory).await?;
        }
        Ok(())
    }

    /// Writes a new version of the state. Does nothing if `state` equals the current version.
    pub async fn put(&self, state: Vec<u8>) -> Result<(), StateError> {
        let mut memory = self.memory.lock().await;
        self.settle(&mut memory).await?;
        let sha256 = sha256_hex(&state);
        let current = memory.pointer.current.as_ref();
        if current.is_some_and(|current| current.sha256 == sha256) {
            return Ok(());
        }
        let packed = compress(&state);
        let chunks: Vec<&[u8]> = packed.chunks(self.chunk).collect();
        let slots = self.find_room(&mut memory, chunks.len()).await?;
        let names = slots.iter().map(|slot| slot.name.clone()).collect();
        let (with_pointer, others): (Vec<_>, Vec<_>) = slots
            .into_iter()
            .zip(chunks)
            .partition(|(slot, _)| slot.name == self.pointer);
        self.write_chunks(&mut memory, &others).await?;
        let previous = memory.pointer.current.clone();
        let current = version_of(&state, sha256, names, previous.as_ref());
        let is_kept = |version: &Version| {
            !version
                .slots
                .iter()
                .any(|slot| current.slots.contains(slot))
        };
        let next = PointerWrite {
            pointer: Pointer {
                previous: previous.filter(is_kept),
                current: Some(current),
                writer: Some(self.writer.clone()),
            },
            chunk: with_pointer.first().map(|(_, chunk)| chunk.to_vec()),
            state: Some(Arc::new(state)),
        };
        self.move_pointer(&mut memory, next).await
    }

    /// Deletes the state. The pointer keeps the deleted version as the previous version.
    pub async fn delete(&self) -> Result<(), StateError> {
        let mut memory = self.memory.lock().await;
        self.settle(&mut memory).await?;
        if memory.pointer.current.is_none() {
            return Ok(());
        }
        let next = PointerWrite {
            pointer: Pointer {
                current: None,
                previous: memory.pointer.current.clone(),
                writer: Some(self.writer.clone()),
            },
            chunk: None,
            state: None,
        };
        self.move_pointer(&mut memory, next).await
    }

    /// Returns slots for a version of `needed` chunks. If too few slots are free, requests additional slots. If too few slots are still free,
    /// removes the previous version from the pointer, which frees the slots of that version. If the pointer Secret is the only slot, returns this
    /// slot for a single chunk: chunk and pointer are replaced in one write.
    async fn find_room(&self, memory: &mut Memory, needed: usize) -> Result<Vec<Slot>, StateError> {
        if needed == 1 && memory.slots.len() == 1 {
            return Ok(memory.slots.clone());
        }
        self.read_free_slots(memory, needed).await?;
        if memory.free_slots().len() < needed {
            // Requests enough slots for the current, the previous and the next version, if each version is as large as the next version.
            let wanted = (memory.pointer.used().len() + needed).max(3 * needed);
            memory.add_slots(self.slot_source.request_slots(wanted).await);
            self.read_free_slots(memory, needed).await?;
        }
        if memory.free_slots().len() < needed && memory.pointer.previous.is_some() {
            self.slot_source.discarding_previous();
            let next = PointerWrite {
                pointer: Pointer {
                    current: memory.pointer.current.clone(),
                    previous: None,
                    writer: Some(self.writer.clone()),
                },
                chunk: None,
                state: memory.state.clone(),
            };
            self.move_pointer(memory, next).await?;
            self.read_free_slots(memory, needed).await?;
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

    /// Reads the unread slots among the first `needed` free slots. Removes slots that do not exist from `memory`.
    async fn read_free_slots(&self, memory: &mut Memory, needed: usize) -> Result<(), StateError> {
        loop {
            let unread = memory.unread_slots(needed);
            if unread.is_empty() {
                return Ok(());
            }
            let read = unread.iter().map(|slot| read_slot(&*self.secrets, slot));
            let snapshots = try_join_all(read).await?.into_iter().flatten().collect();
            // Fails if the pointer has changed since it was read: another writer may have moved the pointer to one of the slots in `unread`.
            self.claim_pointer(memory).await?;
            memory.slots_read(&unread, &snapshots);
        }
    }
}

/// Returns `slots`. If the pointer names a slot that is not in `slots`, requests additional slots and adds them to the result. The pointer names
/// such a slot if the state is from an earlier resource of the same name that had more slots.
async fn with_used(
    parsed: &Pointer,
    pointer: &str,
    mut slots: Vec<String>,
    slot_source: &dyn SlotSource,
) -> Vec<String> {
    let numbers = parsed
        .used()
        .into_iter()
        .filter(|slot| *slot != pointer && !slots.contains(slot))
        .filter_map(|slot| slot.rsplit('-').next()?.parse::<u32>().ok());
    if let Some(wanted) = numbers.max().and_then(|last| last.checked_add(1)) {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        for slot in slot_source.request_slots(wanted).await {
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
    }
    slots
}

/// Returns the slot in the pointer Secret, then `slots`. Sets the resource version of the slots in `snapshots`.
fn known_slots(
    pointer: &str,
    slots: Vec<String>,
    snapshots: &BTreeMap<String, Snapshot>,
) -> Vec<Slot> {
    let others = slots.into_iter().filter(|slot| slot != pointer);
    std::iter::once(pointer.to_owned())
        .chain(others)
        .map(|name| {
            let version = snapshots
                .get(&name)
                .map(|snapshot| snapshot.version.clone());
            Slot::new(name, version)
        })
        .collect()
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
        version: before
            .map_or(0, |version| version.version)
            .saturating_add(1),
        slots,
        size: u64::try_from(state.len()).unwrap_or(u64::MAX),
        sha256,
        serial: head.serial,
        lineage: head.lineage,
    }
}

#[cfg(test)]
mod tests;
