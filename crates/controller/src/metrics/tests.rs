use std::collections::{BTreeMap, BTreeSet};

use alustan_api::report::{FailureClass, StepTimes};
use alustan_core::metric_definitions::{ALL, Oldest};

use super::*;

fn sampled() -> Arc<Metrics> {
    let metrics = Metrics::new();
    let (resource, duration) = (Ref::new("web").within("team"), Duration::from_millis(3));
    metrics.record_reconcile(&resource, &Ok(()), duration);
    metrics.record_reconcile::<()>(&resource, &Err(Error::Conflict), duration);
    metrics.record_reconcile::<()>(&resource, &Err(Error::RandomSourceUnavailable), duration);
    metrics.record_end(&Ended {
        run: Some(Run {
            kind: RunKind::Apply,
            destroys: false,
            result: "Failed",
            reason: Some("ApplyFailed".to_owned()),
            seconds: 61.0,
            took: StepTimes {
                init: None,
                plan: Some(1_500),
                apply: Some(30_000),
            },
        }),
        build: Some("BuildFailed".to_owned()),
    });
    metrics.record_admission(Class::Drift, SignedDuration::from_secs(4));
    let failure = Failure {
        class: FailureClass::Transient,
        reason: "HeardNowhere".to_owned(),
        message: String::new(),
    };
    metrics.record_query(QueryKind::Git("resolve"), None);
    metrics.record_query(QueryKind::Registry("push"), Some(&failure));
    metrics.record_call("GET", Some(200));
    metrics.record_call("GET", None);
    metrics
}

fn text(metrics: &Metrics) -> String {
    let one = |name| BTreeMap::from([(name, 1)]);
    let since = |name| BTreeMap::from([(name, Timestamp::from_second(1_700_000_000).unwrap())]);
    let now = ScrapeValues {
        counts: Counts {
            states: one("Stalled"),
            not_ready: one("StateLost"),
            stalled: one("StateLost"),
            run_failed: 1,
            oldest: Oldest {
                not_ready: since("GitTimeout"),
                drift: since("Drifted"),
                approval: since("change"),
            },
            ..Counts::default()
        },
        load: Load {
            waiting: one("plan"),
            oldest: since("plan"),
            late_checks: 3,
            drift_stretch: 2.5,
            running: 2,
            slots: 50,
        },
        ready: true,
        leads: true,
    };
    metrics.text(&now).unwrap()
}

#[test]
fn scraped_metrics_match_the_metrics_table() {
    let text = text(&sampled());
    let types: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    for metric in ALL {
        let bare = metric.name.strip_suffix("_total").unwrap_or(metric.name);
        assert_eq!(types.get(bare), Some(&metric.kind.as_str()), "{bare}");
        let mut names = vec!["le"];
        names.extend(metric.labels.iter().map(|label| label.name));
        let samples = text.lines().filter(|line| {
            let rest = line.strip_prefix(bare);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ', '_'])) && !line.starts_with('#')
        });
        let mut used = BTreeSet::new();
        let mut any = false;
        for line in samples {
            any = true;
            let labels = line
                .split_once('{')
                .and_then(|(_, labels)| labels.split_once('}'));
            let labels = labels.map_or("", |(labels, _)| labels);
            let keys = labels.split(',').filter_map(|pair| pair.split_once('='));
            used.extend(keys.map(|(key, _)| key.to_owned()));
        }
        assert!(any, "no sample of {}", metric.name);
        if bare == metric.name
            && !ALL
                .iter()
                .any(|other| other.name != bare && other.name.starts_with(bare))
        {
            assert!(
                used.iter().all(|label| names.contains(&label.as_str())),
                "{bare}: {used:?}"
            );
        }
        for label in metric.labels {
            assert!(used.contains(label.name), "{bare} lacks {}", label.name);
        }
    }
    assert_eq!(types.len(), ALL.len());
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn samples_have_the_recorded_values() {
    let text = text(&sampled());
    for line in [
        "alustan_reconciles_total{result=\"conflict\"} 1",
        "alustan_reconciles_total{result=\"error\"} 1",
        "alustan_errors_total{reason=\"ApplyFailed\"} 1",
        "alustan_errors_total{reason=\"BuildFailed\"} 1",
        "alustan_errors_total{reason=\"Other\"} 1",
        "alustan_runs_total{kind=\"apply\",result=\"Failed\"} 1",
        "alustan_run_duration_seconds_sum{kind=\"apply\"} 61.0",
        "alustan_step_duration_seconds_sum{step=\"plan\"} 1.5",
        "alustan_step_duration_seconds_bucket{le=\"30.0\",step=\"apply\"} 1",
        "alustan_queue_duration_seconds_sum{class=\"drift\"} 4.0",
        "alustan_git_requests_total{operation=\"resolve\",result=\"ok\"} 1",
        "alustan_registry_requests_total{operation=\"push\",result=\"error\"} 1",
        "alustan_api_requests_total{method=\"GET\",code=\"none\"} 1",
        "alustan_resources_stalled{reason=\"StateLost\"} 1",
        "alustan_queue_length{class=\"plan\"} 1",
        "alustan_ready 1",
        "alustan_resources_run_failed 1",
        "alustan_resources_reconcile_failed 1",
        "alustan_oldest_not_ready_timestamp_seconds{reason=\"GitTimeout\"} 1700000000",
        "alustan_oldest_drift_timestamp_seconds{reason=\"Drifted\"} 1700000000",
        "alustan_oldest_approval_timestamp_seconds{of=\"change\"} 1700000000",
        "alustan_oldest_queued_timestamp_seconds{class=\"plan\"} 1700000000",
        "alustan_drift_checks_late 3",
        "alustan_drift_interval_ratio 2.5",
        "alustan_run_places_used 2",
        "alustan_run_places 50",
    ] {
        assert!(text.lines().any(|sample| sample == line), "{line}\n{text}");
    }
    assert!(!text.contains("step=\"init\""), "{text}");
}

#[test]
fn gauges_of_past_reasons_are_removed() {
    let metrics = sampled();
    assert!(text(&metrics).contains("StateLost"));
    let later = metrics.text(&ScrapeValues::default()).unwrap();
    for sample in ["StateLost", "GitTimeout", "_drift_timestamp_seconds{"] {
        assert!(!later.contains(sample), "{sample}\n{later}");
    }
}

#[test]
fn counters_start_at_zero() {
    let metrics = Metrics::new();
    let dropped: Weak<FailingCache> = Weak::new();
    metrics.register_queries(QueryKind::Git("fetch"), dropped.clone());
    metrics.register_queries(QueryKind::Registry("prune"), dropped);
    let text = metrics.text(&ScrapeValues::default()).unwrap();
    for line in [
        "alustan_reconciles_total{result=\"error\"} 0",
        "alustan_runs_total{kind=\"destroy\",result=\"Failed\"} 0",
        "alustan_git_requests_total{operation=\"fetch\",result=\"error\"} 0",
        "alustan_registry_requests_total{operation=\"prune\",result=\"refused\"} 0",
    ] {
        assert!(text.lines().any(|sample| sample == line), "{line}\n{text}");
    }
}

struct FailingCache(&'static [&'static str]);

impl QueryCache for FailingCache {
    fn failing(&self) -> Vec<Ref> {
        self.0
            .iter()
            .map(|name| Ref::new(name).within("team"))
            .collect()
    }
}

#[test]
fn resource_with_several_failed_queries_counts_once() {
    let metrics = Metrics::new();
    let (first, second) = (
        Arc::new(FailingCache(&["a", "b"])),
        Arc::new(FailingCache(&["b", "c"])),
    );
    let (third, dropped) = (
        Arc::new(FailingCache(&["a"])),
        Arc::new(FailingCache(&["d"])),
    );
    let caches: [(QueryKind, &Arc<FailingCache>); 4] = [
        (QueryKind::Git("resolve"), &first),
        (QueryKind::Git("fetch"), &second),
        (QueryKind::Registry("digest"), &third),
        (QueryKind::Git("fetch"), &dropped),
    ];
    for (kind, cache) in caches {
        let cache: Weak<FailingCache> = Arc::downgrade(cache);
        metrics.register_queries(kind, cache);
    }
    drop(dropped);
    let text = text(&metrics);
    for line in [
        "alustan_resources_git_failed 3",
        "alustan_resources_registry_failed 1",
    ] {
        assert!(text.lines().any(|sample| sample == line), "{line}\n{text}");
    }
}

#[test]
fn build_seen_by_several_resources_counts_once() {
    let metrics = Metrics::new();
    let now = Timestamp::now();
    let build = |uid: &str, ended: Timestamp| BuildSeen {
        has_build_secret: false,
        job: "build-1".to_owned(),
        uid: uid.to_owned(),
        created_at: ended - SignedDuration::from_secs(20),
        started_by: String::new(),
        pod_digest: String::new(),
        has_pod: true,
        scheduled_at: None,
        state: BuildState::Done(ended),
    };
    let later = now + SignedDuration::from_secs(5);
    metrics.record_build(&build("a", later));
    metrics.record_build(&build("a", later));
    metrics.record_build(&build("b", later));
    metrics.record_build(&build("of yesterday", now - SignedDuration::from_hours(24)));
    let text = text(&metrics);
    let line = "alustan_step_duration_seconds_count{step=\"build\"} 2";
    assert!(text.lines().any(|sample| sample == line), "{text}");
}
