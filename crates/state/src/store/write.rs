//! Compare-and-swap writes of the pointer and of the slots, and what follows when no answer comes.

use futures::future::try_join_all;

use super::StateStore;
use super::error::StateError;
use super::layout::{DATA, POINTER, Pointer, WRITER};
use super::memory::{Memory, Slot, Tried};
use super::read::read_for;
use crate::retry::{Patience, pause_between_tries};
use crate::secrets::{Changes, Snapshot, StoreError, to_json};

/// What a slot holds that was made blank; no chunk is empty.
const BLANK: &[u8] = b"";

/// What a Secret is after a swap.
enum Swapped {
    /// It holds what we wanted, with this version.
    Done(String),
    /// It had changed, and holds something else.
    Found(Snapshot),
}

impl StateStore {
    /// Moves the pointer. It is noted first: the answer may never come, or nobody wait for it.
    pub(super) async fn move_pointer(
        &self,
        memory: &mut Memory,
        next: Tried,
    ) -> Result<(), StateError> {
        loop {
            memory.tried = Some(next.clone());
            if self.settle(memory).await? {
                return Ok(());
            }
        }
    }

    /// Makes the pointer certain: sends what was tried once more. So the slots that it names are
    /// never written while it may still arrive. Says whether it is written; where the Secret has
    /// another version and the old pointer, it was not, and cannot be any more.
    pub(super) async fn settle(&self, memory: &mut Memory) -> Result<bool, StateError> {
        let Some(tried) = memory.tried.clone() else {
            return Ok(true);
        };
        let value = to_json(&tried.pointer);
        let mut changes = Changes::from([(POINTER.to_owned(), Some(value.clone()))]);
        let chunk = tried.chunk.clone();
        changes.extend(chunk.map(|chunk| (DATA.to_owned(), Some(chunk))));
        let swapped = self.swap(&self.pointer, &memory.pointer_version, changes);
        match swapped.await? {
            Swapped::Done(version) => {
                memory.pointer_moved(tried, value, version);
                Ok(true)
            }
            Swapped::Found(found) if memory.is_pointer_of(&found) => {
                memory.pointer_version = found.version;
                memory.tried = None;
                Ok(false)
            }
            Swapped::Found(_) => Err(StateError::Moved),
        }
    }

    pub(super) fn is_signed(&self, memory: &Memory) -> bool {
        memory.pointer.writer.as_ref() == Some(&self.writer)
    }

    /// Makes the pointer ours, so that nobody else names the slots that are free by it, or checks that it still is.
    pub(super) async fn hold_pointer(&self, memory: &mut Memory) -> Result<(), StateError> {
        if self.is_signed(memory) {
            return self.check_pointer(memory).await;
        }
        let signed = Tried {
            pointer: Pointer {
                writer: Some(self.writer.clone()),
                ..memory.pointer.clone()
            },
            chunk: None,
            state: memory.state.clone(),
        };
        self.move_pointer(memory, signed).await
    }

    /// Writes `chunks` into their slots, which must be free.
    pub(super) async fn write_chunks(
        &self,
        memory: &mut Memory,
        chunks: &[(Slot, &[u8])],
    ) -> Result<(), StateError> {
        for (slot, chunk) in chunks {
            memory.chunk_tried(&slot.name, chunk);
            if slot.may_become_other_than(chunk) {
                memory.chunk_tried(&slot.name, BLANK);
            }
        }
        let known = &*memory;
        let writes = chunks
            .iter()
            .map(|(slot, chunk)| self.write_slot(known, slot, chunk));
        let versions = try_join_all(writes).await?;
        for ((slot, _), version) in chunks.iter().zip(versions) {
            memory.chunk_written(&slot.name, version);
        }
        Ok(())
    }

    /// Writes one chunk. Where another one may still arrive, the slot is made blank first: a chunk
    /// that stands there already is no write, and would not keep the other one out.
    async fn write_slot(
        &self,
        memory: &Memory,
        slot: &Slot,
        chunk: &[u8],
    ) -> Result<String, StateError> {
        // Without a version the API server would take any write.
        let Some(mut version) = slot.version.clone() else {
            return Err(StateError::Moved);
        };
        if slot.may_become_other_than(chunk) {
            version = self.write_chunk(memory, slot, version, BLANK).await?;
        }
        self.write_chunk(memory, slot, version, chunk).await
    }

    /// A slot that has changed is written all the same, as long as the pointer is ours: whoever changed it cannot name it.
    async fn write_chunk(
        &self,
        memory: &Memory,
        slot: &Slot,
        mut version: String,
        chunk: &[u8],
    ) -> Result<String, StateError> {
        loop {
            let changes = Changes::from([
                (DATA.to_owned(), Some(chunk.to_vec())),
                (WRITER.to_owned(), Some(self.writer.clone().into_bytes())),
            ]);
            match self.swap(&slot.name, &version, changes).await? {
                Swapped::Done(version) => return Ok(version),
                Swapped::Found(found) => {
                    self.check_pointer(memory).await?;
                    version = found.version;
                }
            }
        }
    }

    /// Fails if the pointer is no longer the one by which slots are free: another run may have written
    /// the slot that was just read, and named it.
    async fn check_pointer(&self, memory: &Memory) -> Result<(), StateError> {
        let found = read_for(&*self.secrets, &self.pointer, self.patience).await?;
        if memory.is_pointer_of(&found) {
            Ok(())
        } else {
            Err(StateError::Moved)
        }
    }

    /// Writes `changes`, with patience. The answer of a write may be lost, so a conflict is looked
    /// at: what we wanted may stand there already.
    async fn swap(
        &self,
        name: &str,
        version: &str,
        changes: Changes,
    ) -> Result<Swapped, StateError> {
        let patience = Patience::lasting(self.patience);
        let mut pauses = pause_between_tries();
        loop {
            match self.secrets.swap(name, version, changes.clone()).await {
                Err(StoreError::Conflict(_)) => break,
                Err(error) if error.is_passing() && !patience.is_over() => {
                    tokio::time::sleep(pauses.next().unwrap_or_default()).await;
                }
                other => return Ok(Swapped::Done(other?)),
            }
        }
        let found = read_for(&*self.secrets, name, self.patience).await?;
        let mut wanted = changes.iter();
        if wanted.all(|(key, value)| found.data.get(key) == value.as_ref()) {
            Ok(Swapped::Done(found.version))
        } else {
            Ok(Swapped::Found(found))
        }
    }
}
