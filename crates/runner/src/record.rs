//! Access to the run record, which the runner reads, and to the run report, which the runner writes. Every write is a compare-and-swap.
//! Before a write, the runner checks that this pod holds the claim of the run.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::names;
use alustan_api::run::{RunInputs, RunProgress, RunRecord, StateLock, key};
use serde::de::DeserializeOwned;

use alustan_state::retry::{Patience, pause_between_tries};
use alustan_state::secrets::{Changes, Secrets, Snapshot, StoreError, to_json};

/// Space in the Secret of the run report that is reserved for the report, in bytes. Logs and unsaved states must not use the space.
pub(crate) const RESERVE: usize = 64 * 1024;

/// Maximum duration of the retries of requests for a state lock or for state slots.
const LOCK_PATIENCE: Duration = Duration::from_mins(2);

/// Identity of a run and of the pod that was created for the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Namespace of the resource and of its Secrets.
    pub namespace: String,
    /// Name of the Secret with the run record.
    pub record: String,
    /// Number of the run.
    pub number: i64,
    /// HMAC-SHA256 of the run and its inputs that the operator wrote to the Job, in hexadecimal. `None` in Jobs of earlier operator
    /// versions.
    pub decision: Option<String>,
    /// Uid of this pod.
    pub pod_uid: String,
    /// Name of this pod.
    pub pod: String,
}

#[cfg(test)]
impl Identity {
    /// Returns the identity of run 7 of resource `web`.
    pub(crate) fn of_run_7() -> Self {
        Self {
            namespace: "team".into(),
            record: "web-run".into(),
            number: 7,
            decision: None,
            pod_uid: "uid".into(),
            pod: "web-apply-7".into(),
        }
    }
}

impl Identity {
    /// Returns the name of the resource.
    pub fn resource(&self) -> &str {
        let suffix = names::record("");
        let name = self.record.strip_suffix(&suffix);
        name.unwrap_or(&self.record)
    }

    /// Returns the name of the Secret with the run report.
    pub fn report(&self) -> String {
        names::report(self.resource())
    }
}

/// Error of reading the run record, or of reading or writing the run report.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The Secret could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The value of a key cannot be parsed.
    #[error("cannot read key {key} of Secret {secret}")]
    Unreadable {
        /// Name of the Secret.
        secret: String,
        /// Key in the data of the Secret.
        key: &'static str,
        /// Parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The Secret has no value for a key.
    #[error("Secret {secret} has no key {key}")]
    Incomplete {
        /// Name of the Secret.
        secret: String,
        /// Key that is missing in the data of the Secret.
        key: &'static str,
    },
    /// This pod must not execute the run, for example because another pod holds the claim. Contains the message.
    #[error("{0}")]
    NotOurs(String),
}

/// Result of the closure that is passed to [`RecordHandle::update`]. Determines whether the run report is written.
pub enum Update<T> {
    /// Writes nothing. [`RecordHandle::update`] returns the contained value.
    Keep(T),
    /// Writes the progress of the run and the contained changes of other keys. [`RecordHandle::update`] returns the contained value.
    Write(T, Changes),
}

/// Run record and run report of a run.
#[derive(Clone)]
pub struct RecordHandle {
    secrets: Arc<dyn Secrets>,
    identity: Identity,
    /// Run report after the last successful write of this process. The next update uses this content instead of reading the Secret.
    written: Arc<Mutex<Option<Snapshot>>>,
}

impl RecordHandle {
    /// Creates a handle for the run record that `identity` names.
    pub fn new(secrets: Arc<dyn Secrets>, identity: Identity) -> Self {
        let written = Arc::default();
        Self {
            secrets,
            identity,
            written,
        }
    }

    /// Returns the identity of the run.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Reads the run record. Retries transient errors within `patience`.
    pub async fn read(&self, patience: Patience) -> Result<(RunRecord, Snapshot), RecordError> {
        let name = &self.identity.record;
        let mut pauses = pause_between_tries();
        let snapshot = loop {
            match self.secrets.read(name).await {
                Err(error) if error.is_passing() && !patience.is_over() => {
                    tokio::time::sleep(pauses.next().unwrap_or_default()).await;
                }
                other => break other?,
            }
        };
        let record = parse(name, &snapshot, key::RECORD)?;
        Ok((record, snapshot))
    }

    /// Reads the run report once, without retry.
    pub async fn read_report(&self) -> Result<(RunProgress, Snapshot), RecordError> {
        let name = self.identity.report();
        let snapshot = self.secrets.read(&name).await?;
        let progress = parse(&name, &snapshot, key::PROGRESS)?;
        Ok((progress, snapshot))
    }

    /// Updates the run report by compare-and-swap. Retries conflicts and transient errors within `patience`.
    ///
    /// `change` receives the current progress of the run and the Secret. `change` is called again if the response to a write is lost, so it
    /// must recognise a change that an earlier call has already made.
    pub async fn update<T, F>(&self, patience: Patience, mut change: F) -> Result<T, RecordError>
    where
        F: FnMut(&mut RunProgress, &Snapshot) -> Result<Update<T>, RecordError>,
    {
        let mut pauses = pause_between_tries();
        loop {
            match self.try_update(&mut change).await {
                Err(RecordError::Store(StoreError::Conflict(_))) if !patience.is_over() => {}
                Err(RecordError::Store(error)) if error.is_passing() && !patience.is_over() => {
                    tokio::time::sleep(pauses.next().unwrap_or_default()).await;
                }
                other => return other,
            }
        }
    }

    /// Replaces the progress `before` of the run by `after`, without a read of the run report. Returns the run report. Returns `None` if the run
    /// report has another progress, or if the outcome is unknown: then [`Self::update`] reads the run report.
    pub async fn replace(&self, before: &RunProgress, after: &RunProgress) -> Option<Snapshot> {
        let name = self.identity.report();
        let (before, after) = (to_json(before), to_json(after));
        let replaced = self
            .secrets
            .replace(&name, key::PROGRESS, &before, &after)
            .await
            .ok()?;
        let mut written = self.written.lock();
        *written = Some(replaced.clone());
        Some(replaced)
    }

    async fn try_update<T, F>(&self, change: &mut F) -> Result<T, RecordError>
    where
        F: FnMut(&mut RunProgress, &Snapshot) -> Result<Update<T>, RecordError>,
    {
        // Applies `change` to the content that this process wrote last, without a read. If that content is outdated, the write fails with a
        // conflict. If `change` writes nothing, outdated content would not be detected, so `change` is called again after a read.
        if let Some(snapshot) = self.take_written() {
            let mut progress = parse(&self.identity.report(), &snapshot, key::PROGRESS)?;
            if let Ok(Update::Write(value, changes)) = change(&mut progress, &snapshot) {
                match self.write(&progress, snapshot, changes).await {
                    Err(StoreError::Conflict(_)) => {}
                    written => return Ok(written.map(|()| value)?),
                }
            }
        }
        let (mut progress, snapshot) = self.read_report().await?;
        match change(&mut progress, &snapshot)? {
            Update::Keep(value) => Ok(value),
            Update::Write(value, changes) => {
                self.write(&progress, snapshot, changes).await?;
                Ok(value)
            }
        }
    }

    async fn write(
        &self,
        progress: &RunProgress,
        snapshot: Snapshot,
        mut changes: Changes,
    ) -> Result<(), StoreError> {
        changes.insert(key::PROGRESS.to_owned(), Some(to_json(progress)));
        let name = self.identity.report();
        let version = &snapshot.version;
        let version = self.secrets.swap(&name, version, changes.clone()).await?;
        let mut written = self.written.lock();
        *written = Some(snapshot.swapped(version, changes));
        Ok(())
    }

    fn take_written(&self) -> Option<Snapshot> {
        let mut written = self.written.lock();
        written.take()
    }

    /// Updates the run report like [`Self::update`], but only if this pod holds the claim of the run.
    pub async fn update_ours<T, F>(
        &self,
        patience: Patience,
        mut change: F,
    ) -> Result<T, RecordError>
    where
        F: FnMut(&mut RunProgress, &Snapshot) -> Result<Update<T>, RecordError>,
    {
        self.update(patience, |progress, snapshot| {
            self.check_ours(progress)?;
            change(progress, snapshot)
        })
        .await
    }

    fn check_ours(&self, progress: &RunProgress) -> Result<(), RecordError> {
        let Identity {
            number,
            record: name,
            pod_uid,
            ..
        } = &self.identity;
        if progress.is_executed_by(*number, pod_uid) {
            return Ok(());
        }
        Err(RecordError::NotOurs(format!(
            "run {number} of {name} is no longer claimed by this pod"
        )))
    }

    /// Writes to the run report that the state needs `wanted` state slots; the operator then creates the missing state slots. Returns the
    /// names of the state slots in the run record.
    pub async fn request_slots(&self, wanted: u32) -> Result<Vec<String>, RecordError> {
        let patience = Patience::lasting(LOCK_PATIENCE);
        self.update_ours(patience, |progress, _| {
            if progress.slots_wanted >= wanted {
                return Ok(Update::Keep(()));
            }
            progress.slots_wanted = wanted;
            Ok(Update::Write((), Changes::new()))
        })
        .await?;
        let (_, snapshot) = self.read(patience).await?;
        let inputs: RunInputs = parse(&self.identity.record, &snapshot, key::INPUTS)?;
        let managed = inputs.backend.managed;
        Ok(managed.map(|managed| managed.slots).unwrap_or_default())
    }

    /// Writes `lock` to the run report as the lock of the managed state. Replaces an existing lock only if its id is `before`, the id of an
    /// earlier lock of this run. Returns an existing lock that has another id and is not replaced.
    pub async fn lock(
        &self,
        lock: &StateLock,
        before: Option<&str>,
    ) -> Result<Option<StateLock>, RecordError> {
        self.update_ours(Patience::lasting(LOCK_PATIENCE), |progress, _| {
            Ok(lock_update(progress.acquire_lock(lock, before)))
        })
        .await
    }

    /// Removes the lock `id` from the run report. Without an id, removes any lock. Returns an existing lock with another id, if any.
    pub async fn unlock(&self, id: Option<&str>) -> Result<Option<StateLock>, RecordError> {
        self.update_ours(Patience::lasting(LOCK_PATIENCE), |progress, _| {
            Ok(lock_update(progress.release_lock(id)))
        })
        .await
    }
}

/// Returns the update for `changed`, the result of a change of the lock.
fn lock_update(changed: Result<bool, StateLock>) -> Update<Option<StateLock>> {
    match changed {
        Ok(true) => Update::Write(None, Changes::new()),
        Ok(false) => Update::Keep(None),
        Err(held) => Update::Keep(Some(held)),
    }
}

/// Parses the value of `key` in the Secret `name`.
pub fn parse<T: DeserializeOwned>(
    name: &str,
    snapshot: &Snapshot,
    key: &'static str,
) -> Result<T, RecordError> {
    let secret = || name.to_owned();
    let bytes = snapshot
        .data
        .get(key)
        .ok_or_else(|| RecordError::Incomplete {
            secret: secret(),
            key,
        })?;
    serde_json::from_slice(bytes).map_err(|source| RecordError::Unreadable {
        secret: secret(),
        key,
        source,
    })
}
