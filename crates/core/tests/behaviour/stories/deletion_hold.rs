//! Rule 13: fields of the spec that prevent destroy: `deletionProtection`, `suspend` and `deletionPolicy: Orphan`.

use alustan_api::run::RunKind;
use alustan_api::{ABANDON, State};
use alustan_core::observed::ForeignState;
use alustan_core::status::events::events;
use rstest::rstest;

use super::{changed_nothing, step_names};
use crate::fixtures::Edit as _;
use crate::world::{ReconcileFaults, Stage, World};

fn suspend(world: &mut World, suspend: bool) {
    world.edit(|tf| tf.with("/suspend", suspend));
}

fn set_deletion_protection(world: &mut World, protect: bool) {
    world.set_deletion_protection(protect);
}

type Switch = fn(&mut World, bool);

#[rstest]
#[case::protected(set_deletion_protection as Switch, "DeletionProtected", "deletionProtection")]
#[case::suspended(suspend as Switch, "Suspended", "suspend")]
fn protected_or_suspended_resource_is_not_destroyed(
    #[case] switch: Switch,
    #[case] reason: &str,
    #[case] field: &str,
) {
    let mut world = World::applied();
    switch(&mut world, true);
    world.delete();
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.start.is_none());
    assert_eq!(
        (world.status().state, world.reason()),
        (State::Stalled, reason.to_owned())
    );
    let message = world.status().message;
    let way_out = format!(
        "kubectl patch tf web -n team --type merge -p '{{\"spec\":{{\"{field}\":false}}}}'"
    );
    assert!(message.contains(&way_out), "{message}");
    assert!(message.contains("alustan.io/abandon=true"), "{message}");
    world.advance_clock(36_000);
    assert!(
        changed_nothing(&world.reconcile()),
        "it waits, however long"
    );
    assert!(world.record.is_some() && world.pin.is_some() && !world.real.is_empty());
    switch(&mut world, false);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[rstest]
#[case::protected(set_deletion_protection as Switch)]
#[case::suspended(suspend as Switch)]
fn protected_or_suspended_resource_can_be_abandoned(#[case] switch: Switch) {
    let mut world = World::applied();
    switch(&mut world, true);
    world.delete().reconcile();
    world.edit(|tf| tf.annotated(ABANDON, "true")).settle();
    assert!(world.tf.is_none() && !world.real.is_empty());
}

#[rstest]
#[case::protected(set_deletion_protection as Switch)]
#[case::suspended(suspend as Switch)]
fn planning_destroy_is_cancelled_by_protection_or_suspend(#[case] switch: Switch) {
    let mut world = World::applied();
    world.delete().run_to(Stage::Planning);
    switch(&mut world, true);
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        [
            "SwapRecord Planning",
            "SwapReport cancel",
            "DeleteJob web-destroy-2"
        ]
    );
    world.settle();
    assert!(world.is_stalled() && !world.real.is_empty());
    switch(&mut world, false);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[rstest]
#[case::protected(set_deletion_protection as Switch, "spec.deletionProtection is true")]
#[case::suspended(suspend as Switch, "spec.suspend is true")]
fn apply_is_not_interrupted_by_protection_or_suspend(#[case] switch: Switch, #[case] part: &str) {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    switch(&mut world, true);
    world.delete();
    assert!(world.reconcile().decision.steps.is_empty());
    let message = world.status().message;
    assert!(
        message.contains("is applying and is not interrupted; nothing is destroyed afterwards"),
        "{message}"
    );
    assert!(message.contains(part), "{message}");
    world.settle();
    assert!(world.is_stalled() && !world.real.is_empty());
    assert_eq!(world.ledger.kinds.len(), 1, "the apply alone");
}

#[test]
fn protected_resource_without_apply_is_not_released() {
    let mut world = World::until(|world| world.record.is_some());
    world.set_deletion_protection(true);
    world.delete().reconcile();
    assert_eq!(world.reason(), "DeletionProtected");
    world.record = None;
    assert!(world.reconcile().decision.steps.is_empty());
    assert_eq!(world.reason(), "DeletionProtected");
}

#[test]
fn suspended_resource_without_apply_is_released() {
    let mut world = World::until(|world| world.record.is_some());
    suspend(&mut world, true);
    world.delete().reconcile();
    assert!(world.tf.is_none(), "no run is needed for that");
}

#[test]
fn orphaned_resource_keeps_real_objects_and_state() {
    let mut world = World::applied();
    world.set_orphan(true);
    world.delete();
    let before = world.tf.clone().unwrap();
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [
            "SwapRecord Recorded",
            "CleanUp but state",
            "RemoveFinalizer"
        ]
    );
    assert!(world.tf.is_none() && !world.real.is_empty());
    assert!(world.objects.contains("web-state"));
    let emitted = events(before.status.as_ref(), &reconciled.decision.status);
    assert_eq!(emitted.len(), 1);
    assert_eq!(
        (emitted[0].reason.as_str(), emitted[0].warning),
        ("Orphaned", false)
    );
    let stays = "the state is kept in Secrets of this namespace: kubectl get secrets -n team -l \
                 alustan.io/terraform=web";
    assert!(emitted[0].note.contains(stays), "{}", emitted[0].note);
}

#[test]
fn orphaned_resource_with_s3_state_does_not_name_secrets() {
    let mut world = World::with(crate::fixtures::terraform().with(
        "/backend",
        serde_json::json!({"provider": "aws", "s3": "states", "region": "us-east-1"}),
    ));
    world.settle();
    world.set_orphan(true);
    world.delete();
    let message = world.reconcile().decision.status.message;
    assert!(message.ends_with("the state is kept"), "{message}");
}

#[test]
fn orphaned_resource_is_released_despite_controller_crashes() {
    let mut world = World::applied();
    world.set_orphan(true);
    world.delete();
    while world.record.is_some() || world.pin.is_some() {
        world.reconcile_with(ReconcileFaults {
            stale: None,
            crash: Some(6),
        });
    }
    world.settle();
    assert!(world.tf.is_none() && world.objects.contains("web-state"));
}

#[test]
fn an_orphaned_resource_waits_for_an_apply_and_cancels_a_plan() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.set_orphan(true);
    world.delete();
    assert!(world.reconcile().decision.steps.is_empty());
    let message = world.status().message;
    assert!(
        message.contains("nothing is destroyed afterwards"),
        "{message}"
    );
    world.settle();
    assert!(world.tf.is_none() && !world.real.is_empty());
    assert_eq!(world.ledger.kinds.len(), 1);

    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Planning);
    world.set_orphan(true);
    world.delete();
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        [
            "SwapRecord Planning",
            "SwapReport cancel",
            "DeleteJob web-apply-2"
        ]
    );
    world.settle();
    assert!(world.tf.is_none() && !world.real.is_empty());
}

#[test]
fn orphaned_resource_without_apply_leaves_no_state() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.set_orphan(true);
    world.delete().settle();
    assert!(world.tf.is_none());
    assert!(!world.objects.iter().any(|name| name.contains("-state")));
}

/// No run has applied, but a state exists that the resource adopted or a user pushed. Deletion must keep the Secrets or the volume that
/// contain the state: the state may have no other copy.
#[rstest]
#[case::adopted_or_pushed(true, false, "CleanUp but state", "Secrets of this namespace")]
#[case::on_an_adopted_volume(false, true, "CleanUp but cache", "PersistentVolumeClaim web-cache")]
fn state_not_written_by_a_run_is_kept_without_apply(
    #[case] secrets: bool,
    #[case] claim: bool,
    #[case] clean_up: &str,
    #[case] location: &str,
) {
    for suspended in [false, true] {
        let mut world = World::until(|world| world.record.is_some());
        world.foreign_state = ForeignState { secrets, claim };
        suspend(&mut world, suspended);
        let reconciled = world.delete().reconcile();
        assert_eq!(
            step_names(&reconciled.decision.steps),
            ["SwapRecord Starting", clean_up, "RemoveFinalizer"]
        );
        let message = reconciled.decision.status.message;
        assert!(message.contains(location), "{message}");
        assert!(world.tf.is_none());
    }
}

#[test]
fn deletion_protection_overrides_orphan_policy() {
    let mut world = World::applied();
    world.set_orphan(true);
    world.set_deletion_protection(true);
    world.delete().settle();
    assert_eq!(world.reason(), "DeletionProtected");
    assert!(world.record.is_some());
}

#[test]
fn started_destroy_is_not_stopped_by_protection() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Applying);
    world.set_deletion_protection(true);
    world.reconcile();
    let message = world.status().message;
    assert!(
        message.contains("is destroying and is not interrupted"),
        "{message}"
    );
    assert_eq!(world.last_run().0, RunKind::Destroy);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}
