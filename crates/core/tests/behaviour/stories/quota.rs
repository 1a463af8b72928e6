//! If a quota denies the creation of an object, the operator reports the denial, frees the slot of the run, and retries with a backoff
//! (rules 10 and 18).

use alustan_api::run::RunPhase;
use alustan_api::{Reason, State};
use alustan_core::observed::{BuildState, CacheSeen, Waiting};
use k8s_openapi::jiff::SignedDuration;

use super::step_names;
use crate::fixtures::Edit as _;
use crate::world::{Stage, World, condition};

impl World {
    /// Returns a simulated cluster with a new run whose Job a quota has denied.
    fn with_denied_job() -> Self {
        let mut world = Self::applied();
        world.cache = CacheSeen::Bound;
        world.quota_exhausted = true;
        world.edit(|tf| tf.with_variable("size", 1));
        let reconciled = world.reconcile();
        assert!(reconciled.started);
        assert!(!world.jobs.contains_key("web-apply-2"));
        world
    }
}

#[test]
fn run_with_denied_job_ends_and_costs_no_retry() {
    let mut world = World::with_denied_job();
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        ["SwapRecord Starting", "SwapReport cancel"]
    );
    assert_eq!(world.reason(), "QuotaRefused");
    world.reconcile();
    let record = world.record.as_ref().unwrap();
    assert_eq!(record.record.phase, RunPhase::Recorded, "its place is free");
    assert_eq!(
        (
            record.history.failures.count,
            record.history.failures.transient
        ),
        (0, 1)
    );
    let status = world.status();
    assert_eq!(
        (status.state, world.reason().as_str()),
        (State::Failed, "QuotaRefused")
    );
    assert_eq!(condition(&status, "Ready"), "False");
    for part in [
        "exceeded quota: small, requested: count/jobs.batch=1, used: count/jobs.batch=2",
        "this failure does not count towards the retry limit; next attempt at ",
        "see kubectl describe resourcequota,limitrange -n team",
    ] {
        assert!(
            status.message.contains(part),
            "no {part:?} in {}",
            status.message
        );
    }
    assert_eq!(status.runs[0].reason.as_deref(), Some("QuotaRefused"));
}

/// The schema does not contain all rules of Kubernetes for pods.
#[test]
fn run_whose_pod_options_are_invalid_names_their_field() {
    let mut world = World::with_denied_job();
    let (job, denial) = world.memory.denied_job.as_mut().unwrap();
    let message = format!("Job {job} is invalid: spec.template.spec.tolerations[0].operator");
    *denial = Waiting {
        reason: Reason::Rejected.into(),
        message,
    };
    world.reconcile();
    world.reconcile();
    let status = world.status();
    assert_eq!(world.reason(), "Rejected");
    for part in ["tolerations[0].operator", "spec.runner.pod"] {
        assert!(status.message.contains(part), "{}", status.message);
    }
}

/// The API server repeats refused values.
#[test]
fn long_denial_does_not_fill_the_run_record() {
    let mut world = World::with_denied_job();
    let (_, denial) = world.memory.denied_job.as_mut().unwrap();
    denial.message = "a".repeat(2 << 20);
    world.reconcile();
    world.reconcile();
    let record = world.record.as_ref().unwrap();
    assert_eq!(record.history.failures.transient, 1);
    let size = serde_json::to_string(&record.history).unwrap().len();
    assert!(size < 64 << 10, "{size} bytes");
}

#[test]
fn denied_run_is_retried_with_backoff_until_it_is_admitted() {
    let mut world = World::with_denied_job();
    let mut attempts = Vec::new();
    for _ in 0..8 {
        while !world.reconcile().started {
            let next = world.reconcile().decision.requeue_at;
            world.now = next.unwrap_or(world.now).max(world.now);
        }
        attempts.push(world.now);
    }
    let backoffs: Vec<_> = attempts
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]))
        .collect();
    assert!(backoffs.is_sorted(), "{backoffs:?}");
    assert!(backoffs[0] >= SignedDuration::from_secs(10), "{backoffs:?}");
    assert_eq!(*backoffs.last().unwrap(), SignedDuration::from_mins(10));
    world.quota_exhausted = false;
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn denied_run_ends_after_controller_restart() {
    let mut world = World::with_denied_job();
    world.restart();
    for _ in 0..5 {
        world.reconcile();
    }
    let record = &world.record.as_ref().unwrap().record;
    assert_eq!((record.number, record.phase), (2, RunPhase::Recorded));
}

#[test]
fn denied_destroy_is_reported_and_retried() {
    let mut world = World::applied();
    world.quota_exhausted = true;
    world.delete();
    for _ in 0..3 {
        world.reconcile();
    }
    assert_eq!(world.reason(), "QuotaRefused");
    assert!(!world.real.is_empty());
    world.quota_exhausted = false;
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn run_with_denied_pod_ends_after_30_seconds() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    world.pods.clear();
    world.quota_exhausted = true;
    for job in world.jobs.values_mut() {
        job.pod_created = false;
    }
    world.advance_clock(29).reconcile();
    assert_eq!(world.reason(), "QuotaRefused");
    assert!(world.jobs.contains_key("web-apply-1"));
    world.advance_clock(1).reconcile();
    assert!(!world.jobs.contains_key("web-apply-1"));
    world.reconcile();
    assert_eq!(
        world.record.as_ref().unwrap().record.phase,
        RunPhase::Recorded
    );
    assert_eq!(world.reason(), "QuotaRefused");
}

#[test]
fn denied_build_is_reported_and_retried() {
    let mut world = World::until(|world| !world.builds.is_empty());
    let waiting = alustan_core::model::admission::no_pod(
        r#"Error creating: pods "b-x" is forbidden: exceeded quota: small, requested: pods=1"#,
    );
    for build in world.builds.values_mut() {
        build.state = BuildState::Active(Some(waiting.clone()));
    }
    world.reconcile();
    assert_eq!(world.reason(), "QuotaRefused");
    world.advance_clock(30).reconcile();
    let status = world.status();
    assert!(
        status.message.contains("does not count towards"),
        "{}",
        status.message
    );
    world.run_until_converged();
    assert!(world.is_ready());
}
