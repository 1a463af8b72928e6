//! A resource is restored from a backup: it has a new uid. Its Secrets have labels with the uid of the resource before the restore.

use alustan_api::report::{RunResult, UnsavedPlace};
use alustan_api::run::{RunKind, RunPhase, RunProgress, UnsavedState};
use alustan_api::{ABANDON, Architecture, Engine, EngineName, FINALIZER, KEPT, State};
use alustan_core::observed::{CacheSeen, LeftBehind, ReportedProgress};
use alustan_core::settings::EngineImage;
use alustan_core::step::Step;
use rstest::rstest;
use serde_json::json;

use super::step_names;
use crate::fixtures::{Edit as _, terraform};
use crate::world::{Stage, World};

const UID: &str = "uid-after-restore";

/// Returns `original` after a restore from a backup: the resource has another uid and no status, and there are no Jobs.
fn restored(mut original: World) -> World {
    let reported = original
        .progress
        .take()
        .map_or(ReportedProgress::Absent, |progress| {
            ReportedProgress::Progress(Box::new(progress))
        });
    let history = original.record.take().unwrap().history;
    let mut world = World::with(original.tf.clone().unwrap());
    world.real = original.real;
    world.images = original.images;
    world.artifacts = original.artifacts;
    world.left_behind = Some(LeftBehind {
        uid: "uid-of-web".to_owned(),
        version: "1".to_owned(),
        record: Some(original.own_record),
        history,
        progress: reported,
        restore_to: None,
        owner: None,
        pods: Vec::new(),
    });
    let tf = world.tf.as_mut().unwrap();
    tf.metadata.uid = Some(UID.to_owned());
    tf.status = None;
    world
}

/// Requests the restore as `kubectl alustan restore` does.
fn restore(world: &mut World) {
    let left_behind = world.left_behind.as_mut().unwrap();
    left_behind.restore_to = Some(UID.to_owned());
}

/// Returns the message in the status. Asserts that the message does not advise to remove a Secret.
fn message(world: &World) -> String {
    let message = world.status().message;
    for advice in ["remove", "delete Secret", "delete the Secret"] {
        assert!(!message.contains(advice), "{message}");
    }
    message
}

#[test]
fn restored_resource_waits_for_volume_with_unsaved_state() {
    let mut world = restored(World::applied());
    world.left_behind.as_mut().unwrap().history.unsaved = Some(UnsavedState {
        run: 1,
        place: UnsavedPlace::CacheVolume,
    });
    restore(&mut world);
    world.cache = CacheSeen::Bound;
    world.volume_unreachable = true;
    for number in 2..6 {
        world.settle();
        world.advance_clock(10 * 60);
        world.run_to(Stage::Created);
        let job = world.jobs.values().max_by_key(|job| job.number).unwrap();
        assert_eq!((job.number, job.volume), (number, true));
        world.advance_clock(20 * 60);
    }
    assert!(world.volume_unreachable, "the claim is not replaced");
}

#[test]
fn restored_record_is_not_taken_over_without_a_request() {
    let mut world = restored(World::applied());
    world.settle();
    assert_eq!(world.reason(), "RestoreRequired");
    for part in [
        "Secret web-run is the run record of an earlier resource",
        "kubectl alustan restore web -n team",
        "keep the Secrets",
    ] {
        assert!(
            message(&world).contains(part),
            "no {part:?} in {}",
            message(&world)
        );
    }
    assert!(world.reconcile().decision.steps.is_empty());
    world.left_behind.as_mut().unwrap().restore_to = Some("uid-of-web".to_owned());
    world.settle();
    assert_eq!(world.reason(), "RestoreRequired", "of another restore");
}

#[test]
fn restored_resource_without_changes_is_ready_without_approval() {
    let mut world = restored(World::applied());
    restore(&mut world);
    let reconciled = world.reconcile();
    let steps = ["AddFinalizer", "Ensure Namespace team", "TakeOver"];
    assert_eq!(step_names(&reconciled.decision.steps), steps);
    assert_eq!(world.reason(), "Restored");
    assert!(message(&world).starts_with("run numbers continue after 1"));
    assert_eq!(world.tf().metadata.annotations.as_ref().unwrap()[KEPT], UID);
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.ledger.kinds, [(RunKind::Plan, RunResult::NoChanges)]);
    assert_eq!(world.run_number(), 2);
    // Only the first plan after a restore always needs approval. This later apply needs none, because the spec requires none.
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert!(world.is_ready());
    assert_eq!(world.last_run().0, RunKind::Apply);
}

#[test]
fn first_plan_after_a_restore_waits_for_approval() {
    let mut world = restored(World::applied());
    world.edit(|tf| tf.with_variable("size", 1));
    restore(&mut world);
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert!(message(&world).contains("(the resource was restored from a backup)"));
    assert!(world.objects.contains("web-plan"));
    world.approve();
    world.settle();
    assert!(world.is_ready());
    world.edit(|tf| tf.with_variable("size", 2)).settle();
    assert!(world.is_ready(), "the spec has no approval");
}

#[rstest]
#[case::planning(Stage::Planning)]
#[case::applying(Stage::Applying)]
fn open_run_of_a_backup_counts_as_applying(#[case] stage: Stage) {
    let mut created = World::new();
    created.run_to(stage);
    created.real.partial = true;
    let mut world = restored(created);
    restore(&mut world);
    world.reconcile();
    let part = "run 1 was active at the time of the backup";
    assert!(message(&world).contains(part), "{}", message(&world));
    let record = world.record.clone().unwrap().record;
    assert_eq!((record.number, record.attempted, record.begun), (1, 1, 1));
    assert!(record.run.is_none() && record.phase == RunPhase::Recorded);
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert!(message(&world).contains(part), "{}", message(&world));
}

#[test]
fn approval_and_inputs_of_a_backup_are_not_restored() {
    let mut created = World::awaiting();
    created.approve();
    created.reconcile();
    let mut world = restored(created);
    restore(&mut world);
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert!(world.real.is_empty(), "an old approval was used");
    let record = world.record.as_ref().unwrap();
    assert!(record.history.approved.is_none() && record.history.base.is_some());
}

#[test]
fn approval_given_after_backup_is_invalid_after_restore() {
    let mut created = World::applied();
    let backup = created.clone();
    created.edit(|tf| tf.with("/approval/mode", "Manual").with_variable("size", 1));
    created.settle();
    assert!(created.approve());
    let mut world = restored(backup);
    world.edit(|mut tf| {
        tf.spec = created.tf().spec.clone();
        tf
    });
    restore(&mut world);
    world.settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert!(message(&world).contains("which is not this plan and has no effect"));
    assert!(world.approve());
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn engine_and_architecture_of_a_backup_are_kept() {
    let mut world = restored(World::applied());
    let engine = |version: &str| Engine {
        name: EngineName::Terraform,
        version: version.to_owned(),
    };
    let left_behind = world.left_behind.as_mut().unwrap();
    left_behind.history.engine = Some(engine("99.0.0"));
    left_behind.history.architecture = Some(Architecture::Arm64);
    world.settings.engines = vec![EngineImage {
        engine: engine("1.9.8"),
        wrapper: None,
        image: "registry.test/terraform:1.9.8".to_owned(),
    }];
    world.edit(|tf| tf.with("/engine", json!({"version": "1.9.8"})));
    restore(&mut world);
    world.reconcile();
    let history = &world.record.as_ref().unwrap().history;
    assert_eq!(history.engine, Some(engine("99.0.0")));
    assert_eq!(history.architecture, Some(Architecture::Arm64));
    world.settle();
    assert_eq!(world.reason(), "EngineChangeNotAllowed");
    assert!(world.ledger.kinds.is_empty());
}

#[test]
fn engine_version_of_a_backup_is_bounded() {
    let mut world = restored(World::applied());
    world.left_behind.as_mut().unwrap().history.engine = Some(Engine {
        name: EngineName::Terraform,
        version: "9".repeat(1 << 20),
    });
    restore(&mut world);
    world.reconcile();
    let history = &world.record.as_ref().unwrap().history;
    assert!(history.engine.as_ref().unwrap().version.len() <= 256);
}

#[test]
fn record_of_an_existing_resource_is_refused() {
    let mut world = restored(World::applied());
    restore(&mut world);
    let owner = "a Terraform resource in another namespace";
    world.left_behind.as_mut().unwrap().owner = Some(owner.to_owned());
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.requeue_at.is_some());
    assert_eq!(world.reason(), "StateConflict");
    assert!(message(&world).contains(owner) && message(&world).contains("keep the Secrets"));
}

#[test]
fn restore_waits_for_pods_of_earlier_runs() {
    let mut world = restored(World::applied());
    restore(&mut world);
    world.left_behind.as_mut().unwrap().pods = vec!["web-apply-1-x".to_owned()];
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.requeue_at.is_some());
    assert_eq!(world.reason(), "RestorePending");
    assert!(message(&world).contains("kubectl get pod web-apply-1-x -n team"));
}

#[test]
fn unreadable_record_is_not_restored() {
    let mut world = restored(World::applied());
    restore(&mut world);
    world.left_behind.as_mut().unwrap().record = None;
    assert!(world.reconcile().decision.steps.is_empty());
    assert_eq!(world.reason(), "RecordUnreadable");
    assert!(message(&world).contains("Restore the Secret from the backup again"));
}

#[test]
fn restored_resource_waits_for_its_secrets() {
    let mut tf = terraform().annotated(KEPT, "uid-of-the-one-before");
    tf.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let mut world = World::with(tf);
    world.settle();
    assert!(world.ledger.kinds.is_empty() && world.record.is_none());
    assert_eq!(world.reason(), "RestoreRequired");
    for part in [
        "restore the Secrets web-run, web-report",
        "kubectl alustan restore web -n team",
        "kubectl annotate tf web -n team alustan.io/uid-",
    ] {
        assert!(
            message(&world).contains(part),
            "no {part:?} in {}",
            message(&world)
        );
    }
    world.edit(|mut tf| {
        tf.metadata.annotations = None;
        tf
    });
    world.settle();
    assert!(world.is_ready());
}

/// Returns a simulated cluster with a copy of an existing resource: annotation `alustan.io/uid` has the uid of the original.
fn copy() -> World {
    let mut tf = terraform().annotated(KEPT, "uid-of-the-original");
    tf.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let mut world = World::with(tf);
    world.is_copy = true;
    world
}

#[test]
fn copy_of_an_existing_resource_gets_a_new_record() {
    let mut world = copy();
    let reconciled = world.reconcile();
    let steps = ["AddFinalizer", "CreateRecord"];
    assert_eq!(step_names(&reconciled.decision.steps), steps);
    let tf = world.tf();
    let kept_uid = &tf.metadata.annotations.as_ref().unwrap()[KEPT];
    assert_eq!(Some(kept_uid), tf.metadata.uid.as_ref());
    world.settle();
    assert!(world.is_ready() && world.run_number() == 1);
    // The original is deleted. The copy stays Ready: the copy has a run record, and its annotation `alustan.io/uid` contains its own uid.
    // So the operator does not treat the copy as a resource that was restored from a backup.
    world.is_copy = false;
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn deleted_copy_of_an_existing_resource_destroys_nothing() {
    let mut world = copy();
    world.delete();
    world.reconcile();
    assert!(world.tf.is_none() && world.ledger.kinds.is_empty());
}

#[test]
fn deletion_without_secrets_destroys_by_the_spec() {
    let mut tf = terraform().annotated(KEPT, "uid-of-the-one-before");
    tf.metadata.finalizers = Some(vec![alustan_api::FINALIZER.to_owned()]);
    let mut world = World::with(tf);
    world.settle();
    assert_eq!(world.reason(), "RestoreRequired");
    world.delete().reconcile();
    assert_eq!(world.reason(), "RunRecordMissing");
}

#[rstest]
#[case::not_requested(|_: &mut World| {})]
#[case::of_an_existing_resource(|world: &mut World| {
    restore(world);
    world.left_behind.as_mut().unwrap().owner = Some("Terraform db".to_owned());
})]
#[case::unreadable(|world: &mut World| {
    restore(world);
    world.left_behind.as_mut().unwrap().record = None;
})]
fn deletion_before_the_restore_leaves_everything(#[case] because: fn(&mut World)) {
    for finalizer in [true, false] {
        let mut world = restored(World::applied());
        let real = world.real.clone();
        // Velero restores the finalizers of a resource. The kubectl command in the documentation does not restore them.
        if !finalizer {
            world.tf.as_mut().unwrap().metadata.finalizers = None;
        }
        because(&mut world);
        world.reconcile();
        assert!(world.is_stalled());
        world.delete();
        if finalizer {
            let reconciled = world.reconcile();
            assert_eq!(step_names(&reconciled.decision.steps), ["RemoveFinalizer"]);
            let status = reconciled.decision.status;
            let message = &status.message;
            assert!(
                message.contains("kubectl alustan restore web -n team"),
                "{message}"
            );
        }
        assert!(world.tf.is_none() && world.left_behind.is_some());
        assert_eq!(world.real, real);
    }
}

#[test]
fn protected_resource_waits_for_its_restore_even_if_deleted() {
    let mut world = restored(World::applied());
    world.set_deletion_protection(true).delete();
    assert!(world.reconcile().decision.steps.is_empty());
    assert_eq!(world.reason(), "DeletionProtected");
}

#[test]
fn resource_deleted_during_its_restore_is_destroyed_after_it() {
    let mut world = restored(World::applied());
    restore(&mut world);
    world.delete();
    let reconciled = world.reconcile();
    assert!(matches!(
        reconciled.decision.steps[..],
        [_, Step::TakeOver(_)]
    ));
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn abandoned_resource_keeps_secrets_of_the_backup() {
    let mut world = restored(World::applied());
    restore(&mut world);
    world.edit(|tf| tf.annotated(ABANDON, "true")).delete();
    world.reconcile();
    assert!(world.tf.is_none() && world.left_behind.is_some());
}

#[test]
fn restore_continues_after_a_crash() {
    for writes in 0..4 {
        let mut world = restored(World::applied());
        restore(&mut world);
        world.reconcile_with(crate::world::ReconcileFaults {
            stale: None,
            crash: Some(writes),
        });
        world.settle();
        assert!(world.is_ready(), "after {writes} writes");
        assert_eq!(world.run_number(), 2);
    }
}

#[test]
fn restore_with_s3_state_needs_only_the_record() {
    let mut world = World::with(terraform().with(
        "/backend",
        json!({"provider": "aws", "s3": "states", "region": "us-east-1"}),
    ));
    world.settle();
    let mut world = restored(world);
    let before = world.left_behind.as_ref().unwrap().record.clone().unwrap();
    restore(&mut world);
    world.reconcile();
    let after = world.record.as_ref().unwrap().record.clone();
    assert_eq!(
        (after.number, after.lineage, after.state_address),
        (before.number, before.lineage, before.state_address)
    );
    assert_eq!(
        RunProgress::of(&world.record.as_ref().unwrap().record).number,
        1
    );
    world.settle();
    assert!(world.is_ready() && !world.objects.contains("web-state"));
}
