//! A user changes the spec during a run: the latest spec takes effect as soon as possible.

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::RunKind;
use alustan_api::{Reason, State};
use rstest::rstest;
use serde_json::{Value, json};

use super::step_names;
use crate::fixtures::Edit as _;
use crate::world::{PodEvent, ReconcileFaults, Stage, World};

/// Rules 5 and 6: a user edits the spec to require approval while the run is planning. The plan must wait for approval.
#[rstest]
#[case::approval("/approval/mode", json!("Manual"))]
#[case::rules("/approval/rules", json!([{ "when": "plan.change > 0", "then": "Ask" }]))]
fn approval_required_during_plan_is_requested(#[case] field: &str, #[case] value: Value) {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.with(field, value));
    world.settle();
    assert!(world.real.is_empty(), "applied, and nobody was asked");
    assert_eq!(world.status().state, State::AwaitingApproval);
    let results: Vec<_> = world
        .ledger
        .kinds
        .iter()
        .map(|(_, result)| *result)
        .collect();
    assert_eq!(results, [RunResult::Cancelled, RunResult::Changes]);
    world.approve();
    world.settle();
    assert!(world.is_ready() && !world.real.is_empty());
}

#[test]
fn approval_required_during_destroy_plan_is_requested() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Planning);
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.settle();
    world.is_destroyed_once_approved();
}

#[test]
fn apply_is_not_interrupted_by_required_approval() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn drift_check_continues_once_approval_is_required() {
    let mut world = World::applied();
    world.reconcile_after_requeue();
    world.run_to(Stage::Planning);
    assert_eq!(world.last_run().0, RunKind::Drift);
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.settle();
    assert_eq!(world.ledger.kinds.last().unwrap().1, RunResult::NoChanges);
    assert!(world.is_ready());
}

#[test]
fn resource_deleted_after_approval_is_destroyed() {
    for stage in [Stage::Created, Stage::Planning, Stage::Applying] {
        let mut world = World::awaiting();
        world.approve();
        world.run_to(stage);
        world.delete().run_until_converged();
        assert!(world.tf.is_none() && world.real.is_empty());
    }
}

#[test]
fn approved_destroy_stops_on_suspend_or_protection() {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete().settle();
    world.edit(|tf| tf.with("/suspend", true));
    world.settle();
    assert_eq!(world.reason(), "Suspended");
    world.edit(|tf| tf.with("/suspend", false));
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.approve();
    world.run_to(Stage::Planning);
    world.set_deletion_protection(true);
    world.settle();
    assert_eq!(world.reason(), "DeletionProtected");
    assert!(!world.real.is_empty());
    world.set_orphan(true);
    world.set_deletion_protection(false);
    world.settle();
    assert!(world.tf.is_none() && !world.real.is_empty());
}

#[test]
fn each_retry_of_partial_destroy_needs_approval() {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete().settle();
    for _ in 0..3 {
        assert!(world.approve(), "{:?}", world.status());
        world.run_to(Stage::Applying);
        world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
        world.run_until_converged();
        assert_eq!(
            world.status().state,
            State::AwaitingApproval,
            "{:?}",
            world.status()
        );
        assert!(!world.real.is_empty());
    }
}

#[test]
fn approved_destroy_completes_after_crash_at_any_write() {
    for at in 0..14 {
        for stale in [None, Some(1), Some(2), Some(3)] {
            let mut world = World::applied();
            world.edit(|tf| tf.with("/approval/destroy", "Manual"));
            world.delete().settle();
            world.reconcile_with(ReconcileFaults {
                stale,
                crash: Some(at),
            });
            world.approve();
            for n in 0..60 {
                if world.tf.is_none() {
                    break;
                }
                world.reconcile_with(ReconcileFaults {
                    stale: stale.filter(|_| n % 3 == 0),
                    crash: (n % 2 == 0).then_some(at % 5),
                });
                world.advance_pod(0, PodEvent::Progress);
                world.advance_clock(10);
            }
            if world.tf.is_some() {
                world.run_until_converged();
            }
            assert!(
                world.tf.is_none() && world.real.is_empty(),
                "{at} {stale:?} {:?}",
                world.status()
            );
        }
    }
}

#[test]
fn changed_spec_replaces_a_run_whose_job_cannot_be_created() {
    let mut world = World::applied();
    world.refuses_jobs = Some(Reason::ApiError);
    world.edit(|tf| tf.with_variable("size", 1));
    assert!(world.reconcile().started);
    world.edit(|tf| tf.with_variable("size", 2));
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        ["SwapRecord Starting", "SwapReport cancel"]
    );
    world.refuses_jobs = None;
    world.settle();
    assert_eq!(world.run_number(), 3);
    assert_eq!(world.real.config, Some(world.wanted_now()));
}
