//! Events: one for each change of a watched condition.

use alustan_api::report::FailureClass;
use alustan_core::status::events::{Event, events};

use crate::fixtures::Edit as _;
use crate::world::{Act, Stage, World};

/// Reconciles until the world is idle. Returns the events that the operator publishes.
fn emitted(world: &mut World) -> Vec<String> {
    let mut emitted = Vec::new();
    for _ in 0..40 {
        let before = world.tf().status.clone();
        let looked = world.look_once();
        let after = world.status();
        emitted.extend(events(before.as_ref(), &after).iter().map(line));
        let built = world.advance_builds(None);
        if !(looked.wrote || built || world.act(0, Act::Progress) || world.memory.asked) {
            return emitted;
        }
        world.memory.asked = false;
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
    let next = world.look_once().decision.requeue_at.unwrap();
    world.now = next;
    assert!(emitted(&mut world).is_empty());
    assert_eq!(world.run_number(), 2);
}

#[test]
fn drift_and_its_correction_emit_one_event_each() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.now = world.look_once().decision.requeue_at.unwrap();
    assert_eq!(emitted(&mut world), ["Normal Drifted", "Normal Applied"]);
}

#[test]
fn not_converging_is_emitted_once() {
    let mut world = World::applied();
    world.unsteady = true;
    world.real.drifted = true;
    let mut all = Vec::new();
    for _ in 0..8 {
        let next = world.look_once().decision.requeue_at;
        world.now = next.unwrap_or(world.now).max(world.now);
        all.extend(emitted(&mut world));
    }
    let endless = all.iter().filter(|line| line.ends_with(" NotConverging"));
    assert_eq!(endless.count(), 1, "{all:?}");
}

#[test]
fn failure_emits_one_warning() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    let before = world.status();
    world.act(0, Act::Fail(FailureClass::Transient));
    world.look_once();
    let told = events(Some(&before), &world.status());
    assert_eq!(
        told.iter().map(line).collect::<Vec<_>>(),
        ["Warning ApplyFailed"]
    );
    assert!(told[0].note.contains("terraform ended with exit code 1"));
    let before = world.status();
    world.look_once();
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
