//! `state push`: a new version of the state, from a file. The lock of the state stands in the run
//! record meanwhile, as for a run that applies.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use alustan_api::run::{RunPhase, RunRecord, StateLock, key};
use alustan_core::references::Key;
use alustan_state::error_text::place_in_json;
use alustan_state::head::StateHead;
use alustan_state::secrets::Snapshot;
use alustan_state::store::StateStore;
use clap::Args;
use k8s_openapi::jiff::Timestamp;

use super::check::{check, is_foreign};
use super::managed;
use super::slots::{Maker, open};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::record::{Record, Update, busy};

/// Write a new version of the state; the one before is kept.
#[derive(Debug, Args)]
pub(crate) struct Push {
    /// Name of the resource.
    name: String,
    /// The file with the state.
    file: PathBuf,
    /// Whatever its lineage and serial number are, also where the present state is lost.
    #[arg(long)]
    force: bool,
}

/// A state to push.
struct NewState {
    bytes: Vec<u8>,
    head: StateHead,
}

impl Push {
    /// Writes it.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let new = self.read()?;
        let tf = cluster.resource(&self.name).await?;
        let record = managed(cluster, &tf).await?;
        record.check_pods(cluster).await?;
        let maker = Maker::new(cluster.api(), tf);
        let lock = lock(Timestamp::now());
        let take = |found: &mut RunRecord, secret: &Snapshot| {
            take(&record.key, found, secret, &lock, self.force)
        };
        let before = record.update(take).await?;
        let pushed = self.push(&record, &before, &maker, &lock, &new).await;
        let slots = pushed.is_ok().then(|| maker.slots_wanted());
        let give_back = |found: &mut RunRecord, _: &_| Ok(give_back(found, &before, &lock, slots));
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
                "{} is no Terraform state: {why}",
                self.file.display()
            ))
        };
        let head = StateHead::read(&bytes).map_err(|error| no_state(place_in_json(&error)))?;
        if head.lineage.is_none() || head.serial.is_none() {
            return Err(no_state("it has no lineage and serial number".to_owned()));
        }
        Ok(NewState { bytes, head })
    }

    /// Writes the state, while `lock` is held; the new version, in words.
    async fn push(
        &self,
        record: &Record,
        before: &RunRecord,
        maker: &Maker,
        lock: &StateLock,
        new: &NewState,
    ) -> Result<String, Error> {
        let store = self.open(record, before, maker, lock).await?;
        let present = store.get().await.unwrap_or_default();
        let old = StateHead::read(&present).unwrap_or_default();
        if !self.force {
            check(&new.head, &old, *present == new.bytes)
                .map_err(|why| refused(&record.key, &why))?;
        }
        let (now, _) = record.read().await?;
        if now.lock.as_ref().is_none_or(|held| held.id != lock.id) {
            let why = format!("run {} has begun meanwhile", now.number);
            return Err(refused(&record.key, &why));
        }
        let written = store.put(new.bytes.clone()).await;
        written.map_err(|source| Error::State {
            what: format!("push the state of {}", record.key),
            source,
        })?;
        Ok(describe(&store).await)
    }

    /// The present state. One that is lost is not taken for an empty one.
    async fn open(
        &self,
        record: &Record,
        before: &RunRecord,
        maker: &Maker,
        lock: &StateLock,
    ) -> Result<StateStore, Error> {
        if !maker.has_pointer().await? {
            if before.state_made && !self.force {
                let why = "the present one is lost; --force begins anew with the file";
                return Err(refused(&record.key, why));
            }
            maker.pointer().await?;
        }
        let slots = maker.slots(before.slots_wanted).await?;
        let store = open(record, slots, Arc::new(maker.clone()), &lock.id).await;
        store.map_err(|source| Error::State {
            what: format!("read the present state of {}", record.key),
            source,
        })
    }
}

fn refused(key: &Key, why: &str) -> Error {
    Error::Refused(format!("the state of {key} is not pushed: {why}"))
}

async fn describe(store: &StateStore) -> String {
    let Some(version) = store.version().await else {
        return "empty".to_owned();
    };
    format!(
        "version {}: serial {}, lineage {}; the version before is kept",
        version.version,
        version.serial.unwrap_or_default(),
        version.lineage.unwrap_or_default()
    )
}

/// A lock of ours.
fn lock(now: Timestamp) -> StateLock {
    let user = std::env::var("USER").unwrap_or_else(|_| "somebody".to_owned());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    StateLock {
        id: format!("push-{:x}", now.as_nanosecond()),
        operation: "kubectl alustan state push".to_owned(),
        who: format!("{user}@{}", host.trim()),
        at: now,
    }
}

/// Takes the lock in `record`, if nobody is at the state.
fn take(
    key: &Key,
    record: &mut RunRecord,
    secret: &Snapshot,
    lock: &StateLock,
    force: bool,
) -> Result<Update, Error> {
    if record.lock.as_ref() == Some(lock) {
        return Ok(Update::Keep);
    }
    busy(key, record)?;
    if secret.data.contains_key(key::LEFTOVER) && !force {
        let why = "an earlier run could not save its own, which the next run does; with --force \
                   that one stands against this one";
        return Err(refused(key, why));
    }
    record.lock = Some(lock.clone());
    Ok(Update::Write)
}

/// Gives the lock back and, where a state was pushed, notes that there is one, in so many `slots`.
/// A run that began after the record was as `before` had no lock to wait for: it may go on from the
/// state that was pushed over, so it is cancelled if it has not begun to change anything. One that
/// no pod has claimed has not read any state yet.
fn give_back(
    record: &mut RunRecord,
    before: &RunRecord,
    lock: &StateLock,
    slots: Option<u32>,
) -> Update {
    let found = record.clone();
    record.lock.take_if(|held| held == lock);
    if let Some(slots) = slots {
        let reads = record.number != before.number && record.phase == RunPhase::Planning;
        record.cancel |= reads;
        record.state_made = true;
        record.slots_wanted = record.slots_wanted.max(slots);
    }
    if *record == found {
        Update::Keep
    } else {
        Update::Write
    }
}

/// Tells what a person must know besides.
fn report(key: &Key, before: &RunRecord, after: &RunRecord, head: &StateHead) {
    let Key { namespace, name } = key;
    if after.number != before.number && after.cancel {
        eprintln!(
            "run {} began meanwhile; it is cancelled and started anew",
            after.number
        );
    } else if after.number != before.number && after.phase > RunPhase::Planning {
        eprintln!(
            "run {} began meanwhile, and may have gone on from the state before: look at it with \
             `kubectl alustan logs {name} -n {namespace}`",
            after.number
        );
    }
    if is_foreign(&before.lineage, head) {
        eprintln!(
            "it is of another lineage than what {key} made: the next run says StateNotOurs until \
             spec.backend.adopt is true"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alustan_api::run::Claim;
    use rstest::rstest;
    use std::collections::BTreeMap;

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

    fn secret(leftover: bool) -> Snapshot {
        let leftover = leftover.then(|| (key::LEFTOVER.to_owned(), b"sealed".to_vec()));
        Snapshot {
            version: "1".into(),
            data: BTreeMap::from_iter(leftover),
        }
    }

    #[rstest]
    #[case::free(RunPhase::Recorded, None, false, false, true)]
    #[case::held_by_us(RunPhase::Recorded, Some("ours"), false, false, true)]
    #[case::held_by_others(RunPhase::Recorded, Some("others"), false, true, false)]
    #[case::a_run_goes_on(RunPhase::Applying, None, false, true, false)]
    #[case::a_state_to_save(RunPhase::Recorded, None, true, false, false)]
    #[case::a_state_to_save_by_force(RunPhase::Recorded, None, true, true, true)]
    fn the_lock_is_taken_where_nobody_is_at_the_state(
        #[case] phase: RunPhase,
        #[case] held: Option<&str>,
        #[case] leftover: bool,
        #[case] force: bool,
        #[case] good: bool,
    ) {
        let held = held.map(|by| StateLock {
            id: if by == "ours" { ours().id } else { by.into() },
            ..ours()
        });
        let mut found = record(3, phase, held);
        let taken = take(
            &Key::new("team", "web"),
            &mut found,
            &secret(leftover),
            &ours(),
            force,
        );
        assert_eq!(taken.is_ok(), good);
        assert_eq!(found.lock == Some(ours()), good);
    }

    #[rstest]
    #[case::nothing(None, false, 4)]
    #[case::a_state(Some(0), true, 4)]
    #[case::a_large_state(Some(9), true, 9)]
    fn the_lock_is_given_back_and_the_state_noted(
        #[case] slots: Option<u32>,
        #[case] made: bool,
        #[case] wanted: u32,
    ) {
        let mut before = record(3, RunPhase::Recorded, Some(ours()));
        before.slots_wanted = 4;
        let mut found = before.clone();
        give_back(&mut found, &before, &ours(), slots);
        assert_eq!((found.lock, found.state_made), (None, made));
        assert_eq!(found.slots_wanted, wanted);
    }

    #[rstest]
    #[case::that_has_read_the_old_state(4, RunPhase::Planning, Some(0), true)]
    #[case::that_reads_the_new_one(4, RunPhase::Starting, Some(0), false)]
    #[case::that_changes_things(4, RunPhase::Applying, Some(0), false)]
    #[case::while_nothing_was_pushed(4, RunPhase::Planning, None, false)]
    #[case::none(3, RunPhase::Recorded, Some(0), false)]
    fn a_run_that_began_meanwhile_is_cancelled(
        #[case] number: i64,
        #[case] phase: RunPhase,
        #[case] slots: Option<u32>,
        #[case] cancelled: bool,
    ) {
        let before = record(3, RunPhase::Recorded, Some(ours()));
        let mut found = record(number, phase, None);
        give_back(&mut found, &before, &ours(), slots);
        assert_eq!(found.cancel, cancelled);
    }
}
