//! The clock of the controller jumps.

use alustan_api::State;
use alustan_api::report::FailureClass;
use k8s_openapi::jiff::SignedDuration;

use crate::world::{PodEvent, Stage, World};

/// The clock is a year ahead for one reconcile. Drift checks must not be postponed by a year.
#[test]
fn drift_checks_continue_after_clock_was_a_year_ahead() {
    let mut world = World::applied();
    let right = world.now;
    world.now = right + SignedDuration::from_hours(24 * 365);
    world.settle();
    world.now = right + SignedDuration::from_hours(2);
    world.real.drifted = true;
    for _ in 0..4 {
        world.settle();
        world.advance_clock(3_600);
    }
    assert!(!world.real.drifted, "nobody looked for hours");
}

#[test]
fn failure_while_clock_is_a_year_ahead_is_retried_soon() {
    let mut world = World::new();
    let right = world.now;
    world.now = right + SignedDuration::from_hours(24 * 365);
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.settle();
    assert_eq!(world.status().state, State::Failed);
    world.now = right;
    for _ in 0..3 {
        world.settle();
        world.advance_clock(600);
    }
    assert!(world.is_ready(), "{:?}", world.status());
}
