//! Rule 2: with `backend.provider: local` the cache volume stores the state.

use alustan_core::observed::CacheSeen;
use rstest::rstest;
use serde_json::json;

use super::step_names;
use crate::fixtures::{Edit as _, terraform};
use crate::world::{Stage, World};

/// Returns a simulated cluster with an applied resource whose state is on the cache volume.
fn applied() -> World {
    let mut world = World::with(terraform().with("/backend", json!({"provider": "local"})));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world.cache = CacheSeen::Bound;
    world
}

#[test]
fn every_run_mounts_the_volume_with_local_state() {
    let local = json!({"provider": "local"});
    let mut world = World::with(terraform().with("/backend", local));
    world.run_to(Stage::Created);
    assert!(world.jobs["web-apply-1"].volume, "the first one, too");
    world.settle();
    world.start_drift_check().settle();
    assert!(world.jobs["web-drift-2"].volume);
    world.cache = CacheSeen::Pending;
    world.delete().reconcile();
    assert!(world.jobs["web-destroy-3"].volume);
}

#[rstest]
#[case(CacheSeen::Lost)]
#[case(CacheSeen::Absent)]
fn lost_volume_with_local_state_is_not_replaced(#[case] cache: CacheSeen) {
    let mut world = applied();
    world.cache = cache;
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("StateLost", true)
    );
    assert_eq!((world.run_number(), world.cache), (1, cache));
    let message = world.status().message;
    for part in [
        "PersistentVolumeClaim web-cache",
        "Only if neither a backup nor a PersistentVolume of the claim exists",
        "-l alustan.io/terraform=web -o json >web.json), then kubectl annotate tf web",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    world.delete().settle();
    assert_eq!(world.reason(), "StateLost");
    assert!(!world.real.is_empty(), "destroy finds nothing to destroy");
    // The volume is restored from a backup.
    world.cache = CacheSeen::Bound;
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

/// The node or zone of the volume no longer exists. Runs are repeated with the volume, and the message says what to do.
#[test]
fn run_waits_for_an_unreachable_volume_with_the_state() {
    let mut world = applied();
    world.volume_unreachable = true;
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Created);
    for _ in 0..100 {
        world.advance_clock(60).reconcile();
        world.spawn();
    }
    world.reconcile();
    assert!(world.run_number() > 3, "{:?}", world.status());
    assert_eq!(world.reason(), "Unschedulable");
    let message = world.status().message;
    assert!(
        message.contains("the state is on PersistentVolumeClaim web-cache"),
        "{message}"
    );
    world.volume_unreachable = false;
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

/// Other resources with the same content wait for this build.
#[test]
fn build_does_without_an_unreachable_volume_with_the_state() {
    let mut world = applied();
    world.volume_unreachable = true;
    world.commit(1).reconcile();
    let images = world.images.len();
    for _ in 0..30 {
        world.advance_clock(60).reconcile();
        world.advance_builds(None);
    }
    assert_eq!(world.images.len(), images + 1, "{:?}", world.status());
    world.run_to(Stage::Created);
    world.reconcile();
    assert!(world.jobs["web-apply-2"].volume);
    assert_eq!(world.reason(), "Unschedulable");
}

/// Pin and cache volume are lost. The state address in the run record shows that the state was on the volume.
#[test]
fn run_record_shows_local_state_on_lost_volume() {
    let mut world = applied();
    world.own_record.state_address =
        Some("local:///var/lib/alustan/state/terraform.tfstate".to_owned());
    (world.pin, world.cache) = (None, CacheSeen::Lost);
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert_eq!(world.reason(), "StateLost");
}

#[test]
fn lost_volume_is_replaced_before_the_first_apply() {
    let local = json!({"provider": "local"});
    let mut world = World::with(terraform().with("/backend", local));
    world.cache = CacheSeen::Lost;
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn volume_is_kept_by_orphan_and_deleted_by_destroy() {
    let mut world = applied();
    world.set_orphan(true);
    let reconciled = world.delete().reconcile();
    let wanted = [
        "SwapRecord Recorded",
        "CleanUp but state, cache",
        "RemoveFinalizer",
    ];
    assert_eq!(step_names(&reconciled.decision.steps), wanted);
    let message = &reconciled.decision.status.message;
    assert!(message.contains("on the cache volume"), "{message}");
    let mut world = applied();
    world.delete().settle();
    assert!(world.tf.is_none() && world.cache == CacheSeen::Absent);
}

#[test]
fn destroy_mounts_volume_of_pinned_local_state() {
    let mut world = applied();
    world.edit(|tf| {
        tf.with("/backend", json!({"provider": "managed"}))
            .with("/cache", json!({"enabled": false}))
    });
    world.delete().reconcile();
    assert!(world.jobs["web-destroy-2"].volume);
}

#[test]
fn invalid_backend_stalls_and_names_its_field() {
    let backend = json!({
        "provider": "gcp", "gcs": "b", "config": {"encryption_key": "hidden"},
    });
    let mut world = World::with(terraform().with("/backend", backend));
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("InvalidBackend", true)
    );
    let message = world.status().message;
    assert!(
        message.contains("spec.backend.config.encryption_key"),
        "{message}"
    );
    assert!(!message.contains("hidden"), "{message}");
}
