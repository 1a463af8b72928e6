//! Secrets in memory, for tests: with the versions, conflicts and faults of a real API server.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::secrets::{Changes, Secrets, Snapshot, StoreError};

/// What happens to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives.
    Lost,
    /// It arrives, but its answer does not.
    AnswerLost,
}

#[derive(Default)]
struct Memory {
    secrets: BTreeMap<String, Snapshot>,
    clock: u64,
    writes: Vec<String>,
    faults: BTreeMap<usize, Fault>,
    dead_after: Option<usize>,
}

/// Secrets in memory.
#[derive(Default)]
pub struct FakeSecrets {
    memory: Mutex<Memory>,
}

impl FakeSecrets {
    /// No Secrets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a Secret, or replaces it.
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

    /// Takes a Secret away.
    pub fn remove(&self, name: &str) {
        self.memory().secrets.remove(name);
    }

    /// A Secret as it is.
    pub fn get(&self, name: &str) -> Option<Snapshot> {
        self.memory().secrets.get(name).cloned()
    }

    /// Names of the Secrets that were written, in order.
    pub fn writes(&self) -> Vec<String> {
        self.memory().writes.clone()
    }

    /// Gives a fault to the write number `at`, counted from 0.
    pub fn fail(&self, at: usize, fault: Fault) {
        self.memory().faults.insert(at, fault);
    }

    /// From write number `at` on nothing arrives, as if the writer had died.
    pub fn die_at(&self, at: Option<usize>) {
        self.memory().dead_after = at;
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
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
        let number = self.writes.len();
        if self.dead_after.is_some_and(|at| number >= at) {
            return Err(StoreError::Refused {
                name: name.to_owned(),
                text: "the test says that the writer is dead".to_owned(),
            });
        }
        self.writes.push(name.to_owned());
        let fault = self.faults.get(&number).copied();
        if fault == Some(Fault::Lost) {
            return Err(unavailable(name));
        }
        let answer = self.apply(name, version, changes)?;
        if fault == Some(Fault::AnswerLost) {
            Err(unavailable(name))
        } else {
            Ok(answer)
        }
    }

    fn apply(&mut self, name: &str, version: &str, changes: Changes) -> Result<String, StoreError> {
        self.clock += 1;
        let secret = self
            .secrets
            .get_mut(name)
            .ok_or_else(|| StoreError::Missing(name.to_owned()))?;
        if secret.version != version {
            return Err(StoreError::Conflict(name.to_owned()));
        }
        for (key, value) in changes {
            match value {
                Some(value) => secret.data.insert(key, value),
                None => secret.data.remove(&key),
            };
        }
        secret.version = self.clock.to_string();
        Ok(secret.version.clone())
    }
}

#[async_trait]
impl Secrets for FakeSecrets {
    async fn read(&self, name: &str) -> Result<Snapshot, StoreError> {
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
}
