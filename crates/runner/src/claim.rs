//! Claim of a run, the first step of the runner. A pod that cannot claim the run exits without executing the run.

use std::time::Duration;

use alustan_api::run::{Claim, RunInputs, RunPhase, RunProgress, RunRecord, RunSpec, key};
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
    check_number(current.number, identity).map_err(RecordError::NotOurs)?;
    let claimed = read(identity, current, &snapshot)?;
    let earlier = match claim_unchanged(record, &claimed.record, now).await {
        Some(earlier) => earlier,
        None => {
            record
                .update(patience, |progress, report| {
                    check(progress, identity).map_err(RecordError::NotOurs)?;
                    let earlier = EarlierEntries::of(report);
                    if progress.phase == RunPhase::Planning {
                        return Ok(Update::Keep(earlier));
                    }
                    *progress = claimed_by_us(progress, identity, now);
                    Ok(Update::Write(earlier, Changes::new()))
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
    check(&before, identity).ok()?;
    let after = claimed_by_us(&before, identity, now);
    let report = record.replace(&before, &after).await?;
    Some(EarlierEntries::of(&report))
}

/// Returns `progress` with a claim of the pod of `identity`.
fn claimed_by_us(progress: &RunProgress, identity: &Identity, now: Timestamp) -> RunProgress {
    RunProgress {
        phase: RunPhase::Planning,
        claimed_by: Some(our_claim(identity, now)),
        ..progress.clone()
    }
}

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
    refusal(identity, why).map_err(RecordError::NotOurs)
}

/// Fails if `number`, the number of the current run, differs from the number of the run in the Job of this pod.
fn check_number(number: i64, identity: &Identity) -> Result<(), String> {
    if number == identity.number {
        return Ok(());
    }
    refusal(identity, &format!("the current run is {number}"))
}

fn refusal(identity: &Identity, why: &str) -> Result<(), String> {
    let Identity { number, record, .. } = identity;
    Err(format!("not executing run {number} of {record}: {why}"))
}

/// Checks that `progress` permits the pod of `identity` to execute the run.
fn check(progress: &RunProgress, identity: &Identity) -> Result<(), String> {
    check_number(progress.number, identity)?;
    let refuse = |why: String| refusal(identity, &why);
    if let Some(claim) = progress
        .claimed_by
        .as_ref()
        .filter(|claim| claim.pod_uid != identity.pod_uid)
    {
        return refuse(format!(
            "the run is claimed by pod {} (uid {})",
            claim.pod, claim.pod_uid
        ));
    }
    if progress.cancel {
        return refuse("the run is cancelled".to_owned());
    }
    if progress.closed {
        return refuse("the run has ended".to_owned());
    }
    match (progress.phase, progress.claimed_by.is_some()) {
        (RunPhase::Starting, false) | (RunPhase::Planning, true) => Ok(()),
        (phase, _) => refuse(format!("the run is already in phase {phase:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn identity() -> Identity {
        Identity {
            namespace: "team".into(),
            record: "web-run".into(),
            number: 7,
            decision: None,
            pod_uid: "uid-1".into(),
            pod: "web-apply-7-x".into(),
        }
    }

    fn progress(number: i64, phase: RunPhase, by: Option<&str>, cancel: bool) -> RunProgress {
        let claimed_by = by.map(|uid| Claim {
            pod_uid: uid.into(),
            pod: format!("pod-of-{uid}"),
            at: Timestamp::UNIX_EPOCH,
        });
        RunProgress {
            number,
            phase,
            claimed_by,
            cancel,
            ..RunProgress::default()
        }
    }

    #[rstest]
    #[case::fresh(progress(7, RunPhase::Starting, None, false), None)]
    #[case::own_container_again(progress(7, RunPhase::Planning, Some("uid-1"), false), None)]
    #[case::own_after_applying(
        progress(7, RunPhase::Applying, Some("uid-1"), false),
        Some("phase Applying")
    )]
    #[case::foreign(
        progress(7, RunPhase::Planning, Some("uid-2"), false),
        Some("claimed by pod pod-of-uid-2")
    )]
    #[case::other_number(progress(8, RunPhase::Starting, None, false), Some("current run is 8"))]
    #[case::cancelled(progress(7, RunPhase::Starting, None, true), Some("is cancelled"))]
    #[case::reported(progress(7, RunPhase::Reported, None, false), Some("phase Reported"))]
    fn only_an_unclaimed_current_run_is_claimed(
        #[case] progress: RunProgress,
        #[case] refusal: Option<&str>,
    ) {
        match (check(&progress, &identity()), refusal) {
            (Ok(()), None) => {}
            (Err(text), Some(part)) => {
                assert!(
                    text.contains(part) && text.starts_with("not executing run 7 of web-run: "),
                    "{text}"
                );
            }
            (actual, wanted) => panic!("{actual:?}, but wanted {wanted:?}"),
        }
    }
}
