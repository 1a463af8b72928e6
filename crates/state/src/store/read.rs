//! Reads a version of the state from its slots. Distinguishes missing slots from damaged slots.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::Duration;

use flate2::read::GzDecoder;
use futures::future::try_join_all;

use super::error::StateError;
use super::layout::{DATA, MAX_STATE_BYTES, PACKED, POINTER, Pointer, SLOTS, Version, sha256_hex};
use crate::retry::{Patience, pause_between_tries};
use crate::secrets::{Secrets, Snapshot, StoreError};

/// Maximum duration of the retries of a read or write.
pub(super) const PATIENCE: Duration = Duration::from_mins(2);
/// Number of state slots that are read concurrently.
const CONCURRENT_READS: usize = 64;

/// Parses the pointer. Refuses a pointer with too many or repeated slots: the code of a Terraform module runs with the permissions of the
/// run, so it can write a forged pointer that names any Secrets, any number of times.
pub(super) fn parse_pointer(name: &str, snapshot: &Snapshot) -> Result<Pointer, StateError> {
    let bytes = snapshot.data.get(POINTER).map(Vec::as_slice);
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
        return Ok(Pointer::default());
    };
    let pointer: Pointer = serde_json::from_slice(bytes)
        .map_err(|source| StateError::Pointer(name.to_owned(), source))?;
    for version in pointer.current.iter().chain(&pointer.previous) {
        check_slots(name, version)?;
    }
    Ok(pointer)
}

/// Checks that `version` lists at most [`SLOTS`] slots, each of them once. `name`: name of the pointer Secret.
fn check_slots(name: &str, version: &Version) -> Result<(), StateError> {
    let (slots, number) = (&version.slots, version.version);
    if slots.len() > SLOTS {
        return Err(StateError::Corrupt(format!(
            "Secret {name} lists {} Secrets for version {number} of the state, more than the limit \
             of {SLOTS}",
            slots.len()
        )));
    }
    let mut seen = BTreeSet::new();
    match slots.iter().find(|slot| !seen.insert(*slot)) {
        None => Ok(()),
        Some(slot) => Err(StateError::Corrupt(format!(
            "Secret {name} lists Secret {slot} twice for version {number} of the state"
        ))),
    }
}

pub(super) async fn read_pointer(
    secrets: &dyn Secrets,
    name: &str,
) -> Result<Snapshot, StateError> {
    match read_for(secrets, name, PATIENCE).await {
        Err(StoreError::Missing(name)) => Err(StateError::NoPointer(name)),
        other => Ok(other?),
    }
}

/// Returns name and content of a slot; `None` if the Secret does not exist. A missing slot is an error only if the pointer names the slot,
/// which the caller checks.
pub(super) async fn read_slot(
    secrets: &dyn Secrets,
    name: &str,
) -> Result<Option<(String, Snapshot)>, StateError> {
    match read_for(secrets, name, PATIENCE).await {
        Err(StoreError::Missing(_)) => Ok(None),
        other => Ok(Some((name.to_owned(), other?))),
    }
}

/// Reads `slots` in order. Skips missing slots. Stops when the slots that were read exceed [`PACKED`] bytes in total, because [`join`]
/// refuses a version of this size.
pub(super) async fn read_slots(
    secrets: &dyn Secrets,
    slots: &[String],
) -> Result<BTreeMap<String, Snapshot>, StateError> {
    let mut snapshots = BTreeMap::new();
    let mut size = 0;
    for batch in slots.chunks(CONCURRENT_READS) {
        let read = try_join_all(batch.iter().map(|slot| read_slot(secrets, slot))).await?;
        for (name, snapshot) in read.into_iter().flatten() {
            size += snapshot.data.values().map(Vec::len).sum::<usize>();
            snapshots.insert(name, snapshot);
        }
        if size > PACKED {
            break;
        }
    }
    Ok(snapshots)
}

/// Reads a Secret. Retries transient failures for at most `patience`.
pub(super) async fn read_for(
    secrets: &dyn Secrets,
    name: &str,
    patience: Duration,
) -> Result<Snapshot, StoreError> {
    let patience = Patience::lasting(patience);
    let mut pauses = pause_between_tries();
    loop {
        match secrets.read(name).await {
            Err(error) if error.is_passing() && !patience.is_over() => {
                tokio::time::sleep(pauses.next().unwrap_or_default()).await;
            }
            other => return other,
        }
    }
}

/// Defect of a stored version of the state.
enum Fault {
    /// The slot is missing or empty.
    Gone(String),
    /// The content of the slots does not match the version.
    Damaged(String),
}

/// Returns the current state after a check of its size and SHA-256. If the check fails, the error says whether the previous version is
/// intact.
pub(super) async fn join(
    secrets: &dyn Secrets,
    current: &Version,
    pointer: &Pointer,
    known: &BTreeMap<String, Snapshot>,
) -> Result<Vec<u8>, StateError> {
    let fault = match unpack(secrets, current, known).await? {
        Ok(state) => return Ok(state),
        Err(fault) => fault,
    };
    let advice = match &pointer.previous {
        None => "no previous version exists".to_owned(),
        Some(previous) => advice(previous, unpack(secrets, previous, known).await?.is_ok()),
    };
    Err(match fault {
        Fault::Gone(slot) => StateError::NoSlot {
            slot,
            version: current.version,
            advice,
        },
        Fault::Damaged(why) => StateError::Corrupt(format!(
            "version {} of the state (in {}) is damaged: {why}; {advice}",
            current.version,
            current.slots.join(", "),
        )),
    })
}

fn advice(previous: &Version, intact: bool) -> String {
    let serial = previous.serial.unwrap_or_default();
    if intact {
        format!(
            "the previous version {} (serial {serial}) is intact. To restore it, check what was \
             applied since then, and set `current` of the pointer Secret to the value of \
             `previous`",
            previous.version
        )
    } else {
        format!("the previous version {} is damaged too", previous.version)
    }
}

async fn unpack(
    secrets: &dyn Secrets,
    version: &Version,
    known: &BTreeMap<String, Snapshot>,
) -> Result<Result<Vec<u8>, Fault>, StateError> {
    let mut packed = Vec::new();
    for slot in &version.slots {
        let data = match known.get(slot) {
            Some(snapshot) => snapshot.data.get(DATA).cloned(),
            None => read_slot(secrets, slot)
                .await?
                .and_then(|(_, mut snapshot)| snapshot.data.remove(DATA)),
        };
        match data {
            Some(chunk) if packed.len() + chunk.len() > PACKED => {
                let why = format!("the slots of the version exceed {PACKED} bytes");
                return Ok(Err(Fault::Damaged(why)));
            }
            Some(chunk) if !chunk.is_empty() => packed.extend(chunk),
            Some(_) | None => return Ok(Err(Fault::Gone(slot.clone()))),
        }
    }
    Ok(verify(version, &packed).map_err(Fault::Damaged))
}

fn verify(version: &Version, packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut state = Vec::new();
    GzDecoder::new(packed)
        .take(MAX_STATE_BYTES as u64 + 1)
        .read_to_end(&mut state)
        .map_err(|error| error.to_string())?;
    if state.len() > MAX_STATE_BYTES {
        return Err(format!("the state exceeds {MAX_STATE_BYTES} bytes"));
    }
    if sha256_hex(&state) == version.sha256 {
        Ok(state)
    } else {
        Err("the SHA-256 of the state does not match the pointer".to_owned())
    }
}
