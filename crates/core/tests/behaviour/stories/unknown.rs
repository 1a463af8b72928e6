//! Rule 13: if it is unknown whether anything was applied, destroy runs, and an empty state is a success.

use alustan_api::run::RunKind;
use alustan_api::{ABANDON, State};
use alustan_core::decide::decide;
use alustan_core::observed::NothingLeft;

use super::words;
use crate::fixtures::{Edit as _, at, terraform};
use crate::world::{Act, Real, Stage, World};

/// A resource restored from a backup: with its finalizer, without its status, with another uid.
fn restored() -> World {
    let mut tf = terraform().annotated(alustan_api::KEPT, "uid-of-the-one-before");
    tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
    World::with(tf)
}

#[test]
fn what_a_restored_resource_may_have_made_is_destroyed() {
    let mut made = World::applied();
    let mut world = restored();
    world.real = std::mem::take(&mut made.real);
    world.delete();
    world.look_once();
    assert_eq!(
        (world.status().state, world.reason()),
        (State::Destroying, "NothingKnown".to_owned())
    );
    let message = world.status().message;
    for part in [
        "no status, run record or pin",
        "unknown whether anything was applied",
        "alustan.io/abandon=true",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    world.run_to(Stage::Applying);
    assert_eq!(world.last_run().0, RunKind::Destroy);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn finding_no_state_is_success() {
    let mut world = restored();
    world.delete().settle();
    assert!(world.tf.is_none());
    assert_eq!(world.ledger.kinds.len(), 1, "a destroy that found nothing");
}

#[test]
fn the_pointer_at_the_state_is_made_since_nobody_knows_of_one() {
    let mut world = restored();
    world.delete().run_to(Stage::Created);
    assert!(world.objects.contains("web-state"));
}

#[test]
fn what_stands_in_the_way_is_told_with_what_is_unknown() {
    let mut world = restored();
    world.git_up = false;
    world.delete().settle();
    assert_eq!(world.reason(), "RepositoryUnreachable");
    let message = world.status().message;
    assert!(message.contains("is unknown"), "{message}");
    assert!(message.contains("alustan.io/abandon=true"), "{message}");
    world.edit(|tf| tf.annotated(ABANDON, "true")).settle();
    assert!(world.tf.is_none());
}

#[test]
fn a_destroy_by_the_spec_that_fails_is_tried_again() {
    let mut world = restored();
    world.real = Real {
        partial: true,
        ..Real::default()
    };
    world.delete().run_to(Stage::Applying);
    world.act(0, Act::Kill);
    world.look_once();
    assert_eq!(world.status().state, State::Failed);
    world.run_until_rest();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn a_resource_of_which_a_person_kept_everything_is_not_looked_into() {
    for policy in ["Orphan", "Protect"] {
        let mut world = restored();
        match policy {
            "Orphan" => world.orphan(true),
            _ => world.protect(true),
        };
        world.delete().settle();
        assert!(world.ledger.kinds.is_empty());
        assert_eq!(world.tf.is_none(), policy == "Orphan");
    }
}

#[test]
fn a_namespace_that_goes_takes_what_is_unknown_with_it() {
    let mut world = restored();
    world.delete();
    let mut seen = world.observe(0);
    seen.nothing_left = Some(NothingLeft {
        namespace_terminating: true,
        unreadable: false,
    });
    let decision = decide(world.tf(), &seen, &world.settings, world.now);
    let steps = ["CleanUp", "RemoveFinalizer"];
    assert_eq!(words(&decision.steps), steps);
}

#[test]
fn a_resource_that_was_kept_by_us_alone_and_has_no_record_yet_goes_at_once() {
    let mut tf = terraform().annotated(alustan_api::KEPT, "uid-of-web");
    tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
    let mut world = World::with(tf.deleted(at(0)));
    world.look_once();
    assert!(world.tf.is_none());
}

#[test]
fn what_was_half_applied_is_not_forgotten() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.act(0, Act::Fail(alustan_api::report::FailureClass::User));
    world.look_once();
    world.act(0, Act::Progress);
    assert!(world.status().last_applied.is_none());
    world.delete();
    (world.record, world.pin) = (None, None);
    world.jobs.clear();
    for _ in 0..3 {
        world.look_once();
        assert_eq!(world.reason(), "PinLost");
    }
}

#[test]
fn what_was_being_applied_is_not_forgotten() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.look_once();
    assert_eq!(world.status().state, State::Applying);
    world.act(0, Act::Kill);
    (world.record, world.pin) = (None, None);
    world.jobs.clear();
    world.delete().settle();
    assert!(world.tf.is_some(), "let go");
    assert_eq!(world.reason(), "PinLost");
}
