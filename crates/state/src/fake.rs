//! In-memory Secrets for tests, with the resource versions, conflicts and faults of a real API server.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};

use crate::secrets::{Changes, Secrets, Snapshot, StoreError};

/// Fault that a test injects into a write. The write returns [`StoreError::Unavailable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost and not applied.
    Lost,
    /// The request is applied, but its response is lost.
    AnswerLost,
    /// The response is lost, and the request is applied late: with `Late(n)` for write number `m`, just before write number `m + n`.
    Late(usize),
}

/// A write with [`Fault::Late`] that is not applied yet.
struct LateWrite {
    arrives_at: usize,
    name: String,
    version: String,
    changes: Changes,
}

#[derive(Default)]
struct Memory {
    secrets: BTreeMap<String, Snapshot>,
    clock: u64,
    writes: Vec<String>,
    reads: Vec<String>,
    faults: BTreeMap<usize, Fault>,
    dead_after: Option<usize>,
    unavailable_after: Option<usize>,
    late_writes: Vec<LateWrite>,
}

/// In-memory implementation of [`Secrets`].
#[derive(Default)]
pub struct FakeSecrets {
    memory: Mutex<Memory>,
}

impl FakeSecrets {
    /// Creates a store without Secrets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates or replaces a Secret.
    pub fn put(&self, name: &str, data: impl IntoIterator<Item = (&'static str, Vec<u8>)>) {
        let mut memory = self.memory();
        memory.clock += 1;
        let version = memory.clock.to_string();
        let data = data
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        memory
            .secrets
            .insert(name.to_owned(), Snapshot { version, data });
    }

    /// Deletes a Secret.
    pub fn remove(&self, name: &str) {
        self.memory().secrets.remove(name);
    }

    /// Returns the current snapshot of a Secret.
    pub fn get(&self, name: &str) -> Option<Snapshot> {
        self.memory().secrets.get(name).cloned()
    }

    /// Returns the names of the Secrets that were written, in order. Includes writes with a fault.
    pub fn writes(&self) -> Vec<String> {
        self.memory().writes.clone()
    }

    /// Returns the names of the Secrets that were read, in order.
    pub fn reads(&self) -> Vec<String> {
        self.memory().reads.clone()
    }

    /// Injects `fault` into write number `at`, counted from 0.
    pub fn fail(&self, at: usize, fault: Fault) {
        self.memory().faults.insert(at, fault);
    }

    /// Refuses writes from number `at` on, counted from 0, as if the writer had crashed. `None` accepts writes again.
    pub fn die_at(&self, at: Option<usize>) {
        self.memory().dead_after = at;
    }

    /// Makes reads and writes after write number `at` fail with [`StoreError::Unavailable`]. `None` ends the outage.
    pub fn become_unavailable_after(&self, at: Option<usize>) {
        self.memory().unavailable_after = at;
    }

    /// Applies all delayed writes ([`Fault::Late`]).
    pub fn deliver_late_writes(&self) {
        self.memory().deliver_late_writes(usize::MAX);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }
}

fn unavailable(name: &str) -> StoreError {
    StoreError::Unavailable {
        name: name.to_owned(),
        text: "fault of the test".to_owned(),
    }
}

impl Memory {
    fn write(&mut self, name: &str, version: &str, changes: Changes) -> Result<String, StoreError> {
        if self.is_unavailable() {
            return Err(unavailable(name));
        }
        let number = self.writes.len();
        self.deliver_late_writes(number);
        if self.dead_after.is_some_and(|at| number >= at) {
            return Err(StoreError::Refused {
                name: name.to_owned(),
                text: "the test simulates a crash of the writer".to_owned(),
            });
        }
        self.writes.push(name.to_owned());
        match self.faults.get(&number).copied() {
            None => return self.apply(name, version, changes),
            Some(Fault::Lost) => {}
            Some(Fault::AnswerLost) => {
                let _ = self.apply(name, version, changes);
            }
            Some(Fault::Late(by)) => self.late_writes.push(LateWrite {
                arrives_at: number + by,
                name: name.to_owned(),
                version: version.to_owned(),
                changes,
            }),
        }
        Err(unavailable(name))
    }

    fn is_unavailable(&self) -> bool {
        self.unavailable_after
            .is_some_and(|at| self.writes.len() > at)
    }

    fn deliver_late_writes(&mut self, number: usize) {
        let all = std::mem::take(&mut self.late_writes);
        let (arrived, later) = all
            .into_iter()
            .partition(|write| write.arrives_at <= number);
        self.late_writes = later;
        let arrived: Vec<LateWrite> = arrived;
        for write in arrived {
            let _ = self.apply(&write.name, &write.version, write.changes);
        }
    }

    /// Applies a write like the API server: a write without a change keeps the resource version.
    fn apply(&mut self, name: &str, version: &str, changes: Changes) -> Result<String, StoreError> {
        self.clock += 1;
        let secret = self
            .secrets
            .get_mut(name)
            .ok_or_else(|| StoreError::Missing(name.to_owned()))?;
        if secret.version != version {
            return Err(StoreError::Conflict(name.to_owned()));
        }
        let before = secret.data.clone();
        for (key, value) in changes {
            match value {
                Some(value) => secret.data.insert(key, value),
                None => secret.data.remove(&key),
            };
        }
        if secret.data != before {
            secret.version = self.clock.to_string();
        }
        Ok(secret.version.clone())
    }
}

#[async_trait]
impl Secrets for FakeSecrets {
    async fn read(&self, name: &str) -> Result<Snapshot, StoreError> {
        if self.memory().is_unavailable() {
            return Err(unavailable(name));
        }
        self.memory().reads.push(name.to_owned());
        self.get(name)
            .ok_or_else(|| StoreError::Missing(name.to_owned()))
    }

    async fn swap(
        &self,
        name: &str,
        version: &str,
        changes: Changes,
    ) -> Result<String, StoreError> {
        self.memory().write(name, version, changes)
    }

    async fn replace(
        &self,
        name: &str,
        key: &str,
        before: &[u8],
        after: &[u8],
    ) -> Result<Snapshot, StoreError> {
        let mut memory = self.memory();
        let current = memory.secrets.get(name).cloned();
        let current = current.ok_or_else(|| StoreError::Missing(name.to_owned()))?;
        if current.data.get(key).map(Vec::as_slice) != Some(before) {
            return Err(StoreError::Conflict(name.to_owned()));
        }
        let changes = Changes::from([(key.to_owned(), Some(after.to_vec()))]);
        let version = memory.write(name, &current.version, changes.clone())?;
        Ok(current.swapped(version, changes))
    }
}
