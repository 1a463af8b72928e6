//! Rule 13: a resource is deleted, and it is unknown whether a run has applied anything. Destroy runs, and succeeds with an empty state.

use std::sync::Arc;

use alustan_api::run::RunKind;
use alustan_api::{ABANDON, State};
use alustan_core::observed::NothingLeft;
use alustan_core::observed::allow_list::Allowed;

use super::step_names;
use crate::fixtures::{Edit as _, at, terraform};
use crate::world::{PodEvent, Real, Stage, World};

/// Returns a simulated cluster with a resource restored from a backup: with finalizer and another uid, without status, run record and pin.
fn restored() -> World {
    let mut tf = terraform().annotated(alustan_api::KEPT, "uid-of-the-one-before");
    tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
    World::with(tf)
}

#[test]
fn resource_without_record_and_pin_is_destroyed_by_spec() {
    let mut created = World::applied();
    let mut world = restored();
    world.real = std::mem::take(&mut created.real);
    world.delete();
    world.reconcile();
    assert_eq!(
        (world.status().state, world.reason()),
        (State::Destroying, "RunRecordMissing".to_owned())
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
fn destroy_without_state_succeeds() {
    let mut world = restored();
    world.delete().settle();
    assert!(world.tf.is_none());
    assert_eq!(world.ledger.kinds.len(), 1, "a destroy that found nothing");
}

#[test]
fn state_pointer_is_created_if_none_is_known() {
    let mut world = restored();
    world.delete().run_to(Stage::Created);
    assert!(world.objects.contains("web-state"));
}

#[test]
fn repository_outage_is_reported_with_unknown_apply() {
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
fn failed_destroy_by_spec_is_retried() {
    let mut world = restored();
    world.real = Real {
        partial: true,
        ..Real::default()
    };
    world.delete().run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Kill);
    world.reconcile();
    assert_eq!(world.status().state, State::Failed);
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn orphaned_or_protected_resource_starts_no_destroy() {
    for policy in ["Orphan", "Protect"] {
        let mut world = restored();
        match policy {
            "Orphan" => world.set_orphan(true),
            _ => world.set_deletion_protection(true),
        };
        world.delete().settle();
        assert!(world.ledger.kinds.is_empty());
        assert_eq!(world.tf.is_none(), policy == "Orphan");
    }
}

/// The effective spec of a deleted resource has the approval that the allow lists require. So they do not refuse the queries of a resource
/// without a pin.
#[test]
fn destroy_by_spec_waits_for_the_required_approval() {
    let mut created = World::applied();
    let mut world = restored();
    world.real = std::mem::take(&mut created.real);
    let manual = [("destroy".to_owned(), "Manual".to_owned())].into();
    world.allow_lists = Arc::new(Allowed::read(&manual));
    world.delete().settle();
    assert!(world.pin.is_none());
    world.is_destroyed_once_approved();
}

#[test]
fn resource_in_terminating_namespace_is_released() {
    let mut world = restored();
    world.delete();
    let mut seen = world.observe(0);
    seen.nothing_left = Some(NothingLeft {
        namespace_terminating: true,
        unreadable: false,
    });
    let (_, decision) = world.decide(seen);
    let steps = ["CleanUp", "RemoveFinalizer"];
    assert_eq!(step_names(&decision.steps), steps);
}

#[test]
fn resource_without_record_is_released_without_destroy() {
    let mut tf = terraform().annotated(alustan_api::KEPT, "uid-of-web");
    tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
    let mut world = World::with(tf.deleted(at(0)));
    world.reconcile();
    assert!(world.tf.is_none());
}

#[test]
fn partial_apply_without_record_reports_pin_lost() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(alustan_api::report::FailureClass::User));
    world.reconcile();
    world.advance_pod(0, PodEvent::Progress);
    assert!(world.status().last_applied.is_none());
    world.delete();
    (world.record, world.pin) = (None, None);
    world.jobs.clear();
    for _ in 0..3 {
        world.reconcile();
        assert_eq!(world.reason(), "PinLost");
    }
}

#[test]
fn interrupted_apply_without_record_reports_pin_lost() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.reconcile();
    assert_eq!(world.status().state, State::Applying);
    world.advance_pod(0, PodEvent::Kill);
    (world.record, world.pin) = (None, None);
    world.jobs.clear();
    world.delete().settle();
    assert!(world.tf.is_some(), "let go");
    assert_eq!(world.reason(), "PinLost");
}
