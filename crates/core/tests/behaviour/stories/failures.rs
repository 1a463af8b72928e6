//! Rule 10: a failure counts against the retry limit, except a transient failure.

use alustan_api::conditions::Convergence;
use alustan_api::report::{Failure, FailureClass, RunResult};
use alustan_api::run::RunKind;
use alustan_api::{RECONCILE_AT, State};
use alustan_core::model::summary;
use k8s_openapi::jiff::SignedDuration;
use rstest::rstest;

use super::changed_nothing;
use crate::fixtures::{Edit as _, at};
use crate::world::{PodEvent, Stage, World};

impl World {
    /// Makes the current run fail at `stage`, and ends its pod.
    pub(super) fn fail_at(&mut self, stage: Stage, class: FailureClass) -> &mut Self {
        self.run_to(stage);
        self.advance_pod(0, PodEvent::Fail(class));
        self.reconcile();
        self.advance_pod(0, PodEvent::Progress);
        self.reconcile();
        self
    }

    /// Makes the next build fail.
    fn fail_build(&mut self, class: FailureClass) -> &mut Self {
        for _ in 0..20 {
            self.reconcile();
            if self.advance_builds(Some(class)) {
                self.reconcile();
                return self;
            }
        }
        panic!("no build: {:?}", self.status())
    }

    pub(super) fn request_run(&mut self) -> &mut Self {
        let now = self.now.to_string();
        self.edit(|tf| tf.annotated(RECONCILE_AT, &now))
    }
}

#[test]
fn module_failures_are_retried_until_budget_is_used_up() {
    let mut world = World::new();
    world.fail_at(Stage::Applying, FailureClass::Module);
    let status = world.status();
    assert_eq!(
        (status.state, world.reason().as_str()),
        (State::Failed, "ApplyFailed")
    );
    assert!(
        status
            .message
            .contains("failure 1 of 2; next attempt at 2026-01-01T00:00:10Z")
    );
    assert!(
        status
            .message
            .contains("see kubectl logs -n team job/web-apply-1")
    );
    assert_eq!(status.retry.unwrap().next_at.unwrap().0, at(10));
    assert!(changed_nothing(&world.reconcile()), "not before its time");
    world
        .advance_clock(10)
        .fail_at(Stage::Applying, FailureClass::Module);
    assert_eq!(world.last_run().1, "retry 1");
    assert!(world.is_stalled());
    let message = world.status().message;
    assert!(
        message.contains("kubectl annotate tf web -n team --overwrite"),
        "{message}"
    );
    world.advance_clock(100_000);
    assert!(changed_nothing(&world.reconcile()), "stalled is stalled");
}

/// The module forges an impossible run result. The operator must count it as a failure against the retry limit. Otherwise, it would start
/// the same run again at once, in a loop.
#[rstest]
#[case::changes_without_a_plan(RunResult::Changes)]
#[case::cancelled_by_itself(RunResult::Cancelled)]
fn impossible_result_of_a_run_costs_a_retry(#[case] result: RunResult) {
    let mut world = World::new();
    for number in 1..=2 {
        world.run_to(Stage::Applying);
        world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
        let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
        report.result = result;
        report.failure = None;
        world.reconcile();
        assert_eq!(world.reason(), "ReportInvalid");
        assert!(changed_nothing(&world.reconcile()), "not before its time");
        assert_eq!(world.run_number(), number);
        world.advance_clock(600);
    }
    assert!(world.is_stalled());
}

#[test]
fn budget_outlasts_restarts_and_an_edit_of_the_backoff() {
    let mut world = World::new();
    for failures in 1..=2 {
        world.fail_at(Stage::Applying, FailureClass::Module);
        world.restart().reconcile();
        assert_eq!(world.status().retry.unwrap().failures, failures);
        assert_eq!(world.is_stalled(), failures == 2);
        world.advance_clock(600);
    }
    assert!(
        world.status().message.contains("reached (failures: 2)"),
        "{}",
        world.status().message
    );
    world.edit(|tf| tf.with("/retry/maxBackoff", "6s")).settle();
    assert!(world.is_stalled());
    assert_eq!(world.run_number(), 2);
}

#[test]
fn transient_failures_use_no_budget_and_back_off() {
    let mut world = World::new();
    let mut backoffs = Vec::new();
    for _ in 0..9 {
        world.fail_at(Stage::Planning, FailureClass::Transient);
        assert_eq!(world.status().state, State::Failed);
        let next = world.status().retry.unwrap().next_at.unwrap().0;
        backoffs.push(next.duration_since(world.now).as_secs());
        world.now = next;
    }
    assert_eq!(backoffs, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    assert_eq!(world.status().retry.unwrap().failures, 0);
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn user_failure_is_not_retried() {
    let mut world = World::new();
    world.fail_at(Stage::Planning, FailureClass::User);
    assert!(world.is_stalled());
    assert!(world.status().message.contains("not retried"));
    assert_eq!(world.status().retry.unwrap().failures, 1);
}

#[test]
fn success_resets_the_failure_count() {
    let mut world = World::new();
    world
        .fail_at(Stage::Applying, FailureClass::Module)
        .advance_clock(10)
        .settle();
    assert!(world.is_ready());
    assert!(world.status().retry.is_none());
    world.edit(|tf| tf.with_variable("size", 1));
    world.fail_at(Stage::Applying, FailureClass::Module);
    assert_eq!(world.status().retry.unwrap().failures, 1);
}

#[test]
fn stalled_resource_is_retried_on_request() {
    let mut world = World::new();
    world
        .fail_at(Stage::Planning, FailureClass::User)
        .request_run()
        .settle();
    assert!(world.is_ready());
    assert_eq!(world.last_run().1, "requested");
}

#[test]
fn request_resets_the_retry_budget() {
    let mut world = World::new();
    world
        .fail_at(Stage::Planning, FailureClass::User)
        .request_run();
    world.fail_at(Stage::Planning, FailureClass::Module);
    assert_eq!(world.status().retry.unwrap().failures, 1);
    assert!(!world.is_stalled());
}

#[test]
fn changed_spec_resets_the_retry_budget() {
    let mut world = World::new();
    world.fail_at(Stage::Planning, FailureClass::User);
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert!(world.is_ready());
}

#[rstest]
#[case::before_it_began(Stage::Created, "PodTerminated", "the run had not started")]
#[case::while_planning(Stage::Planning, "PodTerminated", "the run had not changed any object")]
#[case::while_applying(Stage::Applying, "Interrupted", "the run was applying")]
fn lost_run_is_retried(#[case] stage: Stage, #[case] reason: &str, #[case] text: &str) {
    let mut world = World::new();
    world.run_to(stage);
    world.advance_pod(0, PodEvent::Kill);
    world.reconcile();
    assert_eq!(world.reason(), reason);
    assert!(
        world.status().message.contains(text),
        "{}",
        world.status().message
    );
    assert!(world.status().message.contains("does not count towards"));
    world.advance_clock(10).settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 2);
}

#[test]
fn job_deleted_before_it_starts_is_recreated() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    world.delete_job("web-apply-1");
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn pod_of_a_deleted_job_completes_its_run() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete_job("web-apply-1");
    for _ in 0..3 {
        assert!(changed_nothing(&world.reconcile()) || world.status().state == State::Applying);
    }
    assert_eq!(world.run_number(), 1);
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn revert_after_partial_apply_is_applied() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.fail_at(Stage::Applying, FailureClass::Module);
    world.edit(|tf| tf.with_variable("size", 0));
    world.reconcile();
    assert!(
        !world.is_ready(),
        "what was applied before is not there any more"
    );
    world.settle();
    assert_eq!(world.last_run(), (RunKind::Apply, "spec".to_owned()));
    assert!(world.is_ready() && !world.real.partial);
}

#[test]
fn a_revert_after_a_failed_build_needs_no_run() {
    let mut world = World::applied();
    world.commit(1).fail_build(FailureClass::Module);
    world.commit(0).settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
    assert!(world.status().retry.is_none());
}

#[test]
fn failed_build_counts_once_across_reconciles() {
    let mut world = World::new();
    world.fail_build(FailureClass::Module);
    assert!(changed_nothing(&world.reconcile()));
    assert_eq!(world.status().retry.unwrap().failures, 1);
    assert!(
        world
            .status()
            .message
            .contains("kubectl logs -n team job/alustan-build-")
    );
    world.advance_clock(10).fail_build(FailureClass::Module);
    assert!(world.is_stalled());
    world.expire_builds();
    assert!(
        world.reconcile().decision.steps.is_empty(),
        "also when its Job is swept away"
    );
    assert!(world.is_stalled());
}

#[test]
fn stalled_build_is_retried_on_request() {
    let mut world = World::new();
    world.fail_build(FailureClass::User);
    assert!(world.is_stalled());
    world.request_run().settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn build_with_transient_failure_is_retried() {
    let mut world = World::new();
    for _ in 0..4 {
        world.fail_build(FailureClass::Transient);
        assert_eq!(world.status().state, State::Failed);
        world.now = world.status().retry.unwrap().next_at.unwrap().0;
    }
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn repository_outage_is_polled_without_status_changes() {
    let mut world = World::new();
    world.git_up = false;
    world.reconcile();
    world.reconcile();
    world.reconcile();
    assert_eq!(world.reason(), "RepositoryUnreachable");
    let first = world.status();
    assert!(first.message.contains("next attempt within a minute"));
    world.advance_clock(60);
    assert_eq!(world.reconcile().decision.requeue_at, Some(at(120)));
    assert_eq!(world.status(), first);
}

#[test]
fn repository_outage_leaves_ready_true() {
    let mut world = World::applied();
    world.git_up = false;
    assert!(world.reconcile().decision.start.is_none());
    assert!(world.is_ready());
    assert_eq!(
        crate::world::condition(&world.status(), "SourceReady"),
        "False"
    );
}

#[test]
fn message_of_user_failure_is_the_same_after_each_query() {
    let failure = Failure {
        class: FailureClass::User,
        reason: "BranchNotFound".to_owned(),
        message: "branch `nope` does not exist".to_owned(),
    };
    let situation = summary::query_failure(&failure, at(60), at(0));
    assert!(situation.convergence == Convergence::Stalled && situation.retry_at.is_none());
    assert!(situation.message.ends_with("once this is fixed"));
    assert_eq!(situation, summary::query_failure(&failure, at(120), at(0)));
}

/// Rule 10: git and the registry are down for one hour. The outage must not stall the resource, whatever phase the resource is in when the
/// outage begins.
#[rstest]
#[case::before_anything(World::new())]
#[case::during_the_build(World::until(|world| !world.builds.is_empty()))]
#[case::during_the_run(World::until(|world| !world.pods.is_empty()))]
#[case::at_rest(World::applied())]
fn resource_converges_after_hour_without_git_and_registry(#[case] mut world: World) {
    (world.git_up, world.registry_up) = (false, false);
    let end = world.now + SignedDuration::from_hours(1);
    let mut reconcile_count = 0;
    while world.now < end {
        world.memory.query_started = false;
        let reconciled = world.reconcile();
        reconcile_count += 1;
        assert!(!world.is_stalled(), "{:?}", world.status());
        world.advance_builds(Some(FailureClass::Transient));
        if !world.advance_pod(0, PodEvent::Fail(FailureClass::Transient)) && !reconciled.wrote {
            world.now = reconciled.decision.requeue_at.unwrap_or(end).max(world.now);
        }
    }
    assert!(reconcile_count < 400, "{reconcile_count} looks in an hour");
    (world.git_up, world.registry_up) = (true, true);
    world.commit(1);
    let rest = world.run_until_converged();
    assert!(!rest.stalled);
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.real.config, Some(world.wanted_now()));
    assert_eq!(world.status().retry, None);
}
