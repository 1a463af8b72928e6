//! Content of the Secrets of a state as last read or written, and writes of unknown outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::layout::{POINTER, Pointer, sha256_hex};
use crate::secrets::Snapshot;

/// Content of the Secrets of a state as last read or written.
pub(super) struct Memory {
    /// Pointer as last read or written.
    pub(super) pointer: Pointer,
    /// Resource version of the pointer Secret when `pointer` was last read or written.
    pub(super) pointer_version: String,
    /// Bytes of the pointer in the Secret when `pointer` was last read or written.
    pointer_bytes: Option<Vec<u8>>,
    /// Pointer write of unknown outcome, which must be repeated before any other write.
    pub(super) unsettled: Option<PointerWrite>,
    /// All slots. The first one is in the pointer Secret.
    pub(super) slots: Vec<Slot>,
    /// State that `pointer` names.
    pub(super) state: Option<Arc<Vec<u8>>>,
}

/// Pointer to write, and the state that the pointer names.
#[derive(Clone)]
pub(super) struct PointerWrite {
    pub(super) pointer: Pointer,
    /// Chunk for the slot in the pointer Secret, written in the same request as the pointer.
    pub(super) chunk: Option<Vec<u8>>,
    pub(super) state: Option<Arc<Vec<u8>>>,
}

/// A state slot, with its writes of unknown outcome.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) name: String,
    /// Resource version of the slot as last read or written; `None` before the first read. Not used for the slot in the pointer Secret: that slot
    /// is written together with the pointer, at the resource version of the pointer.
    pub(super) version: Option<String>,
    /// SHA-256 of each chunk that was sent to the slot after `version` was read or written, if it is unknown whether the chunk was written.
    unsettled: BTreeSet<String>,
}

impl Slot {
    pub(super) fn new(name: String, version: Option<String>) -> Self {
        Self {
            name,
            version,
            unsettled: BTreeSet::new(),
        }
    }

    /// Returns true if a write of unknown outcome may still store a chunk other than `chunk`.
    pub(super) fn may_become_other_than(&self, chunk: &[u8]) -> bool {
        let chunk = sha256_hex(chunk);
        self.unsettled.iter().any(|sent| *sent != chunk)
    }
}

impl Memory {
    pub(super) fn new(
        pointer: Pointer,
        snapshot: Snapshot,
        slots: Vec<Slot>,
        state: Option<Arc<Vec<u8>>>,
    ) -> Self {
        let Snapshot { version, mut data } = snapshot;
        Self {
            pointer,
            pointer_version: version,
            pointer_bytes: data.remove(POINTER),
            unsettled: None,
            slots,
            state,
        }
    }

    /// Returns the slots that neither the current nor the previous version uses.
    pub(super) fn free_slots(&self) -> Vec<Slot> {
        let used = self.pointer.used();
        self.slots
            .iter()
            .filter(|slot| !used.contains(&slot.name))
            .cloned()
            .collect()
    }

    /// Returns the names of the unread slots among the first `needed` free slots.
    pub(super) fn unread_slots(&self, needed: usize) -> Vec<String> {
        self.free_slots()
            .into_iter()
            .take(needed)
            .filter(|slot| slot.version.is_none())
            .map(|slot| slot.name)
            .collect()
    }

    /// Records the resource versions of the slots in `snapshots`. Removes slots that are in `names` but not in `snapshots`: they do not exist.
    pub(super) fn slots_read(&mut self, names: &[String], snapshots: &BTreeMap<String, Snapshot>) {
        self.slots
            .retain(|slot| !names.contains(&slot.name) || snapshots.contains_key(&slot.name));
        for slot in &mut self.slots {
            if let Some(snapshot) = snapshots.get(&slot.name) {
                slot.version = Some(snapshot.version.clone());
            }
        }
    }

    /// Adds slots with the given names. Ignores names of slots that are already in `slots`.
    pub(super) fn add_slots(&mut self, names: Vec<String>) {
        for name in names {
            if self.slots.iter().all(|slot| slot.name != name) {
                self.slots.push(Slot::new(name, None));
            }
        }
    }

    /// Returns true if `snapshot` contains the pointer as last read or written.
    pub(super) fn is_pointer_of(&self, snapshot: &Snapshot) -> bool {
        snapshot.data.get(POINTER) == self.pointer_bytes.as_ref()
    }

    /// Records that the pointer moved to `write.pointer`.
    pub(super) fn pointer_moved(&mut self, write: PointerWrite, bytes: Vec<u8>, version: String) {
        self.pointer = write.pointer;
        self.pointer_version = version;
        self.pointer_bytes = Some(bytes);
        self.unsettled = None;
        self.state = write.state;
    }

    /// Records that `chunk` is about to be sent to slot `name`.
    pub(super) fn chunk_sent(&mut self, name: &str, chunk: &[u8]) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.name == name) {
            slot.unsettled.insert(sha256_hex(chunk));
        }
    }

    /// Records that a chunk was written to slot `name`. Earlier writes of unknown outcome to the slot can now only fail with a conflict.
    pub(super) fn chunk_written(&mut self, name: &str, version: String) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.name == name) {
            slot.version = Some(version);
            slot.unsettled.clear();
        }
    }
}
