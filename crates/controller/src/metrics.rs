//! Values of `/metrics`. [`alustan_core::metric_definitions`] defines the metrics.

mod api_calls;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use alustan_api::reason;
use alustan_api::report::{Failure, FailureClass, RunResult};
use alustan_api::run::RunKind;
use alustan_core::metric_definitions::{self as table, Counts, Definition, Ended, Run};
use alustan_core::observed::{BuildSeen, BuildState};
use alustan_core::queue::Class;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::error::Error;
use crate::queue::Load;
use crate::resource::Ref;
use crate::version::Version;

pub(crate) use api_calls::CallCounter;

/// Buckets of the duration of runs, steps and queueing, in seconds, up to an apply of two hours.
const RUN_BUCKETS: [f64; 14] = [
    0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0,
];
/// Buckets of the duration of reconciles, in seconds. A reconcile takes milliseconds, or seconds if the API server is slow.
const RECONCILE_BUCKETS: [f64; 10] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Maximum number of builds to remember. The duration of a build is recorded once, although each resource that waits for the build observes its
/// end.
const BUILDS: usize = 1024;

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
type Histograms = Family<Labels<1>, Histogram, fn() -> Histogram>;

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    since: Timestamp,
    /// Serializes scrapes, because each scrape sets the gauges.
    scrape: Mutex<()>,
    builds: Mutex<VecDeque<String>>,
    /// Resources whose last reconcile failed.
    failing: Mutex<HashSet<Ref>>,
    query_caches: Mutex<Vec<(QueryKind, Weak<dyn QueryCache>)>>,
    reconciles: Counters<1>,
    last_reconcile: Gauges<1>,
    reconcile_seconds: Histogram,
    errors: Counters<1>,
    runs: Counters<2>,
    run_seconds: Histograms,
    step_seconds: Histograms,
    queue_seconds: Histograms,
    git: Counters<2>,
    registries: Counters<2>,
    calls: Family<[(&'static str, String); 2], Counter>,
    ready: Gauge,
    resources: Gauges<1>,
    not_ready: Gauges<1>,
    stalled: Gauges<1>,
    drifted: Gauge,
    awaiting_approval: Gauge,
    suspended: Gauge,
    oldest_not_ready: Gauges<1>,
    oldest_drift: Gauges<1>,
    oldest_approval: Gauges<1>,
    run_failed: Gauge,
    reconcile_failed: Gauge,
    git_failed: Gauge,
    registry_failed: Gauge,
    queue_length: Gauges<1>,
    oldest_queued: Gauges<1>,
    late_checks: Gauge,
    drift_stretch: Gauge<f64, AtomicU64>,
    slots_used: Gauge,
    slots: Gauge,
    leader: Gauge,
}

/// Target and operation of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueryKind {
    /// Query to a git repository, with the operation, for example `fetch`.
    Git(&'static str),
    /// Query to a registry, with the operation, for example `push`.
    Registry(&'static str),
    /// Query to the API server. Has no counter here, because [`CallCounter`] counts all calls of the API server.
    Api,
}

/// Cache of answers to queries.
pub(crate) trait QueryCache: Send + Sync {
    /// Returns the resources with a query whose last attempt was a transient failure.
    fn failing(&self) -> Vec<Ref>;
}

/// Values computed for each scrape.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScrapeValues {
    /// Numbers of resources, for example by `status.state`.
    pub(crate) counts: Counts,
    /// Active and queued runs.
    pub(crate) load: Load,
    /// Whether the watches have listed all objects.
    pub(crate) ready: bool,
    /// Whether this replica holds the Lease.
    pub(crate) leads: bool,
}

fn run_histogram() -> Histogram {
    Histogram::new(RUN_BUCKETS)
}

/// Registers `metric` under its name. The encoder appends the suffix `_total` to the names of counters.
fn register<M: Metric + Clone>(registry: &mut Registry, definition: &Definition, metric: M) -> M {
    let name = definition
        .name
        .strip_suffix("_total")
        .unwrap_or(definition.name);
    registry.register(name, definition.help, metric.clone());
    metric
}

impl Metrics {
    /// Creates the metrics, with counters at zero.
    pub(crate) fn new() -> Arc<Self> {
        let mut registry = Registry::default();
        let r = &mut registry;
        let info = register(
            r,
            &table::BUILD_INFO,
            Family::<[(&'static str, String); 4], Gauge>::default(),
        );
        info.get_or_create(&Version::this().labels()).set(1);
        let run_histograms = || Family::new_with_constructor(run_histogram as fn() -> Histogram);
        let metrics = Self {
            ready: register(r, &table::READY, Gauge::default()),
            resources: register(r, &table::RESOURCES, Family::default()),
            not_ready: register(r, &table::NOT_READY, Family::default()),
            stalled: register(r, &table::STALLED, Family::default()),
            drifted: register(r, &table::DRIFTED, Gauge::default()),
            awaiting_approval: register(r, &table::AWAITING_APPROVAL, Gauge::default()),
            suspended: register(r, &table::SUSPENDED, Gauge::default()),
            oldest_not_ready: register(r, &table::OLDEST_NOT_READY, Family::default()),
            oldest_drift: register(r, &table::OLDEST_DRIFT, Family::default()),
            oldest_approval: register(r, &table::OLDEST_APPROVAL, Family::default()),
            run_failed: register(r, &table::RUN_FAILED, Gauge::default()),
            reconcile_failed: register(r, &table::RECONCILE_FAILED, Gauge::default()),
            git_failed: register(r, &table::GIT_FAILED, Gauge::default()),
            registry_failed: register(r, &table::REGISTRY_FAILED, Gauge::default()),
            reconciles: register(r, &table::RECONCILES, Family::default()),
            last_reconcile: register(r, &table::LAST_RECONCILE, Family::default()),
            reconcile_seconds: register(
                r,
                &table::RECONCILE_SECONDS,
                Histogram::new(RECONCILE_BUCKETS),
            ),
            errors: register(r, &table::ERRORS, Family::default()),
            runs: register(r, &table::RUNS, Family::default()),
            run_seconds: register(r, &table::RUN_SECONDS, run_histograms()),
            step_seconds: register(r, &table::STEP_SECONDS, run_histograms()),
            queue_seconds: register(r, &table::QUEUE_SECONDS, run_histograms()),
            queue_length: register(r, &table::QUEUE_LENGTH, Family::default()),
            oldest_queued: register(r, &table::OLDEST_QUEUED, Family::default()),
            late_checks: register(r, &table::LATE_CHECKS, Gauge::default()),
            drift_stretch: register(r, &table::DRIFT_STRETCH, Gauge::default()),
            slots_used: register(r, &table::SLOTS_USED, Gauge::default()),
            slots: register(r, &table::SLOTS, Gauge::default()),
            leader: register(r, &table::LEADER, Gauge::default()),
            git: register(r, &table::GIT, Family::default()),
            registries: register(r, &table::REGISTRY, Family::default()),
            calls: register(r, &table::API, Family::default()),
            registry,
            since: Timestamp::now(),
            scrape: Mutex::default(),
            builds: Mutex::default(),
            failing: Mutex::default(),
            query_caches: Mutex::default(),
        };
        metrics.create_counters();
        Arc::new(metrics)
    }

    /// Creates the counters in the denominators of alerting rules, with value 0. Without this first sample, Prometheus does not count the first
    /// increment as an increase.
    fn create_counters(&self) {
        for result in ["ok", "conflict", "error"] {
            self.reconciles.get_or_create_owned(&[("result", result)]);
        }
        let results = [
            RunResult::NoChanges,
            RunResult::Changes,
            RunResult::Done,
            RunResult::Failed,
            RunResult::Cancelled,
        ];
        for kind in [
            RunKind::Plan,
            RunKind::Apply,
            RunKind::Drift,
            RunKind::Destroy,
        ] {
            for result in results {
                let labels = [("kind", kind.as_str()), ("result", result.as_str())];
                self.runs.get_or_create_owned(&labels);
            }
        }
    }

    /// Records a reconcile of `resource` and its duration.
    pub(crate) fn record_reconcile<T>(
        &self,
        resource: &Ref,
        result: &Result<T, Error>,
        duration: Duration,
    ) {
        let mut failing = self.failing.lock();
        let label = match result {
            Ok(_) => {
                failing.remove(resource);
                "ok"
            }
            // Not a failure: the next reconcile resolves the conflict.
            Err(error) if error.is_conflict() => "conflict",
            Err(error) => {
                failing.insert(resource.clone());
                self.count_failure(error.reason().as_str());
                "error"
            }
        };
        drop(failing);
        self.reconciles.get_or_create(&[("result", label)]).inc();
        let last = self.last_reconcile.get_or_create(&[("result", label)]);
        last.set(Timestamp::now().as_second());
        drop(last);
        self.reconcile_seconds.observe(duration.as_secs_f64());
    }

    /// Counts a failure with `reason`.
    pub(crate) fn count_failure(&self, reason: &str) {
        let reason = reason::bounded(reason);
        self.errors.get_or_create(&[("reason", reason)]).inc();
    }

    /// Records the build and the run that ended with an update of the run record.
    pub(crate) fn record_end(&self, ended: &Ended) {
        if let Some(reason) = &ended.build {
            self.count_failure(reason);
        }
        if let Some(run) = &ended.run {
            self.record_run(run);
        }
    }

    fn record_run(&self, run: &Run) {
        let kind = run.kind.as_str();
        let labels = [("kind", kind), ("result", run.result)];
        self.runs.get_or_create(&labels).inc();
        if let Some(reason) = &run.reason {
            self.count_failure(reason);
        }
        let histogram = self.run_seconds.get_or_create(&[("kind", kind)]);
        histogram.observe(run.seconds);
        drop(histogram);
        let change = if run.kind == RunKind::Destroy || run.destroys {
            "destroy"
        } else {
            "apply"
        };
        let steps = [
            ("init", run.took.init),
            ("plan", run.took.plan),
            (change, run.took.apply),
        ];
        for (step, duration) in steps {
            if let Some(duration) = duration {
                self.record_step(step, Duration::from_millis(duration).as_secs_f64());
            }
        }
    }

    fn record_step(&self, step: &'static str, seconds: f64) {
        let histogram = self.step_seconds.get_or_create(&[("step", step)]);
        histogram.observe(seconds);
    }

    /// Records the duration of a successful build, once per build. Ignores builds that ended before the start of this process.
    pub(crate) fn record_build(&self, build: &BuildSeen) {
        let BuildState::Done(at) = build.state else {
            return;
        };
        if at < self.since {
            return;
        }
        let mut builds = self.builds.lock();
        if builds.contains(&build.uid) {
            return;
        }
        builds.push_back(build.uid.clone());
        if builds.len() > BUILDS {
            builds.pop_front();
        }
        self.record_step("build", table::seconds_between(build.created_at, at));
    }

    /// Records the admission of a run with the priority class `class`, and the time that the run was queued.
    pub(crate) fn record_admission(&self, class: Class, waited: SignedDuration) {
        let labels = [("class", table::class(class))];
        let histogram = self.queue_seconds.get_or_create(&labels);
        histogram.observe(waited.as_secs_f64().max(0.0));
    }

    /// Registers `cache`, which sends queries of `kind`, and creates the counters of these queries with value 0.
    pub(crate) fn register_queries(&self, kind: QueryKind, cache: Weak<dyn QueryCache>) {
        for result in ["ok", "refused", "error"] {
            self.counter(kind, result);
        }
        let mut query_caches = self.query_caches.lock();
        query_caches.push((kind, cache));
    }

    fn counter(&self, kind: QueryKind, result: &'static str) -> Option<Counter> {
        let (family, operation) = match kind {
            QueryKind::Git(operation) => (&self.git, operation),
            QueryKind::Registry(operation) => (&self.registries, operation),
            QueryKind::Api => return None,
        };
        let labels = [("operation", operation), ("result", result)];
        Some(family.get_or_create_owned(&labels))
    }

    /// Returns the number of resources with a failing query: the last attempt of the query was a transient failure. Considers only queries whose kind
    /// `selects` accepts.
    fn failing_count(&self, selects: fn(QueryKind) -> bool) -> i64 {
        let query_caches = self.query_caches.lock();
        let failing: HashSet<Ref> = query_caches
            .iter()
            .filter(|(kind, _)| selects(*kind))
            .filter_map(|(_, cache)| Some(cache.upgrade()?.failing()))
            .flatten()
            .collect();
        number(failing.len())
    }

    /// Removes failures of resources that no longer exist: those for which `exists` returns false.
    pub(crate) fn retain_failing(&self, exists: impl Fn(&Ref) -> bool) {
        let mut failing = self.failing.lock();
        failing.retain(exists);
    }

    /// Records the result of a query.
    pub(crate) fn record_query(&self, kind: QueryKind, failure: Option<&Failure>) {
        let result = match failure.map(|failure| failure.class) {
            None => "ok",
            Some(FailureClass::Transient) => "error",
            Some(FailureClass::Module | FailureClass::User) => "refused",
        };
        if let Some(counter) = self.counter(kind, result) {
            counter.inc();
        }
        if let Some(failure) = failure {
            self.count_failure(&failure.reason);
        }
    }

    /// Counts a call of the API server with its status code. `None`: no response.
    fn record_call(&self, method: &'static str, code: Option<u16>) {
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let labels = [("method", method.to_owned()), ("code", code)];
        self.calls.get_or_create(&labels).inc();
    }

    /// Encodes all metrics as `OpenMetrics` text. `now` has the current values of the gauges.
    pub(crate) fn text(&self, now: &ScrapeValues) -> Result<String, std::fmt::Error> {
        let _guard = self.scrape.lock();
        let ScrapeValues {
            counts,
            load,
            ready,
            leads,
        } = now;
        self.ready.set(i64::from(*ready));
        set(&self.resources, "state", &counts.states);
        set(&self.not_ready, "reason", &counts.not_ready);
        set(&self.stalled, "reason", &counts.stalled);
        set(&self.queue_length, "class", &load.waiting);
        set_times(&self.oldest_not_ready, "reason", &counts.oldest.not_ready);
        set_times(&self.oldest_drift, "reason", &counts.oldest.drift);
        set_times(&self.oldest_approval, "of", &counts.oldest.approval);
        set_times(&self.oldest_queued, "class", &load.oldest);
        self.drifted.set(counts.drifted);
        self.awaiting_approval.set(counts.awaiting_approval);
        self.suspended.set(counts.suspended);
        self.run_failed.set(counts.run_failed);
        let failing = self.failing.lock();
        self.reconcile_failed.set(number(failing.len()));
        drop(failing);
        let failing_git = self.failing_count(|kind| matches!(kind, QueryKind::Git(_)));
        self.git_failed.set(failing_git);
        let failing_registries = self.failing_count(|kind| matches!(kind, QueryKind::Registry(_)));
        self.registry_failed.set(failing_registries);
        self.late_checks.set(load.late_checks);
        self.drift_stretch.set(load.drift_stretch);
        self.slots_used.set(load.running);
        self.slots.set(load.slots);
        self.leader.set(i64::from(*leads));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Replaces all samples of `family` by `counts`.
fn set(family: &Gauges<1>, label: &'static str, counts: &BTreeMap<&'static str, i64>) {
    family.clear();
    for (value, count) in counts {
        family.get_or_create(&[(label, *value)]).set(*count);
    }
}

/// Replaces all samples of `family` by `times`, as Unix time in seconds.
fn set_times(family: &Gauges<1>, label: &'static str, times: &BTreeMap<&'static str, Timestamp>) {
    let seconds = times.iter().map(|(value, time)| (*value, time.as_second()));
    set(family, label, &seconds.collect());
}

#[cfg(test)]
mod tests;
