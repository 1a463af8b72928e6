//! Changes of the controller clock.

use alustan_api::State;
use alustan_api::report::FailureClass;
use k8s_openapi::jiff::SignedDuration;

use crate::world::{Act, Stage, World};

/// A clock that was wrong for a while postpones nothing forever.
#[test]
fn a_clock_that_was_a_year_ahead_does_not_end_the_looks_for_drift() {
    let mut world = World::applied();
    let right = world.now;
    world.now = right + SignedDuration::from_hours(24 * 365);
    world.settle();
    world.now = right + SignedDuration::from_hours(2);
    world.real.drifted = true;
    for _ in 0..4 {
        world.settle();
        world.pass(3_600);
    }
    assert!(!world.real.drifted, "nobody looked for hours");
}

#[test]
fn a_failure_while_the_clock_was_a_year_ahead_is_tried_again_soon() {
    let mut world = World::new();
    let right = world.now;
    world.now = right + SignedDuration::from_hours(24 * 365);
    world.run_to(Stage::Planning);
    world.act(0, Act::Fail(FailureClass::Module));
    world.settle();
    assert_eq!(world.status().state, State::Failed);
    world.now = right;
    for _ in 0..3 {
        world.settle();
        world.pass(600);
    }
    assert!(world.is_ready(), "{:?}", world.status());
}
