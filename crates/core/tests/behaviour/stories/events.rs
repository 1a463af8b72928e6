//! Kubernetes events for changes of conditions `Ready`, `InSync` and `SourceReady`.

use alustan_api::report::FailureClass;
use alustan_core::status::events::{Event, events};

use crate::fixtures::Edit as _;
use crate::world::{PodEvent, Stage, World};

/// Reconciles until nothing changes. Returns the events that the operator publishes.
fn emitted(world: &mut World) -> Vec<String> {
    let mut emitted = Vec::new();
    for _ in 0..40 {
        let before = world.tf().status.clone();
        let reconciled = world.reconcile();
        let after = world.status();
        emitted.extend(events(before.as_ref(), &after).iter().map(line));
        let built = world.advance_builds(None);
        if !(reconciled.wrote
            || built
            || world.advance_pod(0, PodEvent::Progress)
            || world.memory.query_started)
        {
            return emitted;
        }
        world.memory.query_started = false;
    }
    panic!("it does not come to rest: {:?}", world.status())
}

fn line(event: &Event) -> String {
    let kind = if event.warning { "Warning" } else { "Normal" };
    format!("{kind} {}", event.reason)
}

#[test]
fn first_apply_emits_building_running_and_applied() {
    assert_eq!(
        emitted(&mut World::new()),
        ["Normal Building", "Normal Running", "Normal Applied"]
    );
}

#[test]
fn idle_resource_and_clean_drift_check_emit_no_events() {
    let mut world = World::applied();
    assert!(emitted(&mut world).is_empty());
    let next = world.reconcile().decision.requeue_at.unwrap();
    world.now = next;
    assert!(emitted(&mut world).is_empty());
    assert_eq!(world.run_number(), 2);
}

#[test]
fn drift_and_its_correction_emit_one_event_each() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.now = world.reconcile().decision.requeue_at.unwrap();
    assert_eq!(emitted(&mut world), ["Normal Drifted", "Normal Applied"]);
}

#[test]
fn not_converging_is_emitted_once() {
    let mut world = World::applied();
    world.drifts_after_apply = true;
    world.real.drifted = true;
    let mut lines = Vec::new();
    for _ in 0..8 {
        let next = world.reconcile().decision.requeue_at;
        world.now = next.unwrap_or(world.now).max(world.now);
        lines.extend(emitted(&mut world));
    }
    let endless = lines.iter().filter(|line| line.ends_with(" NotConverging"));
    assert_eq!(endless.count(), 1, "{lines:?}");
}

#[test]
fn failure_emits_one_warning() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    let before = world.status();
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.reconcile();
    let emitted = events(Some(&before), &world.status());
    assert_eq!(
        emitted.iter().map(line).collect::<Vec<_>>(),
        ["Warning ApplyFailed"]
    );
    assert!(emitted[0].note.contains("terraform ended with exit code 1"));
    let before = world.status();
    world.reconcile();
    assert!(events(Some(&before), &world.status()).is_empty());
}

#[test]
fn repository_outage_emits_a_warning() {
    let mut world = World::applied();
    world.git_up = false;
    assert_eq!(emitted(&mut world), ["Warning RepositoryUnreachable"]);
}

#[test]
fn changed_spec_emits_running_and_applied() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    assert_eq!(emitted(&mut world), ["Normal Running", "Normal Applied"]);
}
