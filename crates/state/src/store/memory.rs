//! What a store knows of its Secrets, and which of it is uncertain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::layout::{POINTER, Pointer, sha256_hex};
use crate::secrets::Snapshot;

/// What is known of the Secrets.
pub(super) struct Memory {
    /// The pointer, as it was read or written last.
    pub(super) pointer: Pointer,
    /// The version of its Secret then.
    pub(super) pointer_version: String,
    /// Its bytes then.
    pointer_bytes: Option<Vec<u8>>,
    /// The pointer that we sent and do not know to be written, nor to be refused.
    pub(super) tried: Option<Tried>,
    /// The slots, first of all the one in the Secret of the pointer.
    pub(super) slots: Vec<Slot>,
    /// The state that `pointer` names.
    pub(super) state: Option<Arc<Vec<u8>>>,
}

/// A pointer to write, with the state that it names.
#[derive(Clone)]
pub(super) struct Tried {
    pub(super) pointer: Pointer,
    /// The chunk that is written with it.
    pub(super) chunk: Option<Vec<u8>>,
    pub(super) state: Option<Arc<Vec<u8>>>,
}

/// One slot.
#[derive(Clone)]
pub(super) struct Slot {
    pub(super) name: String,
    /// Its version, as it was read or written last. The slot in the Secret of the pointer is written with
    /// the pointer, by its version.
    pub(super) version: Option<String>,
    /// SHA-256 of each chunk that we sent since and do not know to be written.
    tried: BTreeSet<String>,
}

impl Slot {
    pub(super) fn new(name: String, version: Option<String>) -> Self {
        Self {
            name,
            version,
            tried: BTreeSet::new(),
        }
    }

    /// Whether a chunk other than this one may still arrive in it.
    pub(super) fn may_become_other_than(&self, chunk: &[u8]) -> bool {
        let chunk = sha256_hex(chunk);
        self.tried.iter().any(|tried| *tried != chunk)
    }
}

impl Memory {
    pub(super) fn new(
        pointer: Pointer,
        found: Snapshot,
        slots: Vec<Slot>,
        state: Option<Arc<Vec<u8>>>,
    ) -> Self {
        let Snapshot { version, mut data } = found;
        Self {
            pointer,
            pointer_version: version,
            pointer_bytes: data.remove(POINTER),
            tried: None,
            slots,
            state,
        }
    }

    /// The slots that neither version of the pointer uses.
    pub(super) fn free_slots(&self) -> Vec<Slot> {
        let used = self.pointer.used();
        let free = self.slots.iter().filter(|slot| !used.contains(&slot.name));
        free.cloned().collect()
    }

    /// Names of those of the first `needed` free slots that were not read yet.
    pub(super) fn unread_slots(&self, needed: usize) -> Vec<String> {
        let free = self.free_slots().into_iter().take(needed);
        free.filter(|slot| slot.version.is_none())
            .map(|slot| slot.name)
            .collect()
    }

    /// Of the slots `asked`, those that exist were `found`.
    pub(super) fn slots_read(&mut self, asked: &[String], found: &BTreeMap<String, Snapshot>) {
        self.slots
            .retain(|slot| !asked.contains(&slot.name) || found.contains_key(&slot.name));
        for slot in &mut self.slots {
            if let Some(snapshot) = found.get(&slot.name) {
                slot.version = Some(snapshot.version.clone());
            }
        }
    }

    /// There are slots with these `names`.
    pub(super) fn add_slots(&mut self, names: Vec<String>) {
        for name in names {
            if self.slots.iter().all(|slot| slot.name != name) {
                self.slots.push(Slot::new(name, None));
            }
        }
    }

    /// Whether the pointer is what it was.
    pub(super) fn is_pointer_of(&self, found: &Snapshot) -> bool {
        found.data.get(POINTER) == self.pointer_bytes.as_ref()
    }

    /// The pointer has moved to what was tried.
    pub(super) fn pointer_moved(&mut self, tried: Tried, bytes: Vec<u8>, version: String) {
        self.pointer = tried.pointer;
        self.pointer_version = version;
        self.pointer_bytes = Some(bytes);
        self.tried = None;
        self.state = tried.state;
    }

    /// `chunk` is about to be sent.
    pub(super) fn chunk_tried(&mut self, name: &str, chunk: &[u8]) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.name == name) {
            slot.tried.insert(sha256_hex(chunk));
        }
    }

    /// A chunk is written: earlier ones that are still on their way can only fail.
    pub(super) fn chunk_written(&mut self, name: &str, version: String) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.name == name) {
            slot.version = Some(version);
            slot.tried.clear();
        }
    }
}
