//! Rule 13: a destroy cannot succeed. With annotation `alustan.io/abandon`, the operator ends the destroy, removes the finalizer and keeps
//! the real objects.

use alustan_api::ABANDON;
use alustan_api::report::{FailureClass, UnsavedPlace};
use rstest::rstest;

use super::{changed_nothing, step_names};
use crate::fixtures::Edit as _;
use crate::world::{PodEvent, Stage, World};

#[test]
fn abandoned_resource_keeps_real_objects_and_state() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.reconcile();
    world.edit(|tf| tf.annotated(ABANDON, "true"));
    world.settle();
    assert!(world.tf.is_none() && !world.real.is_empty());
    assert!(world.objects.contains("web-state"));
}

/// Returns a simulated cluster after an apply that failed part-way and left an unsaved state at `unsaved_place`.
fn failed(unsaved_place: UnsavedPlace) -> World {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    report.unsaved = Some(unsaved_place);
    world.record.as_mut().unwrap().unsaved = unsaved_place == UnsavedPlace::Report;
    world.settle();
    world
}

#[rstest]
#[case::in_the_report(
    UnsavedPlace::Report,
    "CleanUp but state, report, record",
    "Secret web-report"
)]
#[case::on_the_volume(
    UnsavedPlace::CacheVolume,
    "CleanUp but state, cache, report, record",
    "PersistentVolumeClaim web-cache"
)]
fn unsaved_state_is_kept_with_its_encryption_key(
    #[case] unsaved_place: UnsavedPlace,
    #[case] clean_up: &str,
    #[case] location: &str,
) {
    let mut world = failed(unsaved_place);
    world.delete().edit(|tf| tf.annotated(ABANDON, "true"));
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        ["SwapRecord Recorded", clean_up, "RemoveFinalizer"]
    );
    let message = reconciled.decision.status.message;
    for part in [
        location,
        "Secret web-run",
        "kubectl alustan restore web -n team",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(world.tf.is_none() && world.record.is_some());
}

/// The pod of an apply is killed, so the cache volume may contain an unsaved state and must be kept.
#[test]
fn volume_of_an_interrupted_run_is_kept() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Kill);
    world.settle();
    world.set_orphan(true);
    assert_eq!(
        step_names(&world.delete().reconcile().decision.steps),
        [
            "SwapRecord Recorded",
            "CleanUp but state, cache, report, record",
            "RemoveFinalizer"
        ]
    );
}

/// The pod of a drift check is killed. A drift check changes no objects and leaves no unsaved state, so the cache volume must be deleted.
#[test]
fn volume_of_an_interrupted_drift_check_is_deleted() {
    let mut world = World::applied();
    world.request_run();
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    "Interrupted".clone_into(&mut report.failure.as_mut().unwrap().reason);
    world.settle();
    world.set_orphan(true);
    assert_eq!(
        step_names(&world.delete().reconcile().decision.steps),
        [
            "SwapRecord Recorded",
            "CleanUp but state",
            "RemoveFinalizer"
        ]
    );
}

#[test]
fn record_is_deleted_once_a_run_has_saved_the_state() {
    let mut world = failed(UnsavedPlace::CacheVolume);
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    world.set_orphan(true);
    assert_eq!(
        step_names(&world.delete().reconcile().decision.steps),
        [
            "SwapRecord Recorded",
            "CleanUp but state",
            "RemoveFinalizer"
        ]
    );
}

#[test]
fn abandon_ends_the_run_before_its_record_is_deleted() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete().edit(|tf| tf.annotated(ABANDON, "true"));
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        ["DeleteJob web-apply-1"]
    );
    assert!(
        world
            .status()
            .message
            .contains("kubectl get pods -n team -l job-name=web-apply-1")
    );
    assert!(changed_nothing(&world.reconcile()) && world.record.is_some());
    world.settle();
    assert!(world.tf.is_none());
}
