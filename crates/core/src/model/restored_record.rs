//! Conversion of the run record of an earlier resource for a new resource of the same name.

use alustan_api::run::{RunKind, RunPhase, RunRecord};

use crate::model::facts::open_run;
use crate::model::progress;
use crate::observed::ReportedProgress;

/// Maximum run number that is restored, so that later numbers do not overflow.
const MAX_NUMBER: i64 = i64::MAX / 2;

/// Run record of an earlier resource, converted for a new resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebound {
    /// Run record for the new resource. It has no current run.
    pub record: RunRecord,
    /// Number of the run that had not ended at the time of the backup and may have changed real objects.
    pub open_run: Option<i64>,
}

/// Converts run record `record` of an earlier resource for a new resource. `reported`: progress in the run report of the earlier resource.
/// Assumes that an apply or destroy that had not ended has begun to change objects, even if the backup shows an earlier phase.
pub fn rebound(record: &RunRecord, reported: &ReportedProgress) -> Rebound {
    let merged = progress::merge_progress(record, reported, true);
    let number = merged.number.clamp(0, MAX_NUMBER);
    let run = open_run(&merged).filter(|run| run.kind.changes());
    let is_apply = run.is_some_and(|run| run.kind == RunKind::Apply);
    let attempted = if is_apply { number } else { merged.attempted };
    let begun = run.map_or(merged.begun, |_| number);
    Rebound {
        open_run: run
            .filter(|_| merged.phase < RunPhase::Reported)
            .map(|_| number),
        record: RunRecord {
            number,
            phase: RunPhase::Recorded,
            slots_wanted: merged.slots_wanted,
            attempted: attempted.clamp(0, number),
            begun: begun.clamp(0, number),
            state_made: merged.state_made,
            lineage: merged.lineage,
            state_address: merged.state_address,
            own_backend: merged.own_backend,
            ..RunRecord::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use alustan_api::run::{Lineage, RunProgress};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn record(kind: &str, phase: &str) -> RunRecord {
        serde_json::from_value(json!({
            "number": 7, "phase": phase, "attempted": 5, "begun": 5, "attemptedBefore": 5,
            "begunBefore": 5, "stateMade": true, "slotsWanted": 4, "lineage": {"of": "l"},
            "stateAddress": "s3://a/b", "earlierPods": ["p"], "claimedBy": {
                "podUid": "u", "pod": "p", "at": "2026-01-01T00:00:00Z",
            },
            "run": {
                "kind": kind, "trigger": "created", "job": "web-apply-7", "image": "i", "tag": "t",
                "configHash": "c", "traceId": "abc", "protocol": 5,
                "startedAt": "2026-01-01T00:00:00Z", "revision": null, "context": null,
            },
        }))
        .unwrap()
    }

    fn progress(number: i64, phase: RunPhase) -> ReportedProgress {
        ReportedProgress::Progress(Box::new(RunProgress {
            number,
            trace_id: "abc".to_owned(),
            phase,
            lineage: Lineage::Of("l".to_owned()),
            ..RunProgress::default()
        }))
    }

    #[rstest]
    #[case::ended("apply", "Recorded", ReportedProgress::Absent, (5, 5), None)]
    #[case::reported("apply", "Starting", progress(7, RunPhase::Reported), (7, 7), None)]
    #[case::planning("apply", "Starting", progress(7, RunPhase::Planning), (7, 7), Some(7))]
    #[case::applying("apply", "Starting", progress(7, RunPhase::Applying), (7, 7), Some(7))]
    #[case::without_report("apply", "Starting", ReportedProgress::Absent, (7, 7), Some(7))]
    #[case::older_report("apply", "Starting", progress(6, RunPhase::Reported), (7, 7), Some(7))]
    #[case::destroying("destroy", "Starting", progress(7, RunPhase::Planning), (5, 7), Some(7))]
    #[case::plan("plan", "Starting", progress(7, RunPhase::Planning), (5, 5), None)]
    #[case::drift("drift", "Starting", progress(7, RunPhase::Planning), (5, 5), None)]
    fn open_run_counts_as_applying(
        #[case] kind: &str,
        #[case] phase: &str,
        #[case] reported: ReportedProgress,
        #[case] attempted_and_begun: (i64, i64),
        #[case] open_run: Option<i64>,
    ) {
        let rebound = rebound(&record(kind, phase), &reported);
        assert_eq!(rebound.open_run, open_run);
        let record = rebound.record;
        assert_eq!((record.attempted, record.begun), attempted_and_begun);
    }

    #[test]
    fn restored_record_keeps_numbers_and_state_but_no_run() {
        let original = record("apply", "Recorded");
        let record = rebound(&original, &ReportedProgress::Absent).record;
        let expected = RunRecord {
            run: None,
            claimed_by: None,
            earlier_pods: Vec::new(),
            attempted_before: 0,
            begun_before: 0,
            ..original
        };
        assert_eq!(record, expected);
    }

    #[rstest]
    #[case(i64::MAX, MAX_NUMBER)]
    #[case(-1, 0)]
    fn numbers_are_bounded(#[case] number: i64, #[case] bounded: i64) {
        let original = RunRecord {
            number,
            attempted: number,
            begun: number,
            ..record("apply", "Recorded")
        };
        let record = rebound(&original, &ReportedProgress::Absent).record;
        assert_eq!(
            [record.number, record.attempted, record.begun],
            [bounded; 3]
        );
    }
}
