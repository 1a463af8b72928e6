//! Claim of a run, the first step of the runner. A pod that cannot claim the run exits without executing the run.

use std::time::Duration;

use alustan_api::run::{Claim, RunInputs, RunProgress, RunRecord, RunSpec, check_number, key};
use alustan_state::retry::Patience;
use alustan_state::secrets::{Changes, Snapshot, StoreError};
use k8s_openapi::jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use crate::record::{Identity, RecordError, RecordHandle, Update, parse};

/// Maximum duration of the retries of a claim. The API server may be unavailable, or the Role of the pod may not have taken effect yet.
const PATIENCE: Duration = Duration::from_mins(5);

/// A claimed run with its inputs.
pub struct Claimed {
    /// Specification of the run, from the run record.
    pub run: RunSpec,
    /// Run record at the time of the claim, with the results of earlier runs.
    pub record: RunRecord,
    /// Inputs of the run, including secrets.
    pub inputs: RunInputs,
    /// Secret key of the resource, for HMACs and encryption.
    pub key: Vec<u8>,
    /// Entries of earlier runs in the run report.
    pub earlier: EarlierEntries,
}

/// Entries of earlier runs in the run report.
#[derive(Default)]
pub struct EarlierEntries {
    /// Unsaved state, encrypted.
    pub unsaved_state: Option<Vec<u8>>,
    /// Whether the run report lists managed objects.
    pub has_inventory: bool,
}

impl EarlierEntries {
    fn of(report: &Snapshot) -> Self {
        Self {
            unsaved_state: report.data.get(key::LEFTOVER).cloned(),
            has_inventory: report.data.contains_key(key::INVENTORY),
        }
    }
}

/// Claims the run.
///
/// # Errors
/// Returns [`RecordError::NotOurs`] with a message of one line if this pod must not execute the run. Returns other errors if the run record
/// cannot be read, or if the run report cannot be read or written.
pub async fn claim(record: &RecordHandle, now: Timestamp) -> Result<Claimed, RecordError> {
    match try_claim(record, now).await {
        Err(RecordError::Store(StoreError::Missing(name))) => Err(RecordError::NotOurs(format!(
            "not executing the run: Secret {name} does not exist"
        ))),
        other => other,
    }
}

async fn try_claim(record: &RecordHandle, now: Timestamp) -> Result<Claimed, RecordError> {
    let identity = record.identity();
    let patience = Patience::lasting(PATIENCE);
    let (current, snapshot) = record.read(patience).await?;
    check_number(current.number, identity.number).map_err(|why| refusal(identity, &why))?;
    let claimed = read(identity, current, &snapshot)?;
    let earlier = match claim_unchanged(record, &claimed.record, now).await {
        Some(earlier) => earlier,
        None => {
            record
                .update(patience, |progress, report| {
                    let is_new = progress
                        .claim(identity.number, our_claim(identity, now))
                        .map_err(|why| refusal(identity, &why))?;
                    let earlier = EarlierEntries::of(report);
                    Ok(if is_new {
                        Update::Write(earlier, Changes::new())
                    } else {
                        Update::Keep(earlier)
                    })
                })
                .await?
        }
    };
    Ok(Claimed { earlier, ..claimed })
}

/// Claims the run of `recorded` with one request, if its progress is unchanged since the operator started it. Returns `None` otherwise.
async fn claim_unchanged(
    record: &RecordHandle,
    recorded: &RunRecord,
    now: Timestamp,
) -> Option<EarlierEntries> {
    let identity = record.identity();
    let before = RunProgress::of(recorded);
    let mut after = before.clone();
    after
        .claim(identity.number, our_claim(identity, now))
        .ok()
        .filter(|is_new| *is_new)?;
    let report = record.replace(&before, &after).await?;
    Some(EarlierEntries::of(&report))
}

/// Returns the claim of the pod of `identity`.
fn our_claim(identity: &Identity, at: Timestamp) -> Claim {
    Claim {
        pod_uid: identity.pod_uid.clone(),
        pod: identity.pod.clone(),
        at,
    }
}

fn read(
    identity: &Identity,
    current: RunRecord,
    snapshot: &Snapshot,
) -> Result<Claimed, RecordError> {
    check_decision(identity, snapshot)?;
    let secret = &identity.record;
    let missing = |key| RecordError::Incomplete {
        secret: secret.clone(),
        key,
    };
    Ok(Claimed {
        run: current.run.clone().ok_or_else(|| missing("run"))?,
        record: current,
        inputs: parse(secret, snapshot, key::INPUTS)?,
        key: snapshot
            .data
            .get(key::KEY)
            .cloned()
            .ok_or_else(|| missing(key::KEY))?,
        earlier: EarlierEntries::default(),
    })
}

/// Compares the HMAC of the run and its inputs with the HMAC that the operator wrote to the Job (`ALUSTAN_DECISION`). Accepts a Job without
/// an HMAC, because earlier operator versions wrote none.
fn check_decision(identity: &Identity, snapshot: &Snapshot) -> Result<(), RecordError> {
    let Some(decision) = &identity.decision else {
        return Ok(());
    };
    let record: Value = parse(&identity.record, snapshot, key::RECORD)?;
    let inputs: Value = parse(&identity.record, snapshot, key::INPUTS)?;
    let key = snapshot.data.get(key::KEY).map(Vec::as_slice);
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.unwrap_or_default());
    let message = json!([record.get("run"), inputs]).to_string();
    let signature = hex::encode(hmac::sign(&key, message.as_bytes()).as_ref());
    if signature == *decision {
        return Ok(());
    }
    let why = "a client other than the operator changed the run record";
    Err(refusal(identity, why))
}

fn refusal(identity: &Identity, why: &str) -> RecordError {
    let Identity { number, record, .. } = identity;
    RecordError::NotOurs(format!("not executing run {number} of {record}: {why}"))
}
