//! Rules 5 and 13: with `approval.destroy: Manual` nothing is destroyed without approval.

use alustan_api::report::RunResult;
use alustan_api::run::RunKind;
use alustan_api::{RECONCILE_AT, State};

use super::is_quiet;
use crate::fixtures::Edit as _;
use crate::world::{Act, Stage, World};

/// A deleted resource whose destroy plan waits for approval.
fn awaiting() -> World {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete().settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world
}

#[test]
fn a_plan_to_destroy_waits_for_a_person() {
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
    world.pass(86_400);
    assert!(is_quiet(&world.look_once()), "it waits without a write");
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
fn another_approval_destroys_nothing() {
    let mut world = awaiting();
    world.edit(|tf| tf.with("/approval/plan", "some-other-plan"));
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert!(!world.real.is_empty());
}

#[test]
fn the_plan_of_an_apply_is_no_plan_to_destroy() {
    let mut world = World::applied();
    world.edit(|tf| {
        tf.with("/approval/mode", "Manual")
            .with_variable("size", 1)
            .with("/approval/destroy", "Manual")
    });
    world.settle();
    assert!(world.approve(), "a plan to apply waits");
    world.delete().settle();
    world.goes_once_approved();
}

#[test]
fn a_plan_that_finds_nothing_to_destroy_is_the_end_of_it() {
    let mut world = awaiting();
    world.real = crate::world::Real::default();
    world.edit(|tf| tf.annotated(RECONCILE_AT, "look again"));
    world.settle();
    assert!(world.tf.is_none());
    let last = world.ledger.kinds.last();
    assert_eq!(last, Some(&(RunKind::Plan, RunResult::NoChanges)));
}

#[test]
fn what_changed_since_the_plan_asks_again() {
    let mut world = awaiting();
    world.approve();
    world.real.drifted = true;
    world.settle();
    world.goes_once_approved();
}

#[test]
fn an_approved_destroy_that_is_lost_half_way_asks_again() {
    let mut world = awaiting();
    world.approve();
    world.run_to(Stage::Applying);
    world.act(0, Act::Kill);
    world.run_until_rest();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.approve();
    world.run_until_rest();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn a_person_may_stop_asking() {
    let mut world = awaiting();
    world.edit(|tf| tf.with("/approval/destroy", "Auto"));
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn a_plan_to_destroy_waits_for_no_volume() {
    let mut world = World::applied();
    world.cache = alustan_core::observed::CacheSeen::Lost;
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete().settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
}
