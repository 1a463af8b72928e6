//! Records the report of a run in the history.

use alustan_api::report::{Failure, FailureClass, RunReport, RunResult};
use alustan_api::run::{
    Applied, BackendInputs, CorrectionHistory, DriftFound, Failures, History, Outputs, Planned,
    RunKind, RunPhase, RunProgress, RunRecord, RunSpec, Trigger,
};
use alustan_api::{Architecture, InventoryStatus, Mode, Reason, Terraform};
use alustan_backends::address_of;
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use crate::decide::cancellation::{self, record_cancellation};
use crate::decide::publish_outputs::{self, Published, delete_unlisted};
use crate::decide::run_history::{is_repeated, record_run};
use crate::decide::{approval, cache_mount, state_volume};
use crate::drift_schedule::{self, DueCheck};
use crate::model::cache_location::CacheMount;
use crate::model::facts::open_run;
use crate::model::{pod_options, progress, status_outputs};
use crate::objects::{outputs, run_job};
use crate::observed::{JobSeen, RecordSeen, Seen};
use crate::settings::Settings;
use crate::step::{Keep, Step, Swap};

/// Maximum number of reports in the history.
const REPORTS: usize = 10;

/// Reason of the kubelet for a container that exceeded its memory limit.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// Result of a run, recorded in the history.
#[derive(Clone)]
pub(super) struct RecordedResult {
    /// Writes that record the result.
    pub(super) steps: Vec<Step>,
    /// New run record.
    pub(super) record: RunRecord,
    /// New history.
    pub(super) history: History,
    /// Whether `steps` publish the outputs.
    pub(super) outputs: bool,
}

/// Records the report of the current run in the history: the report of the runner, or a report of the operator if the run can no longer
/// report. `None` if the run has not ended or is already recorded.
pub(super) fn record_result(
    tf: &Terraform,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Option<RecordedResult> {
    let current = seen.record.as_ref()?;
    let run = open_run(&current.record)?;
    let has_own_report = progress::has_own_report(run);
    let (mut report, outputs, mut steps) = validated_report(tf, seen, settings, now, current, run)?;
    let reached_apply = current.record.begun == current.record.number;
    let cancellation = cancellation::by_user(&current.record);
    if let Some(cancellation) = cancellation {
        record_cancellation(&mut report, cancellation, reached_apply);
    }
    let is_closed = !steps.is_empty();
    let mut published = Ok(None);
    let must_publish = report.failure.is_none() && tf.metadata.deletion_timestamp.is_none();
    if let Some(outputs) = outputs.filter(|_| must_publish) {
        match publish_outputs::publish(tf, outputs, seen.outputs) {
            Ok(objects) => {
                let (now, previous) = (outputs::published_objects(tf), &current.history.applied);
                let previous = previous
                    .as_ref()
                    .and_then(|applied| applied.published.as_ref());
                // This step fails if the observed record is stale. The later steps are then not executed, so outdated outputs are not
                // published again.
                let guard = Swap::unchanged(&current.record);
                steps.push(Step::CheckRecord(Box::new(guard)));
                steps.extend(objects);
                steps.extend(
                    previous
                        .into_iter()
                        .flat_map(|previous| delete_unlisted(previous, &now)),
                );
                published = Ok(Some(Published {
                    objects: now,
                    status: status_outputs::select(tf, outputs),
                }));
            }
            Err(failure) => {
                fail(&mut report, failure);
                published = Err(publish_outputs::failure_key(
                    &approval::run_failure_key(run),
                    tf,
                ));
            }
        }
    }
    let uid = seen.job.as_ref().map(|job| job.uid.clone());
    let outputs_published = matches!(published, Ok(Some(_)));
    let applied = applies(run) && is_done(report.result);
    let late_checks = late_checks(tf, seen, &current.history, run, report.result, now);
    let is_omitted = is_omitted(&current.history, run, &report);
    let history = update_history(
        &current.history,
        run,
        report.clone(),
        published,
        reached_apply,
        uid,
        now,
    );
    let has_no_result = matches!(report.result, RunResult::Failed | RunResult::Cancelled);
    let cancel_run = cancellation
        .filter(|_| has_no_result)
        .map(|_| current.record.number.to_string());
    let mut history = History {
        late_checks,
        cancel_run: cancel_run.or(history.cancel_run),
        ..history
    };
    if !is_omitted {
        let details = current.details.as_ref();
        let records = record_run(tf, run, &report, details, &current.history, &mut history);
        steps.extend(records);
    }
    // Destroy uses the pin of run `attempted`. So `attempted` is also set after an apply without changes.
    let attempted = if applied {
        current.record.number
    } else {
        current.record.attempted
    };
    let record = RunRecord {
        phase: RunPhase::Recorded,
        lock: None,
        attempted,
        ..current.record.clone()
    };
    steps.push(Step::SwapRecord(Box::new(Swap {
        record: record.clone(),
        history: Some(history.clone()),
        inputs: Keep::Drop,
    })));
    if has_own_report && !is_closed {
        let closed = RunProgress::of(&record);
        steps.push(Step::SwapReport(Box::new(closed)));
    }
    Some(RecordedResult {
        steps,
        record,
        history,
        outputs: outputs_published,
    })
}

/// Returns the report of `run`, its outputs, and the steps that close the report of a run whose pod left none.
fn validated_report<'a>(
    tf: &Terraform,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
    current: &'a RecordSeen,
    run: &RunSpec,
) -> Option<(RunReport, Option<&'a Outputs>, Vec<Step>)> {
    let own_report = current
        .report
        .clone()
        .filter(|report| report.number == current.record.number);
    let Some(report) = own_report else {
        let memory = memory_limit(tf, seen, run, settings);
        let report = synthetic_report(current, run, seen.job.as_ref(), memory, now)?;
        return Some((report, None, close_steps(&current.record, run)));
    };
    let mut report = progress::report(report, run, now);
    if let Some(inputs) = &current.inputs {
        report.state_address = address(tf, &inputs.backend, report.state_address);
    }
    if let Some(failure) = progress::contradiction(&report, &current.record) {
        fail(&mut report, failure);
    }
    Some((report, current.outputs.as_ref(), Vec::new()))
}

/// Returns the number of consecutive late drift checks after `run`.
fn late_checks(
    tf: &Terraform,
    seen: &Seen,
    history: &History,
    run: &RunSpec,
    result: RunResult,
    now: Timestamp,
) -> u8 {
    let has_no_result = matches!(result, RunResult::Failed | RunResult::Cancelled);
    let check = DueCheck::of(tf, history, seen.leading_since, now);
    match check.filter(|_| run.trigger == Trigger::Interval && !has_no_result) {
        Some(check) => {
            drift_schedule::late_checks(history.late_checks, check.is_late(run.started_at))
        }
        None => history.late_checks,
    }
}

/// Returns the address of the state of a run. Uses `reported`, the address that the runner reported, only if the `backend` block of the
/// module configures the backend. The operator derives every other address from `backend`.
fn address(tf: &Terraform, backend: &BackendInputs, reported: Option<String>) -> Option<String> {
    match (&backend.managed, &backend.kind) {
        (Some(managed), _) => {
            let namespace = tf.namespace().unwrap_or_default();
            reported.map(|_| format!("secret://{namespace}/{}", managed.pointer))
        }
        (None, Some(_)) => address_of(backend),
        (None, None) => reported,
    }
}

/// Returns the writes that close a run that can no longer report. The writes fail if the observation is stale, so that a run that has
/// reported since, or is still active, is not closed.
fn close_steps(record: &RunRecord, run: &RunSpec) -> Vec<Step> {
    if !progress::has_own_report(run) {
        return Vec::new();
    }
    let closed = RunProgress {
        closed: true,
        ..RunProgress::of(record)
    };
    vec![
        Step::SwapRecord(Box::new(Swap::unchanged(record))),
        Step::SwapReport(Box::new(closed)),
    ]
}

/// Whether `run` is an apply, or the plan of an apply.
fn applies(run: &RunSpec) -> bool {
    matches!(run.kind, RunKind::Apply | RunKind::Plan) && !run.destroys
}

fn is_done(result: RunResult) -> bool {
    matches!(result, RunResult::Done | RunResult::NoChanges)
}

fn fail(report: &mut RunReport, failure: Failure) {
    report.result = RunResult::Failed;
    report.failure = Some(progress::failure(failure));
}

/// Returns a report in place of the runner's report if the run can no longer report: its Job has finished and no pod of the Job is alive,
/// or the run is claimed or cancelled and its Job does not exist.
fn synthetic_report(
    current: &RecordSeen,
    run: &RunSpec,
    job: Option<&JobSeen>,
    memory_limit: Option<String>,
    now: Timestamp,
) -> Option<RunReport> {
    let record = &current.record;
    let claimed = record.claimed_by.is_some();
    let has_ended = match job {
        Some(job) => job.finished && !job.pods_alive,
        None => claimed || record.cancel,
    };
    let failure = if record.cancel && !claimed {
        record.given_up.clone()
    } else {
        Some(lost_pod_failure(record, run, job, memory_limit))
    };
    has_ended.then(|| {
        let result = if failure.is_none() {
            RunResult::Cancelled
        } else {
            RunResult::Failed
        };
        RunReport {
            trigger: run.trigger.to_string(),
            job: run.job.clone(),
            failure,
            ..RunReport::new(record.number, run.kind, result, run.started_at, now)
        }
    })
}

/// Returns the memory limit of the engine in `run`. `None` if the pod options changed after the start of the run.
fn memory_limit(tf: &Terraform, seen: &Seen, run: &RunSpec, settings: &Settings) -> Option<String> {
    let attempted = seen.record.as_ref()?.record.attempted;
    let pin = seen.pin.as_ref().map(|pin| pin.of_what_exists(attempted));
    let options = pod_options::of_run(tf, pin, run.destroys, &seen.shared_claims, settings);
    let is_unchanged = pod_options::digest(&options) == run.pod;
    is_unchanged
        .then(|| run_job::memory_limit(&options))
        .flatten()
}

/// Returns the failure of a run whose pod ended without a report. If the pod exceeded its memory limit, the failure uses the retry budget,
/// because a retry would fail again. Any other cause is a transient failure.
fn lost_pod_failure(
    record: &RunRecord,
    run: &RunSpec,
    job: Option<&JobSeen>,
    memory_limit: Option<String>,
) -> Failure {
    let cause = job
        .and_then(|job| job.ended.as_deref())
        .unwrap_or("cause unknown");
    let pod = record
        .claimed_by
        .as_ref()
        .map_or("the pod", |claim| claim.pod.as_str());
    let (reason, consequence) = if record.begun == record.number {
        (
            Reason::Interrupted,
            "the run was applying; its last changes may be missing in the state",
        )
    } else if record.phase == RunPhase::Starting {
        (Reason::PodTerminated, "the run had not started")
    } else {
        (Reason::PodTerminated, "the run had not changed any object")
    };
    let (class, reason, cause) = if cause.starts_with(OUT_OF_MEMORY) {
        let limit = memory_limit.map_or_else(String::new, |limit| {
            format!("the memory limit is {limit}; ")
        });
        let cause = format!("{cause}; {limit}increase spec.runner.pod.resources.limits.memory");
        (FailureClass::Module, Reason::OutOfMemory, cause)
    } else {
        (FailureClass::Transient, reason, cause.to_owned())
    };
    Failure::new(
        class,
        reason,
        format!(
            "run {} ({}) ended without a report: {pod} of Job {}: {cause}; {consequence}",
            record.number, run.kind, run.job
        ),
    )
}

/// Returns the architecture of `run` if the run succeeded or reached phase `Applying`: an image and a node of this architecture then exist.
/// `None` for a run that failed or was cancelled earlier.
fn architecture_with(
    report: &RunReport,
    run: &RunSpec,
    reached_apply: bool,
) -> Option<Architecture> {
    let has_no_result = matches!(report.result, RunResult::Failed | RunResult::Cancelled);
    (reached_apply || !has_no_result).then_some(run.architecture)
}

/// Returns the last image that a run could not pull. `None` once a run with this image has not failed.
fn lost_image_after(history: &History, run: &RunSpec, report: &RunReport) -> Option<String> {
    let failure = report.failure.as_ref();
    let is_pull_failure = failure.is_some_and(|failure| failure.reason == Reason::ImagePullBackOff);
    if is_pull_failure {
        return Some(run.image.clone());
    }
    let has_failed = report.result == RunResult::Failed;
    let lost_image = history.lost_image.clone();
    lost_image.filter(|image| has_failed || *image != run.image)
}

/// Removes drift, plans and failures: the objects are as configured, or destroyed.
fn forget_problems(history: &mut History) {
    history.failures = Failures::default();
    history.drift = None;
    history.pending = None;
    history.planned = None;
}

/// Returns the history after `report`. `published`: the published outputs, if any; or, if the publication failed, the key under which
/// failed publications are counted. `reached_apply`: whether the run reached phase `Applying`.
fn update_history(
    history: &History,
    run: &RunSpec,
    report: RunReport,
    published: Result<Option<Published>, String>,
    reached_apply: bool,
    job_uid: Option<String>,
    now: Timestamp,
) -> History {
    let mut next = history.clone();
    let engine = report.engine.as_ref().or(run.engine.as_ref());
    if (reached_apply && !run.destroys) || (applies(run) && is_done(report.result)) {
        next.engine = engine.cloned().or(next.engine);
    }
    next.architecture = architecture_with(&report, run, reached_apply).or(next.architecture);
    next.inventory = report
        .inventory
        .map(|count| InventoryStatus {
            count,
            run: report.number,
        })
        .or(next.inventory);
    let failure = report.failure.as_ref();
    next.unsaved = state_volume::unsaved_after(history.unsaved, run, &report, reached_apply);
    cache_mount::record_usability(&mut next, &CacheMount::of(run), failure, report.result);
    next.lost_image = lost_image_after(history, run, &report);
    match (run.kind, report.result) {
        // A requested plan uses no retry budget.
        (_, RunResult::Failed) if run.is_requested_plan() => {
            next.unfinished |= reached_apply && !run.destroys;
        }
        // The plan is still requested, unless a user cancelled it.
        (_, RunResult::Cancelled) if run.is_requested_plan() => {
            next.plan_at = next.plan_at.filter(|_| failure.is_some());
        }
        (_, RunResult::Failed) => {
            let failure_key = published
                .err()
                .unwrap_or_else(|| approval::run_failure_key(run));
            next.unfinished |= reached_apply && !run.destroys;
            next.failures = count(&history.failures, &failure_key, failure, job_uid, now);
        }
        // The next check is due after an interval.
        (_, RunResult::Cancelled) if failure.is_some() && is_check_of_current(history, run) => {
            next.undone.unverified = false;
            next.checked_at = Some(now);
        }
        (_, RunResult::Cancelled) => {
            let failure_key = approval::run_failure_key(run);
            let failures = failure
                .map(|failure| count(&history.failures, &failure_key, Some(failure), job_uid, now));
            next.failures = failures.unwrap_or(next.failures);
        }
        (RunKind::Apply | RunKind::Plan, RunResult::Done | RunResult::NoChanges)
            if applies(run) =>
        {
            next.applied = Some(applied(run, published.ok().flatten(), now));
            next.build_failures = Failures::default();
            next.unfinished = false;
            next.undone = after_apply(history, run, &report);
            forget_problems(&mut next);
            next.checked_at = Some(now);
        }
        (RunKind::Apply | RunKind::Plan | RunKind::Destroy, RunResult::Changes) => {
            let asks = report.asks.clone();
            next.failures = Failures::default();
            next.pending =
                asks.map(|asks| approval::new_pending_plan(run, report.number, asks, now));
        }
        (RunKind::Drift, _) if run.mode == Mode::PlanOnly => {
            record_plan(&mut next, run, &report, now);
        }
        // The result of a requested plan is only reported: with `driftDetection.mode: Correct`, recorded drift would start an apply.
        (RunKind::Drift, _) if run.is_requested_plan() => {}
        (RunKind::Drift, RunResult::Done | RunResult::NoChanges) => {
            next.undone = CorrectionHistory::default();
            forget_problems(&mut next);
            next.checked_at = Some(now);
        }
        (RunKind::Drift, RunResult::Changes) => {
            let since = history.drift.as_ref().map_or(now, |drift| drift.since);
            next.failures = Failures::default();
            next.undone = after_drift_check(&history.undone, &report);
            next.pending = next
                .pending
                .filter(|plan| is_of(history, plan.run, &report));
            next.drift = Some(DriftFound {
                since,
                run: report.number,
            });
            next.planned = None;
            next.checked_at = Some(now);
        }
        (
            RunKind::Destroy | RunKind::Apply | RunKind::Plan,
            RunResult::Done | RunResult::NoChanges,
        ) => {
            next.applied = None;
            next.unfinished = false;
            forget_problems(&mut next);
        }
    }
    if reached_apply {
        // An approval is valid for one apply only (rule 6), so a plan that began to apply is no longer pending.
        next.pending = None;
        next.planned = None;
    }
    if !is_omitted(history, run, &report) {
        add_report(&mut next, run, report);
    }
    next
}

/// Whether `run` is a drift check of the configuration that is applied (with `spec.mode: PlanOnly`, planned), and no run with this
/// configuration has failed since.
fn is_check_of_current(history: &History, run: &RunSpec) -> bool {
    let planned = history.last_plan(run.mode).map(|plan| &plan.config_hash);
    let applied = history.applied.as_ref().filter(|_| !history.unfinished);
    let current = planned.or_else(|| applied.map(|applied| &applied.config_hash));
    let failures = &history.failures;
    let has_failed = failures.at.is_some() && failures.of == approval::run_failure_key(run);
    run.kind == RunKind::Drift && current == Some(&run.config_hash) && !has_failed
}

/// Returns the successful apply `run`, with its published outputs if there are any.
fn applied(run: &RunSpec, published: Option<Published>, now: Timestamp) -> Applied {
    let (published, status_outputs) = published
        .map(|published| (published.objects, published.status))
        .unzip();
    Applied {
        revision: run.revision.clone(),
        context: run.context.clone(),
        config_hash: run.config_hash.clone(),
        own_hash: run.own_hash.clone(),
        found: run.found.clone(),
        at: now,
        published,
        status_outputs: status_outputs.unwrap_or_default(),
    }
}

/// Records the result of `run`, a successful plan of a resource with `spec.mode: PlanOnly`. The changes are drift if the planned
/// configuration is applied.
fn record_plan(next: &mut History, run: &RunSpec, report: &RunReport, now: Timestamp) {
    let has_changes = report.result == RunResult::Changes;
    let applied = next.applied.as_ref().filter(|_| !next.unfinished);
    let is_applied = applied.is_some_and(|applied| applied.config_hash == run.config_hash);
    let since = next.drift.as_ref().map_or(now, |drift| drift.since);
    next.drift = (has_changes && is_applied).then_some(DriftFound {
        since,
        run: report.number,
    });
    if is_applied {
        next.undone = if has_changes {
            after_drift_check(&next.undone, report)
        } else {
            CorrectionHistory::default()
        };
    } else {
        // The plan of another configuration cannot verify the last correction, and no later plan of it can.
        next.undone.unverified = false;
    }
    next.planned = Some(Planned {
        run: report.number,
        revision: run.revision.clone(),
        context: run.context.clone(),
        config_hash: run.config_hash.clone(),
        own_hash: run.own_hash.clone(),
        found: run.found.clone(),
        has_changes,
    });
    next.failures = Failures::default();
    next.pending = None;
    next.checked_at = Some(now);
}

/// Whether the history omits `report`: `run` is a drift check without drift, but neither a requested plan nor the first plan of a
/// configuration.
fn is_omitted(history: &History, run: &RunSpec, report: &RunReport) -> bool {
    let is_unchanged = (run.kind, report.result) == (RunKind::Drift, RunResult::NoChanges);
    is_unchanged && !run.is_requested_plan() && !is_new_plan(history, run)
}

/// Adds `report` to the reports in the history. The report of a drift check replaces an earlier one with the same differences.
fn add_report(next: &mut History, run: &RunSpec, report: RunReport) {
    if !run.is_requested_plan() && is_repeated(next.reports.first(), &report) {
        next.reports.remove(0);
    }
    next.reports.insert(0, report);
    drop_old_reports(next);
}

/// Whether `run` is a plan of a resource with `spec.mode: PlanOnly`, and the last plan had another configuration.
fn is_new_plan(history: &History, run: &RunSpec) -> bool {
    let planned = history.planned.as_ref();
    run.mode == Mode::PlanOnly
        && planned.is_none_or(|planned| planned.config_hash != run.config_hash)
}

/// Drops the oldest reports beyond [`REPORTS`]. Keeps the reports of the run that found drift, of the last plan with `spec.mode: PlanOnly`, and
/// of the run with the pending plan.
fn drop_old_reports(history: &mut History) {
    let kept_runs = [
        history.drift.as_ref().map(|drift| drift.run),
        history.planned.as_ref().map(|planned| planned.run),
        history.pending.as_ref().map(|plan| plan.run),
    ];
    while history.reports.len() > REPORTS {
        let oldest = history
            .reports
            .iter()
            .rposition(|report| !kept_runs.contains(&Some(report.number)));
        history.reports.remove(oldest.unwrap_or_default());
    }
}

/// Returns the correction history (how many consecutive corrections were reverted) after a successful apply. The next drift check verifies
/// a correction (rule 7).
fn after_apply(history: &History, run: &RunSpec, report: &RunReport) -> CorrectionHistory {
    let same_config =
        history.applied.as_ref().map(|applied| &applied.config_hash) == Some(&run.config_hash);
    let is_correction = history.drift.is_some() && same_config && report.result == RunResult::Done;
    if !is_correction {
        return CorrectionHistory::default();
    }
    CorrectionHistory {
        change_digest: shape(report),
        unverified: true,
        count: history.undone.count,
    }
}

/// Returns the correction history (how many consecutive corrections were reverted) after a drift check that found differences.
fn after_drift_check(undone: &CorrectionHistory, report: &RunReport) -> CorrectionHistory {
    let change_digest = shape(report);
    let same_changes = change_digest == undone.change_digest;
    CorrectionHistory {
        count: match (same_changes, undone.unverified) {
            (true, true) => undone.count.saturating_add(1),
            (true, false) => undone.count,
            (false, _) => 0,
        },
        unverified: false,
        change_digest,
    }
}

fn shape(report: &RunReport) -> String {
    let changes = report.changes.as_ref();
    changes.map_or_else(String::new, |changes| changes.shape.clone())
}

/// Whether the plan of run `number` changes the same objects as `report`. Attribute values may differ, for example values of `timestamp()`.
fn is_of(history: &History, number: i64, report: &RunReport) -> bool {
    let plan = history.report(number);
    plan.is_some_and(|plan| shape(plan) == shape(report))
}

/// Returns `failures` with one more failure. `key`: key under which the failure is counted; if the previous failures have another key, the
/// count starts again. Transient failures do not use the retry budget. A failure that only a user can fix exhausts the budget.
pub(super) fn count(
    failures: &Failures,
    key: &str,
    failure: Option<&Failure>,
    job_uid: Option<String>,
    now: Timestamp,
) -> Failures {
    let previous = Some(failures)
        .filter(|failures| failures.of == key)
        .cloned()
        .unwrap_or_default();
    let (count, transient) = match failure.map(|failure| failure.class) {
        Some(FailureClass::Transient) => (previous.count, previous.transient.saturating_add(1)),
        Some(FailureClass::Module) | None => (previous.count.saturating_add(1), 0),
        Some(FailureClass::User) => (u32::MAX, 0),
    };
    Failures {
        of: key.to_owned(),
        count,
        transient,
        at: Some(now),
        reason: failure.map_or_else(|| Reason::Failed.into(), |failure| failure.reason.clone()),
        message: failure.map_or_else(String::new, |failure| failure.message.clone()),
        job_uid,
    }
}
