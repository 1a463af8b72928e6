//! The runner's first act: to claim the run for its pod, or to leave it alone.

use std::time::Duration;

use alustan_api::run::{Claim, RunInputs, RunPhase, RunRecord, RunSpec, key};
use k8s_openapi::jiff::Timestamp;

use crate::record::{Identity, Record, RecordError, Update};
use crate::retry::Patience;
use crate::secrets::{Changes, Snapshot, StoreError};

/// How long a claim waits for the API server and for the permissions of a new Role.
const PATIENCE: Duration = Duration::from_mins(5);

/// What a claimed run is to do.
pub struct Claimed {
    /// The run.
    pub run: RunSpec,
    /// The record as it was claimed: what earlier runs left in it.
    pub record: RunRecord,
    /// With what.
    pub inputs: RunInputs,
    /// The resource's key.
    pub key: Vec<u8>,
    /// State that an earlier run could not save, as it is sealed in the record.
    pub leftover: Option<Vec<u8>>,
}

/// Claims the run. [`RecordError::NotOurs`] says in one line why it must be left alone.
pub async fn claim(record: &Record, now: Timestamp) -> Result<Claimed, RecordError> {
    let identity = record.identity();
    let claimed = record.update(Patience::lasting(PATIENCE), |found, snapshot| {
        check(found, identity).map_err(RecordError::NotOurs)?;
        let claimed = read(record, found, snapshot)?;
        if found.phase == RunPhase::Planning {
            return Ok(Update::Keep(claimed));
        }
        found.phase = RunPhase::Planning;
        found.claimed_by = Some(our_claim(identity, now));
        Ok(Update::Write(claimed, Changes::new()))
    });
    match claimed.await {
        Err(RecordError::Store(StoreError::Missing(name))) => Err(RecordError::NotOurs(format!(
            "secret {name} does not exist; leaving the run alone"
        ))),
        other => other,
    }
}

fn our_claim(identity: &Identity, at: Timestamp) -> Claim {
    Claim {
        pod_uid: identity.pod_uid.clone(),
        pod: identity.pod.clone(),
        at,
    }
}

fn read(record: &Record, found: &RunRecord, snapshot: &Snapshot) -> Result<Claimed, RecordError> {
    let secret = || record.identity().record.clone();
    let missing = |key| RecordError::Incomplete {
        secret: secret(),
        key,
    };
    Ok(Claimed {
        run: found.run.clone().ok_or_else(|| missing("run"))?,
        record: found.clone(),
        inputs: record.parse(snapshot, key::INPUTS)?,
        key: snapshot
            .data
            .get(key::KEY)
            .cloned()
            .ok_or_else(|| missing(key::KEY))?,
        leftover: snapshot.data.get(key::LEFTOVER).cloned(),
    })
}

/// Whether the pod of `identity` may run what the record says.
fn check(record: &RunRecord, identity: &Identity) -> Result<(), String> {
    let Identity {
        number,
        record: name,
        pod_uid,
        ..
    } = identity;
    let leave = |why: String| Err(format!("run {number} of {name} {why}; leaving it alone"));
    if record.number != *number {
        return leave(format!(
            "is not the current one, which is {}",
            record.number
        ));
    }
    if let Some(claim) = record
        .claimed_by
        .as_ref()
        .filter(|claim| claim.pod_uid != *pod_uid)
    {
        return leave(format!(
            "is claimed by pod {} (uid {})",
            claim.pod, claim.pod_uid
        ));
    }
    if record.cancel {
        return leave("is cancelled".to_owned());
    }
    match (record.phase, record.claimed_by.is_some()) {
        (RunPhase::Starting, false) | (RunPhase::Planning, true) => Ok(()),
        (phase, _) => leave(format!("has come to phase {phase:?} already")),
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
            pod_uid: "uid-1".into(),
            pod: "web-apply-7-x".into(),
        }
    }

    fn record(number: i64, phase: RunPhase, by: Option<&str>, cancel: bool) -> RunRecord {
        let claimed_by = by.map(|uid| Claim {
            pod_uid: uid.into(),
            pod: format!("pod-of-{uid}"),
            at: Timestamp::UNIX_EPOCH,
        });
        RunRecord {
            number,
            phase,
            claimed_by,
            cancel,
            ..RunRecord::default()
        }
    }

    #[rstest]
    #[case::fresh(record(7, RunPhase::Starting, None, false), None)]
    #[case::own_container_again(record(7, RunPhase::Planning, Some("uid-1"), false), None)]
    #[case::own_after_applying(
        record(7, RunPhase::Applying, Some("uid-1"), false),
        Some("phase Applying")
    )]
    #[case::foreign(
        record(7, RunPhase::Planning, Some("uid-2"), false),
        Some("claimed by pod pod-of-uid-2")
    )]
    #[case::other_number(record(8, RunPhase::Starting, None, false), Some("which is 8"))]
    #[case::cancelled(record(7, RunPhase::Starting, None, true), Some("is cancelled"))]
    #[case::reported(record(7, RunPhase::Reported, None, false), Some("phase Reported"))]
    fn only_an_unclaimed_current_run_is_taken(
        #[case] record: RunRecord,
        #[case] refusal: Option<&str>,
    ) {
        match (check(&record, &identity()), refusal) {
            (Ok(()), None) => {}
            (Err(text), Some(part)) => {
                assert!(
                    text.contains(part) && text.ends_with("leaving it alone"),
                    "{text}"
                );
            }
            (found, wanted) => panic!("{found:?}, but wanted {wanted:?}"),
        }
    }
}
