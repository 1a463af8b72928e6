//! Rules 5 and 13: with `approval.destroy: Manual`, the operator destroys nothing without approval.

use alustan_api::report::RunResult;
use alustan_api::run::RunKind;
use alustan_api::{RECONCILE_AT, State};

use super::changed_nothing;
use crate::fixtures::Edit as _;
use crate::world::{PodEvent, Stage, World};

/// Returns a simulated cluster with a deleted resource whose destroy plan waits for approval.
fn awaiting() -> World {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete().settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world
}

#[test]
fn destroy_plan_waits_for_approval() {
    let mut world = awaiting();
    let record = world.record.clone().unwrap().record;
    let run = record.run.unwrap();
    assert_eq!((run.kind, run.destroys), (RunKind::Plan, true));
    assert!(!world.real.is_empty());
    let status = world.status();
    let plan = status.plan.unwrap();
    assert!(plan.pending_approval);
    let id = plan.id.unwrap();
    for part in [
        &format!("plan {id} waits for approval"),
        &format!(r#"-p '{{"spec":{{"approval":{{"plan":"{id}"}}}}}}'"#),
        "alustan.io/abandon=true",
    ] {
        let message = &status.message;
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    world.advance_clock(86_400);
    assert!(
        changed_nothing(&world.reconcile()),
        "it waits without a write"
    );
    world.approve();
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
    let kinds = world.ledger.kinds;
    assert_eq!(
        kinds[1..],
        [
            (RunKind::Plan, RunResult::Changes),
            (RunKind::Destroy, RunResult::Done)
        ]
    );
}

#[test]
fn approval_of_another_plan_destroys_nothing() {
    let mut world = awaiting();
    world.edit(|tf| tf.with("/approval/plan", "some-other-plan"));
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert!(!world.real.is_empty());
}

#[test]
fn approval_of_apply_plan_does_not_approve_destroy() {
    let mut world = World::applied();
    world.edit(|tf| {
        tf.with("/approval/mode", "Manual")
            .with_variable("size", 1)
            .with("/approval/destroy", "Manual")
    });
    world.settle();
    assert!(world.approve(), "a plan to apply waits");
    world.delete().settle();
    world.is_destroyed_once_approved();
}

#[test]
fn destroy_plan_without_objects_releases_resource() {
    let mut world = awaiting();
    world.real = crate::world::Real::default();
    world.edit(|tf| tf.annotated(RECONCILE_AT, "look again"));
    world.settle();
    assert!(world.tf.is_none());
    let last = world.ledger.kinds.last();
    assert_eq!(last, Some(&(RunKind::Plan, RunResult::NoChanges)));
}

#[test]
fn destroy_after_drift_needs_new_approval() {
    let mut world = awaiting();
    world.approve();
    world.real.drifted = true;
    world.settle();
    world.is_destroyed_once_approved();
}

#[test]
fn interrupted_destroy_needs_new_approval() {
    let mut world = awaiting();
    world.approve();
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Kill);
    world.run_until_converged();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.approve();
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_runs_after_switch_to_auto_mode() {
    let mut world = awaiting();
    world.edit(|tf| tf.with("/approval/destroy", "Auto"));
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_plan_does_not_wait_for_lost_volume() {
    let mut world = World::applied();
    world.cache = alustan_core::observed::CacheSeen::Lost;
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete().settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
}
