//! What the operator measures: the one table of its metrics, from which `docs/metrics.md` is made,
//! and how they are counted. Pure: the controller keeps the numbers.
//!
//! No label has the name of a resource, a namespace, a repository or a registry in it: there is no
//! end to those, and whoever reads metrics may not be allowed to know them.

use std::collections::BTreeMap;

use alustan_api::report::{RunReport, StepTimes};
use alustan_api::run::{History, RunKind, RunPhase, RunRecord};
use alustan_api::{State, Terraform, reasons};
use k8s_openapi::jiff::Timestamp;

use crate::schedule::Class;
use crate::status::AWAITING;
use crate::step::Swap;

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Its name, as it is scraped.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [Label],
    /// What it tells, in a sentence without its full stop.
    pub help: &'static str,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until the operator starts anew.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts by duration, in seconds.
    Histogram,
}

impl Kind {
    /// The word that Prometheus has for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A label.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Which values it has.
    pub values: &'static str,
}

const fn label(name: &'static str, values: &'static str) -> Label {
    Label { name, values }
}

const REASON: Label = label("reason", "a reason of troubleshooting.md, else `Other`");
const KIND: Label = label("kind", "`plan`, `apply`, `drift`, `destroy`");
const CLASS: Label = label("class", "`change` (apply and destroy), `plan`, `drift`");
const RESULT: Label = label("result", "`ok`, `error`");

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
        label("version", "of the operator"), label("commit", "it was built from, else `unknown`"),
        label("protocol", "between controller and runner"), label("crd", "the version of the resource")
    ] "Always 1; the labels tell what runs";
    RESOURCES = Gauge "alustan_resources" [
        label("state", "as `status.state`; `Unreadable` where the resource is none that this version can read")
    ] "Resources by what goes on with them";
    NOT_READY = Gauge "alustan_resources_not_ready" [REASON]
        "Resources whose condition Ready is False, by its reason";
    STALLED = Gauge "alustan_resources_stalled" [REASON]
        "Resources with which nothing more happens until a person changes something";
    DRIFTED = Gauge "alustan_resources_drifted" []
        "Resources whose real objects differ from the configuration (condition `InSync` is False)";
    AWAITING_APPROVAL = Gauge "alustan_resources_awaiting_approval" []
        "Resources with a plan that waits for a person";
    SUSPENDED = Gauge "alustan_resources_suspended" [] "Resources with spec.suspend";
    RECONCILES = Counter "alustan_reconciles_total" [
        label("result", "`ok`, `conflict` (somebody else wrote first; looked at again at once), `error`")
    ] "Looks at a resource, each from what is seen to what is written";
    RECONCILE_SECONDS = Histogram "alustan_reconcile_duration_seconds" [] "How long a look took";
    ERRORS = Counter "alustan_errors_total" [REASON]
        "What failed: looks, questions to git and registries (each try), runs and builds";
    RUNS = Counter "alustan_runs_total" [
        KIND, label("result", "`NoChanges`, `Changes`, `Done`, `Failed`, `Cancelled`")
    ] "Runs that ended, as status.runs tells them, looks for drift that found none included";
    RUN_SECONDS = Histogram "alustan_run_duration_seconds" [KIND]
        "From the start of a run to its report, its pod included; without the wait in the queue";
    STEP_SECONDS = Histogram "alustan_step_duration_seconds" [
        label("step", "`build` (a Job that ended well), `init`, `plan`, `apply`, `destroy`")
    ] "How long the steps took; in a run that failed, too";
    QUEUE_SECONDS = Histogram "alustan_queue_duration_seconds" [CLASS]
        "How long runs waited for a place of --max-concurrent-runs";
    QUEUE_LENGTH = Gauge "alustan_queue_length" [CLASS] "Runs that wait for a place";
    PLACES_USED = Gauge "alustan_run_places_used" [] "Runs that go on";
    PLACES = Gauge "alustan_run_places" [] "Runs that may go on at once: --max-concurrent-runs";
    GIT = Counter "alustan_git_requests_total" [
        label("operation", "`resolve` (where a reference points), `fetch` (a commit, and what the module needs of it)"),
        RESULT
    ] "Questions to repositories; those that many resources share count once";
    REGISTRY = Counter "alustan_registry_requests_total" [
        label("operation", "`digest` (of an image), `push` (of a context), `prune` (of a repository)"), RESULT
    ] "Questions to registries by the operator; what builds and nodes pull and push is not seen here";
    API = Counter "alustan_api_requests_total" [
        label("method", "of HTTP"), label("code", "of HTTP, else `none` where no answer came")
    ] "Calls of the API server, watches included; those that the client tries again by itself count once";
}

/// What ended with a swap of the run record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// A run, as it was recorded.
    pub run: Option<Run>,
    /// A build that failed: its reason.
    pub build: Option<String>,
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What it did.
    pub kind: RunKind,
    /// Whether it was about destroying everything.
    pub destroys: bool,
    /// How it ended: the word of `status.runs`.
    pub result: &'static str,
    /// Why it failed.
    pub reason: Option<String>,
    /// Between its start by the controller and its report.
    pub seconds: f64,
    /// How long its steps took.
    pub took: StepTimes,
}

/// What `swap` makes known for good: the record was `record` before, with `history` and the `report`
/// that the runner had written into it.
pub fn ended(
    record: &RunRecord,
    history: &History,
    report: Option<&RunReport>,
    swap: &Swap,
) -> Ended {
    let Some(next) = &swap.history else {
        return Ended::default();
    };
    let recorded = record.phase < RunPhase::Recorded
        && swap.record.phase == RunPhase::Recorded
        && swap.record.number == record.number;
    let kept = next.report(record.number);
    let run = kept.or_else(|| report.filter(|it| it.number == record.number));
    let run = run.filter(|_| recorded).zip(record.run.as_ref());
    let failed = &next.build_failures;
    let counted = failed.job_uid.is_some() && failed.job_uid != history.build_failures.job_uid;
    Ended {
        run: run.map(|(report, run)| Run {
            kind: report.kind,
            destroys: run.destroys,
            result: report.result.as_str(),
            reason: report.failure.as_ref().map(|it| it.reason.clone()),
            seconds: seconds_between(run.started_at, report.finished_at),
            took: report.took,
        }),
        build: counted.then(|| failed.reason.clone()),
    }
}

/// From `start` to `end`; none at all where clocks do not agree.
pub fn seconds_between(start: Timestamp, end: Timestamp) -> f64 {
    end.duration_since(start).as_secs_f64().max(0.0)
}

/// The value of the label `class`.
pub const fn class(class: Class) -> &'static str {
    match class {
        Class::Change => "change",
        Class::Plan => "plan",
        Class::Drift => "drift",
    }
}

/// Resources, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By `status.state`.
    pub states: BTreeMap<&'static str, i64>,
    /// Those that are not ready, by reason.
    pub not_ready: BTreeMap<&'static str, i64>,
    /// Those that are stalled, by reason.
    pub stalled: BTreeMap<&'static str, i64>,
    /// Those that differ from their configuration.
    pub drifted: i64,
    /// Those with a plan that waits.
    pub awaiting_approval: i64,
    /// Those that are suspended.
    pub suspended: i64,
}

/// Counts `resources`; `None` is one that cannot be read.
pub fn count<'a>(resources: impl IntoIterator<Item = Option<&'a Terraform>>) -> Counts {
    let mut counts = Counts::default();
    for resource in resources {
        match resource {
            Some(tf) => counts.add(tf),
            None => *counts.states.entry("Unreadable").or_default() += 1,
        }
    }
    counts
}

impl Counts {
    fn add(&mut self, tf: &Terraform) {
        let status = tf.status.as_ref();
        let state = status.map(|status| status.state).unwrap_or_default();
        *self.states.entry(word(state)).or_default() += 1;
        self.suspended += i64::from(tf.spec.suspend);
        let conditions = status.iter().flat_map(|status| &status.conditions);
        for condition in conditions {
            let reason = reasons::bounded(&condition.reason);
            match (condition.type_.as_str(), condition.status.as_str()) {
                ("Ready", "False") => *self.not_ready.entry(reason).or_default() += 1,
                ("Stalled", "True") => *self.stalled.entry(reason).or_default() += 1,
                ("InSync", "False") => self.drifted += 1,
                _ => {}
            }
            let waits = condition.type_ == "Ready" && condition.reason == AWAITING;
            self.awaiting_approval += i64::from(waits);
        }
    }
}

/// The word of `status.state`.
const fn word(state: State) -> &'static str {
    match state {
        State::Pending => "Pending",
        State::Building => "Building",
        State::Planning => "Planning",
        State::AwaitingApproval => "AwaitingApproval",
        State::Applying => "Applying",
        State::Success => "Success",
        State::Drifted => "Drifted",
        State::Failed => "Failed",
        State::Stalled => "Stalled",
        State::Destroying => "Destroying",
    }
}

/// `docs/metrics.md`.
pub fn document() -> String {
    let text = String::from(
        "<!-- Generated by `cargo xtask gen` from crates/core/src/metrics.rs; do not edit. -->\n\
         # Metrics\n\n\
         The operator answers `GET /metrics` where its probes are (`--listen`, port 8080), as OpenMetrics text. No label has \
         the\nname of a resource, a namespace, a repository or a registry in it: their number is bounded, and who reads them \
         learns\nnothing that kubectl would refuse. Counters begin anew with the operator; gauges are counted at each scrape.\n\n\
         `deploy/monitoring` has a dashboard for Grafana and alerts for Prometheus; what to do about an alert:\n\
         [troubleshooting.md](troubleshooting.md).\n\n\
         | metric | type | labels | |\n|---|---|---|---|\n",
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
    use alustan_api::conditions::{Kind as Condition, Verdict, merge};
    use alustan_api::report::{Failure, FailureClass, RunResult};
    use alustan_api::run::{Failures, RunSpec, Trigger};
    use alustan_api::{TerraformSpec, TerraformStatus};
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
                context: None,
                artifact: None,
                unpack: false,
                image: String::new(),
                tag: String::new(),
                config_hash: String::new(),
                own_hash: String::new(),
                found: BTreeMap::new(),
                judged_by: String::new(),
                destroys: false,
                engine: None,
                trace_id: String::new(),
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
            drop_report: true,
        }
    }

    #[test]
    fn a_run_counts_with_the_swap_that_records_it() {
        let before = History::default();
        let found = History {
            reports: vec![report(RunResult::Failed)],
            ..History::default()
        };
        let run = ended(
            &record(RunPhase::Reported),
            &before,
            None,
            &swap(found.clone()),
        )
        .run;
        let run = run.unwrap();
        assert_eq!((run.kind, run.result), (RunKind::Drift, "Failed"));
        assert_eq!(run.reason.as_deref(), Some("ApplyFailed"));
        assert!((run.seconds - 20.0).abs() < f64::EPSILON);
        assert_eq!(run.took.plan, Some(1500));
        // The next swap of the same pass, or of a later one, records nothing new.
        let again = ended(
            &record(RunPhase::Recorded),
            &found,
            None,
            &swap(found.clone()),
        );
        assert_eq!(again, Ended::default());
    }

    #[test]
    fn a_look_that_found_no_drift_counts_though_no_history_keeps_it() {
        let own = report(RunResult::NoChanges);
        let (before, after) = (record(RunPhase::Reported), swap(History::default()));
        let run = ended(&before, &History::default(), Some(&own), &after).run;
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

    #[test]
    fn resources_are_counted_by_what_their_conditions_say() {
        let no = |kind, reason| Verdict::new(kind, false, reason, "");
        let yes = |kind, reason| Verdict::new(kind, true, reason, "");
        let all = [
            resource(State::Success, &[no(Condition::InSync, "Drifted")]),
            resource(
                State::Stalled,
                &[
                    no(Condition::Ready, "StateLost"),
                    yes(Condition::Stalled, "StateLost"),
                ],
            ),
            resource(State::Pending, &[no(Condition::Ready, "WordOfKubelet")]),
            resource(
                State::AwaitingApproval,
                &[Verdict::new(Condition::Ready, None, AWAITING, "")],
            ),
        ];
        let counts = count(all.iter().map(Some).chain([None]));
        assert_eq!(counts.states["Unreadable"], 1);
        assert_eq!(counts.states["Stalled"], 1);
        assert_eq!(
            counts.not_ready,
            BTreeMap::from([("Other", 1), ("StateLost", 1)])
        );
        assert_eq!(counts.stalled, BTreeMap::from([("StateLost", 1)]));
        assert_eq!((counts.drifted, counts.awaiting_approval), (1, 1));
    }

    #[test]
    fn names_tell_their_kind_and_unit() {
        for metric in ALL {
            let Definition { name, kind, .. } = metric;
            assert!(name.starts_with("alustan_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(
                name.ends_with("_seconds"),
                *kind == Kind::Histogram,
                "{name}"
            );
            assert!(!metric.help.ends_with('.'), "{name}");
        }
    }
}
