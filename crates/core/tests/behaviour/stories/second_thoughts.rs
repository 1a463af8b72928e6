//! People change their minds while something goes on: what they said last counts as soon as it can.

use alustan_api::State;
use alustan_api::report::RunResult;
use alustan_api::run::RunKind;
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::Edit as _;
use crate::world::{Stage, World};

/// Rules 5 and 6: who has a say is asked, also where they got it only while the run planned.
#[rstest]
#[case::approval("/approval/mode", json!("Manual"))]
#[case::rules("/approval/rules", json!([{ "when": "plan.change > 0", "then": "Ask" }]))]
fn who_gets_a_say_while_a_run_plans_is_asked(#[case] field: &str, #[case] value: Value) {
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
fn who_gets_a_say_while_a_destroy_plans_is_asked() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Planning);
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.settle();
    assert!(!world.real.is_empty(), "destroyed, and nobody was asked");
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.approve();
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn a_run_that_applies_is_not_cut_short_for_who_gets_a_say() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn a_look_for_drift_goes_on_whoever_gets_a_say() {
    let mut world = World::applied();
    world.next_look();
    world.run_to(Stage::Planning);
    assert_eq!(world.last_run().0, RunKind::Drift);
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.settle();
    assert_eq!(world.ledger.kinds.last().unwrap().1, RunResult::NoChanges);
    assert!(world.is_ready());
}
