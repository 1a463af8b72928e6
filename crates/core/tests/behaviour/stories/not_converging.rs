//! Rule 7: corrections do not converge, because the same drift occurs again after each correction.

use alustan_api::report::FailureClass;
use alustan_api::run::RunKind;

use crate::fixtures::Edit as _;
use crate::world::{PodEvent, Stage, World};

/// Rule 7: the operator must report that corrections do not converge, even if the first attempt of each correction fails.
#[test]
fn not_converging_is_reported_if_each_correction_is_retried() {
    let mut world = World::applied();
    world.drifts_after_apply = true;
    world.real.drifted = true;
    for _ in 0..4 {
        world.now = world.settle().unwrap_or(world.now).max(world.now);
        world.reconcile();
        for _ in 0..20 {
            if world.reason() == "NotConverging" {
                break;
            }
            world.reconcile();
            world.spawn();
            let planning = world
                .pods
                .last()
                .is_some_and(|pod| pod.stage == Stage::Planning);
            let first = world.last_run() == (RunKind::Apply, "drift".to_owned());
            let event = if planning && first {
                PodEvent::Fail(FailureClass::Transient)
            } else {
                PodEvent::Progress
            };
            if !world.advance_pod(0, event) {
                world.advance_clock(10);
            }
        }
    }
    assert_eq!(world.reason(), "NotConverging", "{:?}", world.ledger.kinds);
}

/// Rule 7: the operator must report that corrections do not converge, even if a user has approved each correction.
#[test]
fn not_converging_is_reported_if_each_correction_is_approved() {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.settle();
    world.drifts_after_apply = true;
    world.real.drifted = true;
    for _ in 0..3 {
        world.now = world.settle().unwrap_or(world.now).max(world.now);
        world.settle();
        world.approve();
        world.settle();
    }
    assert_eq!(world.reason(), "NotConverging", "{:?}", world.ledger.kinds);
}
