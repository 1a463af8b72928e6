//! Rule 18: an idle resource causes no writes.

use super::changed_nothing;
use crate::world::{PodEvent, World};

#[test]
fn idle_resource_is_reconciled_without_writes() {
    let mut world = World::applied();
    let before = serde_json::to_string(&world.status()).unwrap();
    for _ in 0..20 {
        world.advance_clock(30);
        assert!(changed_nothing(&world.reconcile()));
        assert_eq!(serde_json::to_string(&world.status()).unwrap(), before);
    }
}

#[test]
fn controller_restart_leaves_status_unchanged() {
    let mut world = World::applied();
    let before = serde_json::to_string(&world.status()).unwrap();
    world.restart();
    for _ in 0..5 {
        assert!(changed_nothing(&world.reconcile()));
        assert_eq!(serde_json::to_string(&world.status()).unwrap(), before);
    }
}

#[test]
fn restart_leaves_status_unchanged_if_registry_refuses() {
    let mut world = World::new();
    world.registry_refuses = true;
    world.settle();
    assert!(world.is_stalled(), "{:?}", world.status());
    let before = serde_json::to_string(&world.status()).unwrap();
    world.restart();
    for _ in 0..8 {
        world.reconcile();
        assert_eq!(serde_json::to_string(&world.status()).unwrap(), before);
    }
    world.registry_refuses = false;
    world.advance_clock(3600).settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn idle_resource_has_about_one_run_per_hour() {
    let mut world = World::applied();
    let end = world.now + k8s_openapi::jiff::SignedDuration::from_hours(24);
    let (mut reconcile_count, mut writes) = (0, 0);
    while world.now < end {
        let reconciled = world.reconcile();
        reconcile_count += 1;
        assert!(
            reconcile_count <= 26 * 7,
            "{} runs by {}",
            world.run_number(),
            world.now
        );
        writes += reconciled.decision.steps.len();
        writes += reconciled
            .decision
            .start
            .map_or(0, |start| start.steps.len());
        let ran = world.advance_pod(0, PodEvent::Progress);
        if !(ran || reconciled.wrote) {
            world.now = reconciled
                .decision
                .requeue_at
                .expect("the next look for drift");
        }
    }
    assert!(world.run_number() <= 26, "{} runs", world.run_number());
    assert!(writes <= 26 * 12, "{writes} writes");
}

#[test]
fn stalled_resource_has_no_requeue_interval() {
    let mut world = World::until(|world| !world.builds.is_empty());
    world.advance_builds(Some(alustan_api::report::FailureClass::User));
    world.settle();
    assert!(world.is_stalled());
    world.advance_clock(1_000_000);
    let reconciled = world.reconcile();
    assert!(changed_nothing(&reconciled));
    assert_eq!(reconciled.decision.requeue_at, None);
}
