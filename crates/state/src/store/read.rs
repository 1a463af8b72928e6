//! Reads a version of the state. Distinguishes missing slots from damaged ones.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use flate2::read::GzDecoder;

use super::error::StateError;
use super::layout::{DATA, LARGEST, POINTER, Pointer, SLOTS, Version, sha256_hex};
use crate::retry::{Patience, pause_between_tries};
use crate::secrets::{Secrets, Snapshot, StoreError};

/// Maximum duration of the retries of a read or write.
pub(super) const PATIENCE: Duration = Duration::from_mins(2);

/// Parses the pointer. A module has the permissions of its run, so a forged pointer may name any number of Secrets.
pub(super) fn parse_pointer(name: &str, snapshot: &Snapshot) -> Result<Pointer, StateError> {
    let bytes = snapshot.data.get(POINTER).map(Vec::as_slice);
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
        return Ok(Pointer::default());
    };
    let pointer: Pointer = serde_json::from_slice(bytes)
        .map_err(|source| StateError::Pointer(name.to_owned(), source))?;
    let versions = pointer.current.iter().chain(&pointer.previous);
    if let Some(version) = versions.into_iter().find(|it| it.slots.len() > SLOTS) {
        return Err(StateError::Corrupt(format!(
            "secret {name} names {} secrets for version {} of the state, more than {SLOTS}",
            version.slots.len(),
            version.version
        )));
    }
    Ok(pointer)
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

/// Reads a slot; returns it with its name. Returns `None` for a missing slot: it cannot be written, and the pointer
/// records whether it held a chunk.
pub(super) async fn read_slot(
    secrets: &dyn Secrets,
    name: &str,
) -> Result<Option<(String, Snapshot)>, StateError> {
    match read_for(secrets, name, PATIENCE).await {
        Err(StoreError::Missing(_)) => Ok(None),
        other => Ok(Some((name.to_owned(), other?))),
    }
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

/// Defect of a version.
enum Fault {
    /// The slot is missing or empty.
    Gone(String),
    /// The slots hold other content.
    Damaged(String),
}

/// Returns the verified current state. The error says whether the previous version is intact.
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
        None => "there is no version before it".to_owned(),
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
            "version {} before it (serial {serial}) is intact: to go back to it, make `previous` \
             of the pointer Secret its `current`, after looking at what was applied since",
            previous.version
        )
    } else {
        format!("version {} before it is lost as well", previous.version)
    }
}

async fn unpack(
    secrets: &dyn Secrets,
    version: &Version,
    known: &BTreeMap<String, Snapshot>,
) -> Result<Result<Vec<u8>, Fault>, StateError> {
    let mut packed = Vec::new();
    for slot in &version.slots {
        let found = match known.get(slot) {
            Some(snapshot) => snapshot.data.get(DATA).cloned(),
            None => read_slot(secrets, slot)
                .await?
                .and_then(|(_, mut snapshot)| snapshot.data.remove(DATA)),
        };
        match found {
            Some(chunk) if !chunk.is_empty() => packed.extend(chunk),
            Some(_) | None => return Ok(Err(Fault::Gone(slot.clone()))),
        }
    }
    Ok(verify(version, &packed).map_err(Fault::Damaged))
}

fn verify(version: &Version, packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut state = Vec::new();
    GzDecoder::new(packed)
        .take(LARGEST as u64 + 1)
        .read_to_end(&mut state)
        .map_err(|error| error.to_string())?;
    if state.len() > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes"));
    }
    if sha256_hex(&state) == version.sha256 {
        Ok(state)
    } else {
        Err("its checksum does not match".to_owned())
    }
}
