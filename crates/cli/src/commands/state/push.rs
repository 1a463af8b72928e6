//! `state push`: writes a new version of the state from a file. During the push, the run record contains a lock of the
//! command, which makes a second push fail. A run that starts removes the lock; the push checks this before it writes.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use alustan_api::ObjectKey;
use alustan_api::run::{RunRecord, StateLock};
use alustan_core::model::state_slots::slots;
use alustan_state::error_text::place_in_json;
use alustan_state::head::StateHead;
use alustan_state::store::StateStore;
use clap::Args;
use k8s_openapi::jiff::Timestamp;

use super::check::{check, is_foreign};
use super::managed::managed;
use super::slots::{SlotCreator, open};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::record::{RecordHandle, Update, busy};

/// Write a new version of the state; the previous version is kept.
#[derive(Debug, Args)]
pub(crate) struct Push {
    /// Name of the resource.
    name: String,
    /// File with the state.
    file: PathBuf,
    /// Skip the checks of lineage, serial number and unsaved state; replace a lost state.
    #[arg(long)]
    force: bool,
}

/// State to push.
struct NewState {
    bytes: Vec<u8>,
    head: StateHead,
}

impl Push {
    /// Acquires the lock of the state, pushes the state and releases the lock.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let new = self.read()?;
        let tf = cluster.resource(&self.name).await?;
        let record = managed(cluster, &tf).await?;
        record.check_pods(cluster).await?;
        let creator = SlotCreator::new(cluster.api(), tf);
        let lock = lock(Timestamp::now());
        let is_unsaved = record.has_unsaved_state().await? && !self.force;
        let take = |stored: &mut RunRecord, _: &_| take(&record.key, stored, &lock, is_unsaved);
        let before = record.update(take).await?;
        let pushed = self.push(&record, &before, &creator, &lock, &new).await;
        let slots = pushed.is_ok().then(|| creator.slots_wanted());
        let give_back = |stored: &mut RunRecord, _: &_| Ok(give_back(stored, &lock, slots));
        let after = record.update(give_back).await;
        let version = pushed?;
        print::line(&format!("the state of {} is now {version}", record.key))?;
        report(&record.key, &before, &after?, &new.head);
        Ok(())
    }

    fn read(&self) -> Result<NewState, Error> {
        let bytes = fs::read(&self.file).map_err(|source| Error::File {
            path: self.file.clone(),
            source,
        })?;
        let no_state = |why: String| {
            Error::Refused(format!(
                "{} is not a Terraform state: {why}",
                self.file.display()
            ))
        };
        let head = StateHead::read(&bytes).map_err(|error| no_state(place_in_json(&error)))?;
        if head.lineage.is_none() || head.serial.is_none() {
            return Err(no_state("lineage or serial is missing".to_owned()));
        }
        Ok(NewState { bytes, head })
    }

    /// Writes the state while `lock` is held. Returns a description of the new version.
    async fn push(
        &self,
        record: &RecordHandle,
        before: &RunRecord,
        creator: &SlotCreator,
        lock: &StateLock,
        new: &NewState,
    ) -> Result<String, Error> {
        let store = self.open(record, before, creator, lock).await?;
        let present = store.get().await.unwrap_or_default();
        let old = StateHead::read(&present).unwrap_or_default();
        if !self.force {
            check(&new.head, &old, *present == new.bytes)
                .map_err(|why| refused(&record.key, &why))?;
        }
        let (now, _) = record.read().await?;
        if now.lock.as_ref().is_none_or(|held| held.id != lock.id) {
            let why = format!("run {} started during the push", now.number);
            return Err(refused(&record.key, &why));
        }
        store
            .put(new.bytes.clone())
            .await
            .map_err(|source| Error::State {
                what: format!("push the state of {}", record.key),
                source,
            })?;
        Ok(describe(&store).await)
    }

    /// Opens the current state. A lost state is an error without `--force`. With `--force`, a lost state is handled as an empty state.
    async fn open(
        &self,
        record: &RecordHandle,
        before: &RunRecord,
        creator: &SlotCreator,
        lock: &StateLock,
    ) -> Result<StateStore, Error> {
        if !creator.has_pointer().await? {
            if before.state_made && !self.force {
                let why = "the current state is lost; use --force to replace it with the file";
                return Err(refused(&record.key, why));
            }
            creator.pointer().await?;
        }
        let slots = creator.slots(slots(before)).await?;
        open(record, slots, Arc::new(creator.clone()), &lock.id)
            .await
            .map_err(|source| Error::State {
                what: format!("read the current state of {}", record.key),
                source,
            })
    }
}

fn refused(key: &ObjectKey, why: &str) -> Error {
    Error::Refused(format!("cannot push the state of {key}: {why}"))
}

async fn describe(store: &StateStore) -> String {
    let Some(version) = store.version().await else {
        return "empty".to_owned();
    };
    format!(
        "version {}: serial {}, lineage {}; the previous version is kept",
        version.version,
        version.serial.unwrap_or_default(),
        version.lineage.unwrap_or_default()
    )
}

/// Returns a new lock for this push.
fn lock(now: Timestamp) -> StateLock {
    let user = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    StateLock {
        id: format!("push-{:x}", now.as_nanosecond()),
        operation: "kubectl alustan state push".to_owned(),
        who: format!("{user}@{}", host.trim()),
        at: now,
    }
}

/// Acquires the lock in `record`. Succeeds if this push already holds it.
///
/// # Errors
/// If a run is active, another process holds the lock, or `is_unsaved` is true: an earlier run has an unsaved state.
fn take(
    key: &ObjectKey,
    record: &mut RunRecord,
    lock: &StateLock,
    is_unsaved: bool,
) -> Result<Update, Error> {
    if record.lock.as_ref() == Some(lock) {
        return Ok(Update::Keep);
    }
    busy(key, record)?;
    if is_unsaved {
        let why = "an earlier run has an unsaved state, which the next run saves. With --force, \
                   the next run still tries to save that state over the pushed one";
        return Err(refused(key, why));
    }
    record.lock = Some(lock.clone());
    Ok(Update::Write)
}

/// Removes `lock` from `record`. `slots` is set after a successful push. In this case, also records that the state exists,
/// and the number of slots that it needs.
fn give_back(record: &mut RunRecord, lock: &StateLock, slots: Option<u32>) -> Update {
    let before = record.clone();
    record.lock.take_if(|held| held == lock);
    if let Some(slots) = slots {
        record.state_made = true;
        record.slots_wanted = record.slots_wanted.max(slots);
    }
    if *record == before {
        Update::Keep
    } else {
        Update::Write
    }
}

/// Prints a warning if a run started during the push, and another if the next run will refuse the lineage of the state.
fn report(key: &ObjectKey, before: &RunRecord, after: &RunRecord, head: &StateHead) {
    let ObjectKey { namespace, name } = key;
    if after.number != before.number {
        print::note(&format!(
            "run {} started during the push and may use the previous state; to see its log: kubectl alustan logs {name} -n \
             {namespace}",
            after.number
        ));
    }
    if is_foreign(&before.lineage, head) {
        print::note(&format!(
            "the run record of {key} does not contain the lineage of the file; the next run fails with \
             StateOwnershipConflict unless spec.backend.adopt is true"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alustan_api::run::{Claim, RunPhase};
    use rstest::rstest;

    fn ours() -> StateLock {
        lock(Timestamp::UNIX_EPOCH)
    }

    fn record(number: i64, phase: RunPhase, lock: Option<StateLock>) -> RunRecord {
        let claim = Claim {
            pod_uid: "u".into(),
            pod: "p".into(),
            at: Timestamp::UNIX_EPOCH,
        };
        RunRecord {
            number,
            phase,
            lock,
            claimed_by: (phase > RunPhase::Starting).then_some(claim),
            ..RunRecord::default()
        }
    }

    #[rstest]
    #[case::free(RunPhase::Recorded, None, false, true)]
    #[case::held_by_caller(RunPhase::Recorded, Some("ours"), false, true)]
    #[case::held_by_others(RunPhase::Recorded, Some("others"), false, false)]
    #[case::active_run(RunPhase::Applying, None, false, false)]
    #[case::unsaved_state(RunPhase::Recorded, None, true, false)]
    fn lock_is_taken_only_if_the_state_is_not_in_use(
        #[case] phase: RunPhase,
        #[case] held: Option<&str>,
        #[case] is_unsaved: bool,
        #[case] good: bool,
    ) {
        let held = held.map(|by| StateLock {
            id: if by == "ours" { ours().id } else { by.into() },
            ..ours()
        });
        let mut stored = record(3, phase, held);
        let key = ObjectKey::new("team", "web");
        let taken = take(&key, &mut stored, &ours(), is_unsaved);
        assert_eq!(taken.is_ok(), good);
        assert_eq!(stored.lock == Some(ours()), good);
    }

    #[rstest]
    #[case::no_state(None, false, 4)]
    #[case::state(Some(0), true, 4)]
    #[case::large_state(Some(9), true, 9)]
    fn release_clears_the_lock_and_records_the_state(
        #[case] slots: Option<u32>,
        #[case] made: bool,
        #[case] wanted: u32,
    ) {
        let mut stored = record(3, RunPhase::Recorded, Some(ours()));
        stored.slots_wanted = 4;
        give_back(&mut stored, &ours(), slots);
        assert_eq!((stored.lock, stored.state_made), (None, made));
        assert_eq!(stored.slots_wanted, wanted);
    }
}
