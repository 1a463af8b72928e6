//! Compare-and-swap writes of the pointer and the slots, and recovery from lost responses.

use futures::future::try_join_all;

use super::StateStore;
use super::error::StateError;
use super::layout::{DATA, POINTER, Pointer, WRITER};
use super::memory::{Memory, PointerWrite, Slot};
use super::read::read_for;
use crate::retry::{Patience, pause_between_tries};
use crate::secrets::{Changes, Snapshot, StoreError, to_json};

/// Content of a cleared slot. Differs from every chunk, because chunks are never empty.
const BLANK: &[u8] = b"";

/// Result of a compare-and-swap of a Secret.
enum Swapped {
    /// The Secret has the wanted content, at this resource version.
    Done(String),
    /// The Secret has changed and has other content.
    Found(Snapshot),
}

impl StateStore {
    /// Writes the pointer `next.pointer`. Records the write in `memory` first: if the response is lost or the caller cancels the write, its
    /// outcome is unknown.
    pub(super) async fn move_pointer(
        &self,
        memory: &mut Memory,
        next: PointerWrite,
    ) -> Result<(), StateError> {
        loop {
            memory.unsettled = Some(next.clone());
            if self.settle(memory).await? {
                return Ok(());
            }
        }
    }

    /// Sends a pointer write of unknown outcome again, to determine its outcome. No slot of the new pointer is overwritten before the
    /// outcome is known. Returns true if the pointer is written. Returns false if the Secret has the old pointer at a new resource version:
    /// the earlier request was not applied and can only fail with a conflict.
    ///
    /// # Errors
    ///
    /// [`StateError::Moved`] if another writer moved the pointer.
    pub(super) async fn settle(&self, memory: &mut Memory) -> Result<bool, StateError> {
        let Some(write) = memory.unsettled.clone() else {
            return Ok(true);
        };
        let value = to_json(&write.pointer);
        let mut changes = Changes::from([(POINTER.to_owned(), Some(value.clone()))]);
        let chunk = write.chunk.clone();
        changes.extend(chunk.map(|chunk| (DATA.to_owned(), Some(chunk))));
        let swapped = self.swap(&self.pointer, &memory.pointer_version, changes);
        match swapped.await? {
            Swapped::Done(version) => {
                memory.pointer_moved(write, value, version);
                Ok(true)
            }
            Swapped::Found(snapshot) if memory.is_pointer_of(&snapshot) => {
                memory.pointer_version = snapshot.version;
                memory.unsettled = None;
                Ok(false)
            }
            Swapped::Found(_) => Err(StateError::Moved),
        }
    }

    pub(super) fn is_claimed(&self, memory: &Memory) -> bool {
        memory.pointer.writer.as_ref() == Some(&self.writer)
    }

    /// Claims the pointer: sets `writer` in the pointer. This write changes the resource version of the pointer Secret, so pending pointer
    /// writes of earlier writers fail with a conflict. If this writer has already claimed the pointer, only checks that the pointer is
    /// unchanged.
    pub(super) async fn claim_pointer(&self, memory: &mut Memory) -> Result<(), StateError> {
        if self.is_claimed(memory) {
            return self.check_pointer(memory).await;
        }
        let claimed = PointerWrite {
            pointer: Pointer {
                writer: Some(self.writer.clone()),
                ..memory.pointer.clone()
            },
            chunk: None,
            state: memory.state.clone(),
        };
        self.move_pointer(memory, claimed).await
    }

    /// Writes `chunks` into their slots, which must be free.
    pub(super) async fn write_chunks(
        &self,
        memory: &mut Memory,
        chunks: &[(Slot, &[u8])],
    ) -> Result<(), StateError> {
        for (slot, chunk) in chunks {
            memory.chunk_sent(&slot.name, chunk);
            if slot.may_become_other_than(chunk) {
                memory.chunk_sent(&slot.name, BLANK);
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

    /// Writes one chunk. Clears the slot first if an earlier write of another chunk to the slot may still be pending. The slot may already
    /// contain the chunk. A single write would then not change the resource version, and the pending write could replace the chunk. Clearing
    /// the slot first changes the resource version, so the pending write fails with a conflict.
    async fn write_slot(
        &self,
        memory: &Memory,
        slot: &Slot,
        chunk: &[u8],
    ) -> Result<String, StateError> {
        // The API server accepts a write without a resource version unconditionally, so the slot must have been read.
        let Some(mut version) = slot.version.clone() else {
            return Err(StateError::Moved);
        };
        if slot.may_become_other_than(chunk) {
            version = self.write_chunk(memory, slot, version, BLANK).await?;
        }
        self.write_chunk(memory, slot, version, chunk).await
    }

    /// Writes a chunk to a slot. If another writer has changed the slot, checks that the pointer has not changed since
    /// [`Self::claim_pointer`], and overwrites the slot. The other writer can no longer move the pointer, so no version contains its chunk.
    /// Fails if the pointer has changed.
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
                Swapped::Found(snapshot) => {
                    self.check_pointer(memory).await?;
                    version = snapshot.version;
                }
            }
        }
    }

    /// Fails if the pointer has changed since this writer last read or wrote it: another run may have moved the pointer to a slot that this
    /// writer considers free.
    async fn check_pointer(&self, memory: &Memory) -> Result<(), StateError> {
        let snapshot = read_for(&*self.secrets, &self.pointer, self.patience).await?;
        if memory.is_pointer_of(&snapshot) {
            Ok(())
        } else {
            Err(StateError::Moved)
        }
    }

    /// Writes `changes` with retries. After a conflict, reads the Secret. Returns [`Swapped::Done`] if the Secret has the wanted content,
    /// because an earlier attempt may have been applied although its response was lost. Returns [`Swapped::Found`] if the Secret has other
    /// content.
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
        let snapshot = read_for(&*self.secrets, name, self.patience).await?;
        let mut wanted = changes.iter();
        if wanted.all(|(key, value)| snapshot.data.get(key) == value.as_ref()) {
            Ok(Swapped::Done(snapshot.version))
        } else {
            Ok(Swapped::Found(snapshot))
        }
    }
}
