//! Run reports with any content, because module code can forge them with the token of the runner.
#![no_main]

use std::sync::LazyLock;

use alustan_api::report::RunReport;
use alustan_api::run::{RunProgress, RunRecord};
use alustan_core::model::progress;
use alustan_core::observed::ReportedProgress;
use serde_json::json;

/// Maximum size of the accepted content, in bytes of JSON.
const MAX_BYTES: usize = 256 << 10;

/// Run record of an apply that has started.
static RECORD: LazyLock<RunRecord> = LazyLock::new(|| {
    let run = json!({
        "kind": "apply", "trigger": "created", "job": "web-apply-1", "image": "image", "tag": "tag",
        "configHash": "hash", "protocol": 99, "startedAt": "2026-01-01T00:00:00Z",
    });
    let record = json!({"number": 1, "run": run, "phase": "Starting"});
    serde_json::from_value(record).expect("a record")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let progress = serde_json::from_slice::<RunProgress>(bytes);
    let reported = progress.map_or(ReportedProgress::Unreadable, |it| {
        ReportedProgress::Progress(Box::new(it))
    });
    let record = progress::merge_progress(&RECORD, &reported, true);
    assert_eq!((record.number, &record.run), (1, &RECORD.run));
    assert!(record.attempted >= RECORD.attempted);
    assert!(serde_json::to_vec(&record).expect("JSON").len() <= MAX_BYTES);

    if let (Ok(report), Some(run)) = (serde_json::from_slice::<RunReport>(bytes), &RECORD.run) {
        let now = "2026-01-01T01:00:00Z".parse().expect("a time");
        let report = progress::report(report, run, now);
        assert_eq!((&report.job, report.kind), (&run.job, run.kind));
        assert!(report.started_at <= report.finished_at && report.finished_at <= now);
        assert!(serde_json::to_vec(&report).expect("JSON").len() <= MAX_BYTES);
    }
});
