//! Property tests: for random sequences of events and faults, the rules hold, and the resource converges once the faults end.

use alustan_api::report::FailureClass;
use alustan_api::{CANCEL_RUN, Mode, PLAN_AT, RECONCILE_AT, Terraform};
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngAlgorithm, TestRunner};
use serde_json::json;

use super::pods::PodEvent;
use super::simulation::Simulation;
use crate::memory_cluster::Fault;

#[derive(Clone, Debug)]
enum Event {
    Pod(u8, PodEvent),
    EndBuilds(bool),
    DeleteJobs,
    ImagesVanish,
    Commit(u8),
    Git(bool),
    Registry(bool),
    Size(u8),
    ApprovalMode(&'static str),
    DriftMode(&'static str),
    Approve,
    Suspend(bool),
    Drift,
    RequestRun(u8),
    PlanOnly(bool),
    RequestPlan(u8),
    CancelRun(u8),
    Delete,
    Restart,
    DenyJobs(bool),
    Clock(i64),
}

/// What the operator does after an event.
#[derive(Clone, Copy, Debug)]
enum After {
    Nothing,
    Reconciles(u8),
    ReconcilesWithStaleCaches(u8),
    ReconcileWith(Fault),
}

fn event() -> impl Strategy<Value = Event> {
    let class = prop_oneof![
        3 => Just(FailureClass::Module),
        2 => Just(FailureClass::Transient),
        1 => Just(FailureClass::User),
    ];
    let pod_event = prop_oneof![
        30 => Just(PodEvent::Progress),
        8 => class.prop_map(PodEvent::Fail),
        8 => Just(PodEvent::Kill),
    ];
    let drift = prop_oneof![Just("Correct"), Just("Report"), Just("Ignore")];
    prop_oneof![
        46 => (any::<u8>(), pod_event).prop_map(|(index, event)| Event::Pod(index, event)),
        10 => prop::bool::weighted(0.7).prop_map(Event::EndBuilds),
        2 => Just(Event::DeleteJobs),
        1 => Just(Event::ImagesVanish),
        4 => (0..3_u8).prop_map(Event::Commit),
        1 => any::<bool>().prop_map(Event::Git),
        2 => any::<bool>().prop_map(Event::Registry),
        5 => (0..3_u8).prop_map(Event::Size),
        3 => prop_oneof![3 => Just("Manual"), 1 => Just("Auto")].prop_map(Event::ApprovalMode),
        2 => drift.prop_map(Event::DriftMode),
        6 => Just(Event::Approve),
        3 => prop::bool::weighted(0.4).prop_map(Event::Suspend),
        3 => Just(Event::Drift),
        2 => (0..4_u8).prop_map(Event::RequestRun),
        3 => any::<bool>().prop_map(Event::PlanOnly),
        3 => (0..4_u8).prop_map(Event::RequestPlan),
        4 => (1..5_u8).prop_map(Event::CancelRun),
        3 => Just(Event::Delete),
        2 => Just(Event::Restart),
        2 => any::<bool>().prop_map(Event::DenyJobs),
        8 => prop_oneof![6 => 1..120_i64, 4 => 600..7_200_i64].prop_map(Event::Clock),
    ]
}

fn after() -> impl Strategy<Value = After> {
    let fault = (0..3, 0..14_usize).prop_map(|(kind, write)| match kind {
        0 => Fault::Crash(write),
        1 => Fault::LostResponse(write),
        _ => Fault::Conflict(write),
    });
    prop_oneof![
        3 => Just(After::Nothing),
        12 => (1..4_u8).prop_map(After::Reconciles),
        2 => (1..3_u8).prop_map(After::ReconcilesWithStaleCaches),
        4 => fault.prop_map(After::ReconcileWith),
    ]
}

impl Simulation {
    async fn apply_event(&mut self, event: &Event) {
        match *event {
            Event::Pod(index, event) => drop(self.advance_pod(index.into(), event)),
            Event::EndBuilds(succeed) => drop(self.end_builds(succeed)),
            Event::DeleteJobs => self.cluster.delete_all("jobs"),
            Event::ImagesVanish => self.change_remote(|remote| remote.images.clear()),
            Event::Commit(commit) => self.change_remote(|remote| remote.commit = commit),
            Event::Git(is_up) => self.change_remote(|remote| remote.is_git_down = !is_up),
            Event::Registry(is_up) => self.change_remote(|remote| remote.is_registry_down = !is_up),
            Event::Size(size) => self.edit(&json!({"variables": {"size": size}})),
            Event::ApprovalMode(mode) => self.edit(&json!({"approval": {"mode": mode}})),
            Event::DriftMode(mode) => self.edit(&json!({"driftDetection": {"mode": mode}})),
            Event::Approve => drop(self.approve()),
            Event::Suspend(suspend) => self.edit(&json!({"suspend": suspend})),
            Event::Drift => self.pods.real.has_drifted |= self.pods.real.config.is_some(),
            Event::RequestRun(value) => self.annotate(RECONCILE_AT, &value.to_string()),
            Event::PlanOnly(is_set) => {
                let mode = if is_set { "PlanOnly" } else { "Apply" };
                self.edit(&json!({ "mode": mode }));
            }
            Event::RequestPlan(value) => self.annotate(PLAN_AT, &value.to_string()),
            Event::CancelRun(number) => self.annotate(CANCEL_RUN, &number.to_string()),
            Event::Delete if self.resource().is_some() => self.cluster.delete("terraforms", "web"),
            Event::Delete => {}
            Event::Restart => self.restart().await,
            Event::DenyJobs(deny) => self.cluster.deny_jobs(deny),
            Event::Clock(seconds) => {
                let time = SignedDuration::from_secs(seconds);
                self.cluster.advance_clock(time);
            }
        }
    }

    fn annotate(&self, annotation: &str, value: &str) {
        if self.resource().is_some() {
            let change = json!({"metadata": {"annotations": {annotation: value}}});
            self.cluster.merge("terraforms", "web", &change);
        }
    }

    async fn reconcile_after(&mut self, after: After) {
        match after {
            After::Nothing => {}
            After::Reconciles(count) => {
                for _ in 0..count {
                    self.reconcile().await;
                }
            }
            After::ReconcilesWithStaleCaches(count) => {
                for _ in 0..count {
                    self.reconcile_with_stale_caches().await;
                }
            }
            After::ReconcileWith(fault) => {
                self.cluster.inject(Some(fault));
                self.reconcile().await;
                self.cluster.inject(None);
            }
        }
    }

    /// Asserts that a resource with `spec.mode: PlanOnly` becomes Ready without an apply, and plans on request. Its deletion ends or waits.
    async fn assert_plans(&mut self) {
        let is_deleted = |tf: &Terraform| tf.metadata.deletion_timestamp.is_some();
        let is_planned = |simulation: &Self| match simulation.resource() {
            Some(tf) if !is_deleted(&tf) => simulation.has_condition("Ready"),
            Some(_) => simulation.has_condition("Stalled"),
            None => true,
        };
        self.run_until(is_planned, "with mode PlanOnly").await;
        if self.resource().is_none_or(|tf| is_deleted(&tf)) {
            return;
        }
        let real = self.pods.real.clone();
        self.annotate(PLAN_AT, "after the faults");
        let has_ended = |simulation: &Self| {
            let status = simulation.resource().and_then(|tf| tf.status);
            let mut runs = status.into_iter().flat_map(|status| status.runs);
            runs.any(|run| run.trigger == "plan requested after the faults")
        };
        self.run_until(has_ended, "a requested plan").await;
        assert_eq!(self.pods.real, real);
    }

    /// Ends all faults. Asserts that the wanted configuration is applied, or that the deleted resource is destroyed, and that the operator
    /// then writes nothing.
    async fn assert_converges(&mut self) {
        self.cluster.deny_jobs(false);
        self.change_remote(|remote| (remote.is_git_down, remote.is_registry_down) = (false, false));
        self.edit(&json!({"suspend": false, "approval": {"mode": "Auto"}}));
        self.annotate(RECONCILE_AT, "after the faults");
        if self
            .resource()
            .is_some_and(|tf| tf.spec.mode == Mode::PlanOnly)
        {
            self.assert_plans().await;
            self.edit(&json!({"mode": "Apply"}));
            self.annotate(RECONCILE_AT, "after the plans");
        }
        let is_settled = |simulation: &Self| match simulation.resource() {
            Some(tf) if tf.metadata.deletion_timestamp.is_none() => {
                let is_wanted = simulation.pods.real.config == simulation.wanted();
                simulation.has_condition("Ready") && is_wanted
            }
            Some(_) => false,
            None => true,
        };
        self.run_until(is_settled, "after the faults").await;
        if self.resource().is_none() {
            self.assert_nothing_left();
            return;
        }
        assert!(!self.pods.real.is_partial, "{:?}", self.pods.real);
        self.reconcile().await;
        self.reconcile().await;
        let version = self.cluster.version();
        self.reconcile().await;
        let status = self.resource().map(|tf| tf.status);
        assert_eq!(self.cluster.version(), version, "not idle: {status:#?}");
    }
}

async fn run_story(events: &[(Event, After)]) {
    let mut simulation = Simulation::new().await;
    for (event, after) in events {
        simulation.apply_event(event).await;
        simulation.reconcile_after(*after).await;
    }
    simulation.assert_converges().await;
}

/// Runs `PROPTEST_CASES` cases, by default 60. proptest minimises a failing case and stores it in `proptest-regressions`.
#[test]
fn whatever_happens_the_operator_converges() {
    let config = ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(60, |cases| cases.parse().unwrap()),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/stories.txt",
        ))),
        max_shrink_iters: 300,
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    };
    let stories = prop::collection::vec((event(), after()), 1..40);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let result = TestRunner::new(config).run(&stories, |events| {
        runtime.block_on(Box::pin(run_story(&events)));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
