//! Rule 13: a resource is deleted, and the API server has no readable run record and no readable pin of the resource.

use alustan_api::ABANDON;
use alustan_core::observed::NothingLeft;
use rstest::rstest;

use super::step_names;
use crate::fixtures::Edit as _;
use crate::world::World;

#[rstest]
#[case::not_applied(false, false, &["CleanUp", "RemoveFinalizer"], "Destroyed")]
#[case::applied(true, false, &[], "PinLost")]
#[case::terminating_namespace(true, true, &["CleanUp", "RemoveFinalizer"], "Destroyed")]
fn deletion_without_record_and_pin_is_decided_by_status(
    #[case] applied: bool,
    #[case] namespace_terminating: bool,
    #[case] steps: &[&str],
    #[case] reason: &str,
) {
    let mut world = if applied {
        World::applied()
    } else {
        World::until(|world| world.record.is_some())
    };
    world.delete();
    world.record = None;
    world.pin = None;
    let mut seen = world.observe(0);
    seen.nothing_left = Some(NothingLeft {
        namespace_terminating,
        unreadable: false,
    });
    let (_, decision) = world.decide(seen);
    assert_eq!(step_names(&decision.steps), steps);
    let ready = &decision.status.conditions[0];
    assert_eq!(
        (ready.type_.as_str(), ready.reason.as_str()),
        ("Ready", reason)
    );
    assert!(!ready.message.is_empty());
}

/// Run record and pin exist but are unreadable. A run may have left an unsaved state, so all objects that may contain it are kept.
#[test]
fn abandoned_resource_with_unreadable_record_keeps_objects() {
    let mut world = World::applied();
    world.delete().edit(|tf| tf.annotated(ABANDON, "true"));
    world.record = None;
    world.pin = None;
    let mut seen = world.observe(0);
    seen.nothing_left = Some(NothingLeft {
        namespace_terminating: false,
        unreadable: true,
    });
    let (_, decision) = world.decide(seen);
    assert_eq!(
        step_names(&decision.steps),
        [
            "CleanUp but state, cache, report, record",
            "RemoveFinalizer"
        ]
    );
    let message = &decision.status.message;
    assert!(
        message.contains("the run record cannot be read"),
        "{message}"
    );
}

#[test]
fn pin_lost_is_reported_until_resource_is_abandoned() {
    let mut world = World::applied();
    world.delete();
    world.record = None;
    world.pin = None;
    for _ in 0..3 {
        world.reconcile();
        assert_eq!(world.reason(), "PinLost");
        assert!(world.status().last_applied.is_some());
    }
    world.edit(|tf| tf.annotated(ABANDON, "true"));
    world.reconcile();
    assert!(world.tf.is_none());
}
