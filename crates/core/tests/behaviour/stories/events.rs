//! Events: one for each change of a watched condition.

use alustan_api::report::FailureClass;
use alustan_core::status::events::{Event, events};

use crate::fixtures::Edit as _;
use crate::world::{Act, Stage, World};

/// Returns the events until the world settles.
fn told(world: &mut World) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..40 {
        let before = world.tf().status.clone();
        let looked = world.look_once();
        let after = world.status();
        told.extend(events(before.as_ref(), &after).iter().map(line));
        let built = world.advance_builds(None);
        if !(looked.wrote || built || world.act(0, Act::Progress) || world.memory.asked) {
            return told;
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
fn a_first_apply_is_told_by_the_steps_that_last() {
    assert_eq!(
        told(&mut World::new()),
        ["Normal Building", "Normal Running", "Normal Applied"]
    );
}

#[test]
fn an_idle_resource_and_a_look_that_finds_nothing_tell_nothing() {
    let mut world = World::applied();
    assert!(told(&mut world).is_empty());
    let next = world.look_once().decision.requeue_at.unwrap();
    world.now = next;
    assert!(told(&mut world).is_empty());
    assert_eq!(world.run_number(), 2);
}

#[test]
fn drift_is_told_once_and_so_is_its_correction() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.now = world.look_once().decision.requeue_at.unwrap();
    assert_eq!(told(&mut world), ["Normal Drifted", "Normal Applied"]);
}

#[test]
fn a_diff_that_never_ends_is_told_once() {
    let mut world = World::applied();
    world.unsteady = true;
    world.real.drifted = true;
    let mut all = Vec::new();
    for _ in 0..8 {
        let next = world.look_once().decision.requeue_at;
        world.now = next.unwrap_or(world.now).max(world.now);
        all.extend(told(&mut world));
    }
    let endless = all.iter().filter(|line| line.ends_with(" NotConverging"));
    assert_eq!(endless.count(), 1, "{all:?}");
}

#[test]
fn a_failure_is_a_warning_and_repeats_are_not_told_again() {
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
fn an_outage_of_the_repository_is_told() {
    let mut world = World::applied();
    world.git_up = false;
    assert_eq!(told(&mut world), ["Warning RepositoryUnreachable"]);
}

#[test]
fn a_change_is_told_with_its_run() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    assert_eq!(told(&mut world), ["Normal Running", "Normal Applied"]);
}
