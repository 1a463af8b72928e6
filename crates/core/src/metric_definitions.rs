//! Metrics of the operator: their definitions, from which `docs/metrics.md` is generated, and the computation of their values. The
//! controller stores the values.
//!
//! Labels contain no names of resources, namespaces, repositories or registries: the number of these names is unbounded, and users with
//! access to metrics may not have access to these objects.

use std::collections::BTreeMap;

use alustan_api::report::{RunReport, RunResult, StepTimes};
use alustan_api::run::{History, RunKind, RunPhase, RunRecord};
use alustan_api::{Reason, State, Terraform, TerraformStatus, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::queue::Class;
use crate::step::Swap;

/// Definition of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Name as scraped.
    pub name: &'static str,
    /// Prometheus type.
    pub kind: Kind,
    /// Labels of the samples.
    pub labels: &'static [Label],
    /// Description, one sentence without the final full stop.
    pub help: &'static str,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only increases. Starts at 0 when the operator starts.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Distribution of durations, in seconds.
    Histogram,
}

impl Kind {
    /// Returns the Prometheus name of the type.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Definition of a label.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Name of the label.
    pub name: &'static str,
    /// Description of the values of the label.
    pub values: &'static str,
}

const fn label(name: &'static str, values: &'static str) -> Label {
    Label { name, values }
}

const REASON: Label = label("reason", "a reason of troubleshooting.md, or `Other`");
const KIND: Label = label("kind", "`plan`, `apply`, `drift`, `destroy`");
const CLASS: Label = label("class", "`change` (apply and destroy), `plan`, `drift`");
const RESULT: Label = label(
    "result",
    "`ok`, `refused` (invalid address, name or credential), `error` (network, throttling or server \
     error; retried within a minute)",
);
const RECONCILE_RESULT: Label = label(
    "result",
    "`ok`, `conflict` (another client wrote first; requeued immediately), `error`",
);

macro_rules! definitions {
    ($($(#[$doc:meta])* $id:ident = $kind:ident $name:literal [$($label:expr),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Definition = Definition {
                name: $name,
                kind: Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// All metrics.
        pub const ALL: &[Definition] = &[$($id),*];
    };
}

definitions! {
    BUILD_INFO = Gauge "alustan_build_info" [
        label("version", "version of the operator"), label("commit", "git commit from which the operator was built, or `unknown`"),
        label("protocol", "version of the protocol between operator and runner"), label("crd", "API version of the resource")
    ] "Constant 1; the labels have the versions of the operator";
    READY = Gauge "alustan_ready" []
        "1 once the operator has listed all objects that it watches; 0 before, while it reconciles nothing";
    LEADER = Gauge "alustan_leader" []
        "1 on the leader; 0 on a standby replica, and on a leader that cannot renew its Lease";
    RESOURCES = Gauge "alustan_resources" [
        label("state", "as in `status.state`; `Unreadable` for a resource that this version cannot read")
    ] "Resources by state";
    NOT_READY = Gauge "alustan_resources_not_ready" [REASON]
        "Resources with condition Ready False, by reason";
    STALLED = Gauge "alustan_resources_stalled" [REASON]
        "Resources with condition Stalled, by reason; they are not retried until something changes";
    DRIFTED = Gauge "alustan_resources_drifted" []
        "Resources whose real objects differ from the configuration: condition `InSync` is False, except with reason `ChangesPlanned`";
    AWAITING_APPROVAL = Gauge "alustan_resources_awaiting_approval" []
        "Resources with a plan that waits for approval";
    SUSPENDED = Gauge "alustan_resources_suspended" [] "Resources with spec.suspend";
    OLDEST_NOT_READY = Gauge "alustan_oldest_not_ready_timestamp_seconds" [REASON]
        "Unix time since which the longest-failing resource (not stalled) has not been Ready, by its current reason; time \
         with earlier reasons is included";
    OLDEST_DRIFT = Gauge "alustan_oldest_drift_timestamp_seconds" [label("reason", "`Drifted`, `NotConverging`")]
        "Unix time of the first detection of the oldest drift that still exists";
    OLDEST_APPROVAL = Gauge "alustan_oldest_approval_timestamp_seconds" [
        label("of", "`change`, `drift` (a correction), `destroy`")
    ] "Unix time since which the longest-waiting plan has been waiting for approval";
    RUN_FAILED = Gauge "alustan_resources_run_failed" []
        "Resources with a last run that failed within the last hour; each counts once, whatever the number of attempts";
    RECONCILE_FAILED = Gauge "alustan_resources_reconcile_failed" []
        "Resources with a last reconcile that failed; each counts once, whatever the number of attempts";
    GIT_FAILED = Gauge "alustan_resources_git_failed" []
        "Resources with a request to a repository that had the result `error` at its last attempt";
    REGISTRY_FAILED = Gauge "alustan_resources_registry_failed" []
        "Resources with a request to a registry that had the result `error` at its last attempt";
    RECONCILES = Counter "alustan_reconciles_total" [RECONCILE_RESULT]
        "Reconciles of resources";
    LAST_RECONCILE = Gauge "alustan_last_reconcile_timestamp_seconds" [RECONCILE_RESULT]
        "Unix time of the end of the last reconcile; each resource is reconciled at least once an hour";
    RECONCILE_SECONDS = Histogram "alustan_reconcile_duration_seconds" [] "Duration of reconciles";
    ERRORS = Counter "alustan_errors_total" [REASON]
        "Failed reconciles, requests to git and registries (each attempt), runs and builds";
    RUNS = Counter "alustan_runs_total" [
        KIND, label("result", "`NoChanges`, `Changes`, `Done`, `Failed`, `Cancelled`")
    ] "Runs that ended, with the results of status.runs; includes drift checks that found no drift";
    RUN_SECONDS = Histogram "alustan_run_duration_seconds" [KIND]
        "Duration from the start of a run to its report; includes the start of the pod, not the time in the queue";
    STEP_SECONDS = Histogram "alustan_step_duration_seconds" [
        label("step", "`build` (a Job that succeeded), `init`, `plan`, `apply`, `destroy`")
    ] "Duration of steps, also in runs that failed";
    QUEUE_SECONDS = Histogram "alustan_queue_duration_seconds" [CLASS]
        "Time that runs waited for a slot of --max-concurrent-runs";
    QUEUE_LENGTH = Gauge "alustan_queue_length" [CLASS] "Runs that wait for a slot";
    OLDEST_QUEUED = Gauge "alustan_oldest_queued_timestamp_seconds" [CLASS]
        "Unix time since which the longest-waiting run has been waiting for a slot";
    LATE_CHECKS = Gauge "alustan_drift_checks_late" []
        "Drift checks that wait for a slot, more than 1.5 times driftDetection.interval after the last check or apply of the resource";
    DRIFT_STRETCH = Gauge "alustan_drift_interval_ratio" []
        "Longest time since the last check or apply of a resource whose drift check waits for a slot, in multiples of driftDetection.interval; 1 if no check waits";
    SLOTS_USED = Gauge "alustan_run_places_used" [] "Slots in use";
    SLOTS = Gauge "alustan_run_places" [] "Number of slots: --max-concurrent-runs";
    GIT = Counter "alustan_git_requests_total" [
        label("operation", "`resolve` (a reference to a commit), `fetch` (the files of a commit that the module needs), `token` (of a GitHub App, for a build); the first two also for `spec.source`"),
        RESULT
    ] "Requests to repositories; a request that several resources share counts once";
    REGISTRY = Counter "alustan_registry_requests_total" [
        label("operation", "`digest` (of an image), `push` (of a context), `prune` (of a repository)"), RESULT
    ] "Requests of the operator to registries; excludes pulls and pushes of builds and nodes";
    API = Counter "alustan_api_requests_total" [
        label("method", "HTTP method"), label("code", "HTTP status code, or `none` without a response")
    ] "Requests to the API server, including watches; a request that the client repeats counts once";
}

/// Run and failed build that a write of the run record adds to the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// The run; `None` if the write adds no run.
    pub run: Option<Run>,
    /// Reason of the build failure; `None` if no build failed.
    pub build: Option<String>,
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Kind of the run.
    pub kind: RunKind,
    /// Whether the run was part of a destroy.
    pub destroys: bool,
    /// Result as in `status.runs`.
    pub result: &'static str,
    /// Reason of the failure, if the run failed.
    pub reason: Option<String>,
    /// Time from the start of the run to its report, in seconds.
    pub seconds: f64,
    /// Durations of the steps of the run.
    pub took: StepTimes,
}

/// Returns the run and the failed build that `swap`, a write of the run record, adds to the history. `record`, `history` and `report`: the
/// values before the write.
pub fn ended(
    record: &RunRecord,
    history: &History,
    report: Option<&RunReport>,
    swap: &Swap,
) -> Ended {
    let Some(next_history) = &swap.history else {
        return Ended::default();
    };
    let is_recorded = record.phase < RunPhase::Recorded
        && swap.record.phase == RunPhase::Recorded
        && swap.record.number == record.number;
    let in_history = next_history.report(record.number);
    let run = in_history.or_else(|| report.filter(|report| report.number == record.number));
    let run = run.filter(|_| is_recorded).zip(record.run.as_ref());
    let build_failures = &next_history.build_failures;
    let is_new_failure = build_failures.job_uid.is_some()
        && build_failures.job_uid != history.build_failures.job_uid;
    Ended {
        run: run.map(|(report, run)| Run {
            kind: report.kind,
            destroys: run.destroys,
            result: report.result.as_str(),
            reason: report
                .failure
                .as_ref()
                .map(|failure| failure.reason.clone()),
            seconds: seconds_between(run.started_at, report.finished_at),
            took: report.took,
        }),
        build: is_new_failure.then(|| build_failures.reason.clone()),
    }
}

/// Returns the seconds from `start` to `end`; 0 if clocks differ and `end` is earlier.
pub fn seconds_between(start: Timestamp, end: Timestamp) -> f64 {
    end.duration_since(start).as_secs_f64().max(0.0)
}

/// Returns the value of metric label `class`, the priority of a run in the queue.
pub const fn class(class: Class) -> &'static str {
    match class {
        Class::Change => "change",
        Class::Plan => "plan",
        Class::Drift => "drift",
    }
}

/// Time after a failed run for which [`RUN_FAILED`] includes the resource.
const RECENT_PERIOD: SignedDuration = SignedDuration::from_hours(1);

/// Numbers of resources, for the gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Resources by `status.state`.
    pub states: BTreeMap<&'static str, i64>,
    /// Resources that are not Ready, by reason.
    pub not_ready: BTreeMap<&'static str, i64>,
    /// Stalled resources, by reason.
    pub stalled: BTreeMap<&'static str, i64>,
    /// Resources with drift.
    pub drifted: i64,
    /// Resources with a plan that waits for approval.
    pub awaiting_approval: i64,
    /// Suspended resources.
    pub suspended: i64,
    /// Resources whose last run failed within the last hour.
    pub run_failed: i64,
    /// Start times of the oldest failure, drift and pending approval.
    pub oldest: Oldest,
}

/// Start times of the oldest failure, drift and pending approval; each map is empty if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oldest {
    /// Start of the oldest failure of resources that are not Ready and not stalled, by reason.
    pub not_ready: BTreeMap<&'static str, Timestamp>,
    /// Start of the oldest drift, by reason.
    pub drift: BTreeMap<&'static str, Timestamp>,
    /// Start of the longest wait of a plan for approval, by value of label `of`.
    pub approval: BTreeMap<&'static str, Timestamp>,
}

/// Summary of a resource, for [`count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceState {
    is_suspended: bool,
    state: &'static str,
    /// End of the last run, if it failed.
    run_failed_at: Option<Timestamp>,
    /// Reason of condition `Stalled`.
    stalled: Option<&'static str>,
    /// Reason of condition `Ready` if the resource is not Ready.
    not_ready: Option<&'static str>,
    /// Start of the failure, if the resource is not Ready and not stalled.
    failing_since: Option<Timestamp>,
    /// Reason and start of a drift.
    drift: Option<(&'static str, Timestamp)>,
    /// Value of label `of` and start of the wait of a plan for approval.
    approval: Option<(&'static str, Timestamp)>,
    /// Whether the resource is Ready with its current generation, and no run is active.
    pub is_settled: bool,
}

/// Counts resources at time `now`. `None` is a resource that cannot be read.
pub fn count(resources: impl IntoIterator<Item = Option<ResourceState>>, now: Timestamp) -> Counts {
    let mut counts = Counts::default();
    for resource in resources {
        match resource {
            Some(state) => counts.add(state, now),
            None => *counts.states.entry("Unreadable").or_default() += 1,
        }
    }
    counts
}

/// Sets the entry `label` of `oldest` to `since` if the entry does not exist or has a later time.
pub fn older(
    oldest: &mut BTreeMap<&'static str, Timestamp>,
    label: &'static str,
    since: Timestamp,
) {
    let current = oldest.entry(label).or_insert(since);
    *current = since.min(*current);
}

impl Counts {
    fn add(&mut self, resource: ResourceState, now: Timestamp) {
        self.suspended += i64::from(resource.is_suspended);
        *self.states.entry(resource.state).or_default() += 1;
        let is_recent = |ended| now.duration_since(ended) <= RECENT_PERIOD;
        self.run_failed += i64::from(resource.run_failed_at.is_some_and(is_recent));
        if let Some(reason) = resource.stalled {
            *self.stalled.entry(reason).or_default() += 1;
        }
        if let Some(reason) = resource.not_ready {
            *self.not_ready.entry(reason).or_default() += 1;
            if let Some(since) = resource.failing_since {
                older(&mut self.oldest.not_ready, reason, since);
            }
        }
        if let Some((reason, since)) = resource.drift {
            self.drifted += 1;
            older(&mut self.oldest.drift, reason, since);
        }
        if let Some((approved_action, since)) = resource.approval {
            self.awaiting_approval += 1;
            older(&mut self.oldest.approval, approved_action, since);
        }
    }
}

impl ResourceState {
    /// Returns the state of `tf`.
    #[must_use]
    pub fn of(tf: &Terraform) -> Self {
        let state = tf.status.as_ref().map(|status| status.state);
        let new = Self {
            is_suspended: tf.spec.suspend,
            state: state.unwrap_or_default().as_str(),
            run_failed_at: None,
            stalled: None,
            not_ready: None,
            failing_since: None,
            drift: None,
            approval: None,
            is_settled: false,
        };
        let Some(status) = &tf.status else {
            return new;
        };
        let conditions = Conditions(&status.conditions);
        let reason_of = |condition: &Condition| reason::bounded(&condition.reason);
        let stalled = conditions.get("Stalled", "True").map(reason_of);
        let unready = conditions.get("Ready", "False");
        let is_drift = |condition: &&Condition| condition.reason != Reason::ChangesPlanned;
        let drift = conditions.get("InSync", "False").filter(is_drift);
        Self {
            run_failed_at: failed_at(status),
            stalled,
            not_ready: unready.map(reason_of),
            failing_since: unready
                .filter(|_| stalled.is_none())
                .map(|ready| unready_since(status, ready)),
            drift: drift.map(|drift| (reason_of(drift), drift_since(status, drift))),
            approval: conditions
                .awaiting_approval()
                .map(|ready| approval_since(tf, status, ready)),
            is_settled: conditions.get("Ready", "True").is_some()
                && status.state == State::Success
                && status.observed_generation == tf.metadata.generation
                && tf.metadata.deletion_timestamp.is_none(),
            ..new
        }
    }
}

struct Conditions<'a>(&'a [Condition]);

impl<'a> Conditions<'a> {
    fn get(&self, kind: &str, status: &str) -> Option<&'a Condition> {
        let mut conditions = self.0.iter();
        conditions.find(|condition| condition.type_ == kind && condition.status == status)
    }

    /// Returns condition `Ready` if a plan waits for approval.
    fn awaiting_approval(&self) -> Option<&'a Condition> {
        let mut conditions = self.0.iter();
        conditions.find(|condition| {
            condition.type_ == "Ready" && condition.reason == Reason::AwaitingApproval
        })
    }
}

/// Returns the end of the last run, if it failed.
fn failed_at(status: &TerraformStatus) -> Option<Timestamp> {
    let failed = |run: &&alustan_api::RunStatus| run.result == RunResult::Failed.as_str();
    let run = status.runs.first().filter(failed);
    run.and_then(|run| run.time.as_ref()).map(|ended| ended.0)
}

/// Returns the latest of three times: `since`, the last apply and the last approval. A failure or wait that began before the last apply or
/// approval is over.
fn unless_settled(status: &TerraformStatus, since: Timestamp) -> Timestamp {
    let applied = status
        .last_applied
        .as_ref()
        .map(|last_applied| last_applied.time.0);
    let plan = status.plan.as_ref();
    let approved = plan.and_then(|plan| plan.approved_at.as_ref());
    let settled_at = applied.max(approved.map(|approved_at| approved_at.0));
    settled_at.map_or(since, |settled_at| settled_at.max(since))
}

/// Returns the start of the current series of failed attempts. `Ready` alternates between False and Unknown with each attempt;
/// `Reconciling` stays True.
fn unready_since(status: &TerraformStatus, ready: &Condition) -> Timestamp {
    let reconciling = Conditions(&status.conditions).get("Reconciling", "True");
    let since = reconciling.unwrap_or(ready).last_transition_time.0;
    unless_settled(status, since)
}

fn drift_since(status: &TerraformStatus, out_of_sync: &Condition) -> Timestamp {
    let detected_at = status.drift.as_ref().map(|drift| drift.since.0);
    detected_at.unwrap_or(out_of_sync.last_transition_time.0)
}

/// Returns the value of label `of` for the plan that waits for approval, and the start of the wait. The plan of a correction does not
/// change `Ready`, so its wait is counted from the start of the drift.
fn approval_since(
    tf: &Terraform,
    status: &TerraformStatus,
    ready: &Condition,
) -> (&'static str, Timestamp) {
    let transitioned_at = ready.last_transition_time.0;
    if let Some(deleted_at) = &tf.metadata.deletion_timestamp {
        return ("destroy", deleted_at.0.max(transitioned_at));
    }
    let out_of_sync = Conditions(&status.conditions).get("InSync", "False");
    match out_of_sync.filter(|_| ready.status == "True") {
        Some(out_of_sync) => ("drift", drift_since(status, out_of_sync)),
        None => ("change", unless_settled(status, transitioned_at)),
    }
}

/// Returns the content of `docs/metrics.md`.
pub fn document() -> String {
    let text = String::from(
        "<!-- Generated by `cargo xtask gen` from crates/core/src/metric_definitions.rs; do not edit. -->\n\
         # Metrics\n\n\
         The operator serves `GET /metrics` as OpenMetrics text on the port of its probes (`--listen`, 8080).\n\n\
         - Labels contain no names of resources, namespaces, repositories or registries. The number of time series is \
         bounded, and\n  metrics reveal nothing that RBAC protects.\n\
         - Counters start at 0 with the operator. Gauges are computed at each scrape.\n\
         - `alustan_oldest_…_timestamp_seconds` has no sample while nothing waits. Otherwise `time() -` the value is the \
         age in seconds.\n\
         - With several replicas only the leader counts resources and runs. The others report 0, so sums over all \
         replicas are correct.\n\n\
         `deploy/monitoring` has a Grafana dashboard and Prometheus alerts. [troubleshooting.md](troubleshooting.md) has a \
         remedy for\neach alert.\n\n\
         | metric | type | labels | description |\n|---|---|---|---|\n",
    );
    let row = |metric: &Definition| {
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("`{}`: {}", label.name, label.values))
            .collect();
        let labels = labels.join("<br>");
        let (name, kind) = (metric.name, metric.kind.as_str());
        format!("| `{name}` | {kind} | {labels} | {} |\n", metric.help)
    };
    let rows: Vec<String> = ALL.iter().map(row).collect();
    text + &rows.concat()
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use alustan_api::conditions::{Kind as Condition, Verdict, merge};
    use alustan_api::report::{Failure, FailureClass, RunResult};
    use alustan_api::run::{Failures, RunSpec, Trigger};
    use alustan_api::{Architecture, DriftStatus, Mode, TerraformSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::step::Keep;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report(result: RunResult) -> RunReport {
        let failure = (result == RunResult::Failed).then(|| Failure {
            class: FailureClass::Module,
            reason: "ApplyFailed".to_owned(),
            message: String::new(),
        });
        serde_json::from_value(json!({
            "number": 3, "kind": "drift", "result": result, "failure": failure,
            "took": {"plan": 1500}, "startedAt": at(11), "finishedAt": at(30),
        }))
        .unwrap()
    }

    fn record(phase: RunPhase) -> RunRecord {
        RunRecord {
            number: 3,
            phase,
            run: Some(RunSpec {
                kind: RunKind::Drift,
                trigger: Trigger::Interval,
                job: "web-drift-3".to_owned(),
                revision: None,
                commit: None,
                context: None,
                artifact: None,
                cache: false,
                cache_claim: None,
                unpack: false,
                image: String::new(),
                architecture: Architecture::own(),
                tag: String::new(),
                config_hash: String::new(),
                own_hash: String::new(),
                found: BTreeMap::new(),
                judged_by: String::new(),
                pod: String::new(),
                destroys: false,
                mode: Mode::Apply,
                engine: None,
                trace_id: String::new(),
                protocol: 0,
                started_at: at(10),
            }),
            ..RunRecord::default()
        }
    }

    fn swap(history: History) -> Swap {
        Swap {
            record: record(RunPhase::Recorded),
            history: Some(history),
            inputs: Keep::Drop,
        }
    }

    #[test]
    fn run_is_counted_once_when_it_is_recorded() {
        let before = History::default();
        let recorded = History {
            reports: vec![report(RunResult::Failed)],
            ..History::default()
        };
        let run = ended(
            &record(RunPhase::Reported),
            &before,
            None,
            &swap(recorded.clone()),
        )
        .run;
        let run = run.unwrap();
        assert_eq!((run.kind, run.result), (RunKind::Drift, "Failed"));
        assert_eq!(run.reason.as_deref(), Some("ApplyFailed"));
        assert!((run.seconds - 20.0).abs() < f64::EPSILON);
        assert_eq!(run.took.plan, Some(1500));
        // A later write of the run record does not add the run to the metrics again.
        let later = ended(
            &record(RunPhase::Recorded),
            &recorded,
            None,
            &swap(recorded.clone()),
        );
        assert_eq!(later, Ended::default());
    }

    #[test]
    fn drift_check_without_drift_is_counted_without_history() {
        let report = report(RunResult::NoChanges);
        let (before, after) = (record(RunPhase::Reported), swap(History::default()));
        let run = ended(&before, &History::default(), Some(&report), &after).run;
        assert_eq!(run.unwrap().result, "NoChanges");
    }

    #[test]
    fn a_failed_build_counts_once() {
        let failed = History {
            build_failures: Failures {
                job_uid: Some("uid".to_owned()),
                reason: "BuildFailed".to_owned(),
                ..Failures::default()
            },
            ..History::default()
        };
        let now = record(RunPhase::Recorded);
        let build = |before: &History| ended(&now, before, None, &swap(failed.clone())).build;
        assert_eq!(build(&History::default()).as_deref(), Some("BuildFailed"));
        assert_eq!(build(&failed), None);
    }

    fn resource(state: State, verdicts: &[Verdict]) -> Terraform {
        let spec: TerraformSpec = serde_json::from_value(json!({
            "gitRepo": {"url": "https://git.test/a/b"},
            "containerRegistry": {"imageName": "registry.test/a/b"},
        }))
        .unwrap();
        Terraform {
            status: Some(TerraformStatus {
                state,
                conditions: merge(&[], verdicts, None, at(0)),
                ..TerraformStatus::default()
            }),
            ..Terraform::new("web", spec)
        }
    }

    fn states(resources: &[Terraform]) -> impl Iterator<Item = Option<ResourceState>> {
        resources.iter().map(ResourceState::of).map(Some)
    }

    #[test]
    fn resources_are_counted_by_condition() {
        let is_false = |kind, reason: &str| Verdict::new(kind, false, reason.to_owned(), "");
        let is_true = |kind, reason: &str| Verdict::new(kind, true, reason.to_owned(), "");
        let resources = [
            resource(State::Success, &[is_false(Condition::InSync, "Drifted")]),
            resource(
                State::Stalled,
                &[
                    is_false(Condition::Ready, "StateLost"),
                    is_true(Condition::Stalled, "StateLost"),
                ],
            ),
            resource(
                State::Pending,
                &[is_false(Condition::Ready, "WordOfKubelet")],
            ),
            resource(
                State::AwaitingApproval,
                &[Verdict::new(
                    Condition::Ready,
                    None,
                    Reason::AwaitingApproval,
                    "",
                )],
            ),
        ];
        let counts = count(states(&resources).chain([None]), at(0));
        assert_eq!(counts.states["Unreadable"], 1);
        assert_eq!(counts.states["Stalled"], 1);
        assert_eq!(
            counts.not_ready,
            BTreeMap::from([("Other", 1), ("StateLost", 1)])
        );
        assert_eq!(counts.stalled, BTreeMap::from([("StateLost", 1)]));
        assert_eq!((counts.drifted, counts.awaiting_approval), (1, 1));
    }

    /// Builds a resource with these conditions and transition times.
    fn with_conditions(conditions: &[(Verdict, i64)]) -> Terraform {
        let mut tf = resource(State::Failed, &[]);
        let merged = conditions
            .iter()
            .flat_map(|(verdict, second)| merge(&[], from_ref(verdict), None, at(*second)));
        tf.status.as_mut().unwrap().conditions = merged.collect();
        tf
    }

    fn oldest(resources: &[Terraform]) -> Oldest {
        count(states(resources), at(1_000_000)).oldest
    }

    fn not_ready(reason: &str, ready: i64, reconciling: i64) -> Terraform {
        let verdict = |kind, status| Verdict::new(kind, status, reason.to_owned(), "");
        with_conditions(&[
            (verdict(Condition::Ready, false), ready),
            (verdict(Condition::Reconciling, true), reconciling),
            (verdict(Condition::Stalled, false), 0),
        ])
    }

    #[test]
    fn oldest_failure_per_reason_ignores_later_attempts() {
        let resources = [
            // `Ready` changed at second 900, with the last attempt. The failure started at second 300, when `Reconciling` became True.
            not_ready("ApplyFailed", 900, 300),
            not_ready("ApplyFailed", 400, 400),
            not_ready("RepositoryUnreachable", 500, 500),
            not_ready("WordOfKubelet", 600, 600),
        ];
        let expected = [
            ("ApplyFailed", at(300)),
            ("Other", at(600)),
            ("RepositoryUnreachable", at(500)),
        ];
        assert_eq!(oldest(&resources).not_ready, BTreeMap::from(expected));
    }

    #[test]
    fn failure_age_starts_after_last_apply_and_approval() {
        let mut applied = not_ready("HealthCheckFailed", 900, 300);
        let status = applied.status.as_mut().unwrap();
        status.last_applied = Some(alustan_api::AppliedStatus {
            revision: None,
            config_hash: String::new(),
            time: Time(at(700)),
        });
        let mut approved = not_ready("ApplyFailed", 900, 300);
        let status = approved.status.as_mut().unwrap();
        status.plan = Some(alustan_api::PlanStatus {
            approved_at: Some(Time(at(800))),
            ..alustan_api::PlanStatus::default()
        });
        let expected = [("HealthCheckFailed", at(700)), ("ApplyFailed", at(800))];
        assert_eq!(
            oldest(&[applied, approved]).not_ready,
            BTreeMap::from(expected)
        );
    }

    #[test]
    fn ready_building_or_stalled_resource_has_no_failure_age() {
        let stalled = with_conditions(&[
            (
                Verdict::new(Condition::Ready, false, Reason::StateLost, ""),
                1,
            ),
            (
                Verdict::new(Condition::Stalled, true, Reason::StateLost, ""),
                1,
            ),
        ]);
        let building = with_conditions(&[(
            Verdict::new(Condition::Ready, None, Reason::Building, ""),
            1,
        )]);
        let ready =
            with_conditions(&[(Verdict::new(Condition::Ready, true, Reason::Applied, ""), 1)]);
        assert_eq!(oldest(&[stalled, building, ready]), Oldest::default());
    }

    #[test]
    fn drift_age_counts_from_first_detection() {
        let resource_with_drift = |drift_since: Option<i64>| {
            let out_of_sync = Verdict::new(Condition::InSync, false, Reason::Drifted, "");
            let mut tf = with_conditions(&[(out_of_sync, 900)]);
            tf.status.as_mut().unwrap().drift = drift_since.map(|second| DriftStatus {
                since: Time(at(second)),
                add: 0,
                change: 1,
                destroy: 0,
                resources: Vec::new(),
            });
            tf
        };
        let drift = oldest(&[resource_with_drift(Some(500)), resource_with_drift(None)]).drift;
        assert_eq!(drift, BTreeMap::from([("Drifted", at(500))]));
        let drift = oldest(&[resource_with_drift(None)]).drift;
        assert_eq!(drift, BTreeMap::from([("Drifted", at(900))]));
    }

    #[test]
    fn approval_age_counts_from_change_drift_or_deletion() {
        let awaits_approval =
            |ready| Verdict::new(Condition::Ready, ready, Reason::AwaitingApproval, "");
        let change = with_conditions(&[(awaits_approval(None), 700)]);
        // The resource is Ready since second 5. The drift started at second 800, and the correction waits for approval.
        let out_of_sync = Verdict::new(Condition::InSync, false, Reason::Drifted, "");
        let drift = with_conditions(&[(awaits_approval(Some(true)), 5), (out_of_sync, 800)]);
        let mut destroy = with_conditions(&[(awaits_approval(None), 100)]);
        destroy.metadata.deletion_timestamp = Some(Time(at(900)));
        let expected = [
            ("change", at(700)),
            ("destroy", at(900)),
            ("drift", at(800)),
        ];
        assert_eq!(
            oldest(&[change, drift, destroy]).approval,
            BTreeMap::from(expected)
        );
    }

    #[test]
    fn run_failed_counts_each_resource_once_for_an_hour() {
        let run = |result: RunResult, second: i64| {
            let failed: alustan_api::RunStatus = serde_json::from_value(json!({
                "number": 1, "kind": "apply", "trigger": "", "result": result.as_str(),
                "time": at(second), "seconds": 1, "job": "",
            }))
            .unwrap();
            failed
        };
        let resource_with = |runs: Vec<alustan_api::RunStatus>| {
            let mut tf = resource(State::Failed, &[]);
            tf.status.as_mut().unwrap().runs = runs;
            tf
        };
        let now = 100_000;
        let runs = [
            vec![
                run(RunResult::Failed, now - 5),
                run(RunResult::Failed, now - 20),
            ],
            vec![run(RunResult::Failed, now - 3_700)],
            vec![
                run(RunResult::Done, now - 5),
                run(RunResult::Failed, now - 20),
            ],
            // A time in the future, from a node whose clock is ahead, is handled as recent.
            vec![run(RunResult::Failed, now + 60)],
            Vec::new(),
        ];
        let resources: Vec<_> = runs.into_iter().map(resource_with).collect();
        assert_eq!(count(states(&resources), at(now)).run_failed, 2);
    }

    #[test]
    fn metric_names_have_suffix_of_kind_and_unit() {
        for metric in ALL {
            let Definition { name, kind, .. } = metric;
            assert!(name.starts_with("alustan_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let seconds = *kind == Kind::Histogram || name.ends_with("_timestamp_seconds");
            assert_eq!(name.ends_with("_seconds"), seconds, "{name}");
            assert!(!metric.help.ends_with('.'), "{name}");
        }
    }
}
