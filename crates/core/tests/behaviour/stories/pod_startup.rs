//! Rule 10: the operator reports Jobs whose pods cannot start, and retries the runs. It creates lost objects again if it can (rule 2), but
//! never objects that contain state (rule 12).

use alustan_api::report::{FailureClass, UnsavedPlace};
use alustan_api::run::{CacheVolume, RunKind, RunPhase};
use alustan_api::{ABANDON, State};
use alustan_core::observed::{BuildState, CacheSeen, Ownership, Waiting};
use k8s_openapi::jiff::SignedDuration;
use serde_json::json;

use super::step_names;
use crate::fixtures::Edit as _;
use crate::world::{PodEvent, Stage, World, condition};

impl World {
    /// Returns a simulated cluster in which the pod of a new run cannot pull its image.
    fn with_unpullable_image() -> Self {
        let mut world = Self::applied();
        world.images.clear();
        world.builds.clear();
        world.edit(|tf| tf.with_variable("size", 1));
        world.reconcile();
        world.spawn();
        world
    }

    /// Returns a simulated cluster in which the pod of a new run cannot be scheduled, because no node can mount the cache volume.
    fn with_unschedulable_pod() -> Self {
        let mut world = Self::applied();
        world.cache = CacheSeen::Bound;
        world.volume_unreachable = true;
        world.edit(|tf| tf.with_variable("size", 1));
        world.run_to(Stage::Created);
        world.reconcile();
        assert_eq!(world.reason(), "Unschedulable");
        world
    }
}

#[test]
fn unstartable_pod_is_reported_with_its_reason() {
    let mut world = World::with_unpullable_image();
    world.reconcile();
    let status = world.status();
    assert_eq!(condition(&status, "Ready"), "False");
    assert_eq!(world.reason(), "ImagePullBackOff");
    assert!(
        status
            .message
            .contains("cannot start: ImagePullBackOff: Back-off pulling image; if the pod"),
        "{}",
        status.message
    );
}

#[test]
fn unstartable_run_is_cancelled_and_costs_no_retry() {
    let mut world = World::with_unpullable_image();
    let reconciled = world.reconcile_after_requeue();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [
            "SwapRecord Starting",
            "SwapReport cancel",
            "DeleteJob web-apply-2"
        ]
    );
    world.reconcile();
    let status = world.status();
    assert_eq!(status.runs[0].reason.as_deref(), Some("ImagePullBackOff"));
    assert_eq!(world.record.as_ref().unwrap().history.failures.count, 0);
}

/// A drift check whose pod cannot start does not change `Ready`, but it times out like other runs.
#[test]
fn unstartable_drift_check_is_cancelled_after_5_minutes() {
    let mut world = World::applied();
    world.images.clear();
    world.reconcile_after_requeue();
    world.spawn();
    world.reconcile();
    assert!(world.is_ready());
    let began = world.now;
    while world.now < began + SignedDuration::from_mins(5) {
        world.reconcile_after_requeue();
        assert!(world.is_ready());
    }
    assert_eq!(world.now, began + SignedDuration::from_mins(5));
    world.reconcile();
    assert_eq!(
        world.status().runs[0].reason.as_deref(),
        Some("ImagePullBackOff")
    );
}

#[test]
fn unstartable_run_is_replaced_after_spec_change() {
    let mut world = World::with_unpullable_image();
    world.edit(|tf| tf.with_variable("size", 2));
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [
            "SwapRecord Starting",
            "SwapReport cancel",
            "DeleteJob web-apply-2"
        ]
    );
    world.settle();
    assert_eq!(world.run_number(), 3);
    assert_eq!(world.status().runs[0].result, "Cancelled");
}

#[test]
fn image_deleted_from_registry_is_rebuilt() {
    let mut world = World::with_unpullable_image();
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.builds.len(), 1);
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn pushed_image_missing_in_registry_is_rebuilt() {
    let mut world = World::until(|world| {
        let done = |state: &BuildState| matches!(state, BuildState::Done(_));
        world.builds.values().any(|build| done(&build.state))
    });
    world.images.clear();
    world.memory.query_started = false;
    world.reconcile();
    assert_eq!(world.reason(), "ImageMissing");
    world.reconcile();
    assert_eq!(world.builds.len(), 1, "the registry may be slow");
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn job_without_pod_is_reported() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    world.pods.clear();
    for job in world.jobs.values_mut() {
        job.pod_created = false;
    }
    world.reconcile();
    assert_eq!(world.reason(), "Running");
    world.reconcile_after_requeue();
    assert_eq!(world.reason(), "PodNotCreated");
    assert!(
        world
            .status()
            .message
            .contains("see kubectl describe -n team job/web-apply-1")
    );
    world.settle();
    assert!(world.is_ready(), "the Job controller is back");
}

#[test]
fn unstartable_destroy_is_reported_and_names_abandon() {
    let mut world = World::applied();
    world.images.clear();
    world.delete();
    world.reconcile();
    world.spawn();
    world.reconcile();
    let status = world.status();
    assert_eq!(
        (status.state, world.reason().as_str()),
        (State::Destroying, "ImagePullBackOff")
    );
    assert!(status.message.contains("alustan.io/abandon=true"));
    let reconciled = world.reconcile_after_requeue();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [
            "SwapRecord Starting",
            "SwapReport cancel",
            "DeleteJob web-destroy-2"
        ]
    );
    world.run_until_converged();
    assert!(
        world.tf.is_none() && world.real.is_empty(),
        "it is built again"
    );
}

#[test]
fn pod_that_does_not_run_is_reported_then_deleted() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    world.advance_clock(119).reconcile();
    assert_eq!(world.reason(), "Running");
    world.advance_clock(1).reconcile();
    assert_eq!(world.reason(), "PodNotStarted");
    let message = world.status().message;
    for part in [
        "the pod of Job web-apply-1 has no node yet; its volume may not be provisioned",
        "kubectl describe pods,persistentvolumeclaims -n team",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    world.advance_clock(10 * 60).reconcile();
    assert!(
        world.jobs.contains_key("web-apply-1"),
        "its image may be large"
    );
    world.advance_clock(10 * 60).reconcile();
    assert!(!world.jobs.contains_key("web-apply-1"));
    world.run_until_converged();
    assert!(world.is_ready());
}

#[test]
fn unschedulable_pod_is_deleted_after_scheduling_timeout() {
    let mut world = World::with_unschedulable_pod();
    world.advance_clock(19 * 60).reconcile();
    assert!(world.jobs.contains_key("web-apply-2"));
    world.advance_clock(2 * 60).reconcile();
    assert!(!world.jobs.contains_key("web-apply-2"));
    world.reconcile();
    let status = world.status();
    assert_eq!(status.runs[0].reason.as_deref(), Some("Unschedulable"));
}

#[test]
fn start_timeout_of_a_pod_counts_from_its_scheduling() {
    let mut world = World::with_unschedulable_pod();
    world.settings.scheduling_timeout = SignedDuration::from_hours(1);
    world.advance_clock(25 * 60).reconcile();
    assert!(world.jobs.contains_key("web-apply-2"));
    world.volume_unreachable = false;
    world.scheduled_at = Some(world.now);
    world.advance_clock(119).reconcile();
    assert_eq!(world.reason(), "Running");
    world.advance_clock(1).reconcile();
    assert_eq!(world.reason(), "PodNotStarted");
    let message = world.status().message;
    assert!(
        message.contains("is scheduled but has not started"),
        "{message}"
    );
    world.advance_clock(17 * 60).reconcile();
    assert!(world.jobs.contains_key("web-apply-2"));
    world.advance_clock(60).reconcile();
    assert!(!world.jobs.contains_key("web-apply-2"));
}

#[test]
fn start_timeout_of_a_build_counts_from_its_scheduling() {
    let mut world = World::until(|world| !world.builds.is_empty());
    world.advance_clock(15 * 60);
    world.scheduled_at = Some(world.now);
    for build in world.builds.values_mut() {
        build.state = BuildState::Active(Some(Waiting {
            reason: "ImagePullBackOff".to_owned(),
            message: "Back-off pulling image".to_owned(),
        }));
    }
    world.reconcile();
    let message = world.status().message;
    assert!(message.contains("does not start by"), "{message}");
    world.advance_clock(5 * 60).reconcile();
    let message = world.status().message;
    assert!(message.contains("does not count towards"), "{message}");
}

#[test]
fn build_without_pod_is_reported_and_retried() {
    let mut world = World::until(|world| !world.builds.is_empty());
    world
        .builds
        .values_mut()
        .for_each(|build| build.pod_denied = true);
    world.reconcile();
    assert_eq!(world.reason(), "Building");
    world.reconcile_after_requeue();
    assert_eq!(world.reason(), "PodNotCreated");
    let uid = world.builds.values().next().unwrap().uid.clone();
    world.reconcile_after_requeue();
    assert!(world.status().message.contains("does not count towards"));
    world.reconcile_after_requeue();
    world.reconcile();
    assert_ne!(world.builds.values().next().unwrap().uid, uid);
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn lost_cache_volume_is_replaced() {
    let mut world = World::applied();
    world.cache = CacheSeen::Lost;
    world.edit(|tf| tf.with_variable("size", 1));
    let start = world.reconcile().decision.start.unwrap();
    assert_eq!(
        step_names(&start.steps)[..2],
        ["DeleteClaim", "Ensure Claim web-cache"]
    );
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn claim_of_the_cache_is_created_by_the_first_pod_that_mounts_it() {
    let mut world = World::applied();
    world.start_drift_check().settle();
    assert!(!world.jobs["web-drift-2"].volume);
    assert_eq!(world.cache, CacheSeen::Absent);
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert!(world.jobs["web-apply-3"].volume);
    assert_eq!(world.cache, CacheSeen::Bound);
}

#[test]
fn drift_check_creates_no_state_slots() {
    let mut world = World::applied();
    let start = world.reconcile_after_requeue().decision.start.unwrap();
    let created = step_names(&start.steps);
    assert!(
        !created.iter().any(|step| step.contains("state-slot")),
        "{created:?}"
    );
    assert!(created.contains(&"Ensure Role web-runner".to_owned()));
}

/// A new cache volume is empty and takes seconds to provision, so the first run and a destroy start without it.
#[test]
fn first_run_and_destroy_do_not_wait_for_new_volume() {
    for (cache, mounts_volume) in [(CacheSeen::Absent, false), (CacheSeen::Bound, true)] {
        let mut world = World::until(|world| !world.images.is_empty());
        world.cache = cache;
        world.run_to(Stage::Created);
        assert_eq!(world.jobs["web-apply-1"].volume, mounts_volume, "{cache:?}");
    }
    let mut world = World::applied();
    world.cache = CacheSeen::Pending;
    world.edit(|tf| tf.with_variable("size", 1)).reconcile();
    assert!(world.jobs["web-apply-2"].volume);
    world.settle();
    world.cache = CacheSeen::Pending;
    world.delete().reconcile();
    assert!(!world.jobs["web-destroy-3"].volume);
}

#[test]
fn state_of_an_applied_resource_is_not_created_again() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    let start = world.reconcile().decision.start.unwrap();
    let created = step_names(&start.steps);
    assert!(!created.contains(&"Ensure Secret web-state".to_owned()));
    assert!(created.contains(&"Ensure Secret web-state-slot-0".to_owned()));
}

#[test]
fn first_run_with_managed_backend_creates_its_state() {
    let mut world = World::with(crate::fixtures::terraform().with(
        "/backend",
        serde_json::json!({ "provider": "aws", "s3": "states", "region": "eu-west-1" }),
    ));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    let managed = serde_json::json!({ "migrate": true });
    world.edit(|tf| tf.with("/backend", managed));
    world.run_to(Stage::Created);
    assert!(world.objects.contains("web-state"));
}

#[test]
fn missing_or_renamed_outputs_are_published_again() {
    let mut world = World::applied();
    world.outputs.secret = Ownership::Absent;
    world.settle();
    assert_eq!(world.last_run(), (RunKind::Apply, "outputs".to_owned()));
    assert_eq!(world.outputs.secret, Ownership::Ours);
    assert!(world.is_ready());
    world.edit(|tf| tf.with("/outputs", serde_json::json!({ "secretName": "shared" })));
    world.settle();
    assert_eq!((world.run_number(), world.is_ready()), (3, true));
    assert!(world.objects.contains("shared") && !world.objects.contains("web-outputs"));
    assert!(super::changed_nothing(&world.reconcile()));
}

/// Drift mode `Report`: missing outputs start no apply, because an apply would also correct drift.
#[test]
fn missing_outputs_start_no_run_in_report_mode() {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/driftDetection/mode", "Report"));
    world.settle();
    world.outputs.secret = Ownership::Absent;
    world.settle();
    assert_eq!(world.run_number(), 1);
}

#[test]
fn destroy_uses_pin_of_last_apply_that_began() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 7));
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.settle();
    let pin = world.pin.clone().unwrap();
    assert_eq!(
        (pin.number, pin.inputs.variables["size"].clone()),
        (2, 7.into())
    );
    let attempted = world.record.as_ref().unwrap().record.attempted;
    let exists = pin.of_what_exists(attempted);
    assert_eq!(
        (exists.number, exists.inputs.variables["size"].clone()),
        (1, 0.into())
    );
    // After run 3 has begun to apply, destroy uses the pin of run 3.
    world.edit(|tf| tf.with_variable("size", 8));
    world.run_to(Stage::Applying);
    let attempted = world.record.as_ref().unwrap().record.attempted;
    let pin = world.pin.clone().unwrap();
    assert_eq!(pin.of_what_exists(attempted).number, 3);
    assert_eq!(pin.before.unwrap().number, 1);
}

#[test]
fn no_run_starts_beside_run_with_deleted_record() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.record = None;
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.start.is_none());
    assert_eq!(world.reason(), "RecordLost");
    world.advance_pod(0, PodEvent::Kill);
    world.reconcile();
    let record = world.record.clone().unwrap().record;
    assert_eq!(
        (record.number, record.attempted, record.state_made),
        (2, 2, true)
    );
    assert_eq!(record.phase, RunPhase::Starting);
    world.settle();
    assert_eq!((world.run_number(), world.is_ready()), (3, true));
}

#[test]
fn deletion_without_record_and_pin_waits_for_the_run() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    (world.record, world.pin) = (None, None);
    world.delete();
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty(), "its pod works");
    assert_eq!(world.reason(), "RecordLost");
    world.advance_pod(0, PodEvent::Kill);
    world.reconcile();
    assert_eq!(world.reason(), "PinLost");
    world.edit(|tf| tf.annotated(ABANDON, "true"));
    world.settle();
    assert!(world.tf.is_none());
}

/// Run record and pin are deleted by hand. The operator creates a new run record, and derives its run number from Jobs and status.
#[test]
fn recreated_record_counts_earlier_runs() {
    let mut world = World::applied();
    (world.record, world.pin) = (None, None);
    world.reconcile();
    let record = world.record.clone().unwrap().record;
    assert_eq!(
        (record.number, record.attempted, record.state_made),
        (1, 1, true)
    );
    world.delete().settle();
    assert_eq!(world.reason(), "PinLost");
}

#[test]
fn cancelled_run_does_not_clear_partial_apply() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.settle();
    assert!(world.real.partial);
    world.edit(|tf| tf.with_variable("size", 2));
    world.reconcile();
    world.spawn();
    world.cache = CacheSeen::Absent;
    world.edit(|tf| tf.with_variable("size", 0));
    world.reconcile();
    world.reconcile();
    assert_eq!(
        world.status().runs[0].result,
        "Cancelled",
        "{:?}",
        world.status()
    );
    assert!(!world.is_ready());
    world.settle();
    assert!(world.is_ready() && !world.real.partial);
}

#[test]
fn restart_during_repository_outage_leaves_ready_true() {
    let mut world = World::applied();
    world.git_up = false;
    world.restart();
    world.reconcile();
    world.reconcile();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(condition(&world.status(), "SourceReady"), "False");
    world.reconcile();
    assert!(super::changed_nothing(&world.reconcile()));
}

#[test]
fn changed_destroy_script_resets_the_retry_budget() {
    let mut world = World::applied();
    world.delete();
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.settle();
    assert!(world.is_stalled());
    world.edit(|tf| tf.with_script("destroy", "terraform destroy -auto-approve"));
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn out_of_memory_run_costs_a_retry() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.termination = Some("OOMKilled, exit code 137".to_owned());
    world.advance_pod(0, PodEvent::Kill);
    world.reconcile();
    let status = world.status();
    assert_eq!(world.reason(), "OutOfMemory");
    assert!(
        status.message.contains("the memory limit is 2Gi"),
        "{}",
        status.message
    );
    assert_eq!(status.retry.unwrap().failures, 1);
}

#[test]
fn stalled_build_resumes_once_its_credentials_change() {
    let mut world = World::until(|world| !world.builds.is_empty());
    world.advance_builds(Some(FailureClass::User));
    world.settle();
    assert!(world.is_stalled());
    world.docker_config = "{\"auths\":{}}".to_owned();
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn unstartable_build_is_reported_with_its_reason() {
    let mut world = World::until(|world| !world.builds.is_empty());
    for build in world.builds.values_mut() {
        build.state = BuildState::Active(Some(Waiting {
            reason: "Unschedulable".to_owned(),
            message: "0/1 nodes are available".to_owned(),
        }));
    }
    world.reconcile();
    assert_eq!(condition(&world.status(), "Ready"), "False");
    assert_eq!(world.reason(), "Unschedulable");
}

/// Returns the number of the last run, and whether the pod of its Job mounts the cache volume.
fn last_run(world: &World) -> (i64, bool) {
    let job = world.jobs.values().max_by_key(|job| job.number).unwrap();
    (job.number, job.volume)
}

#[test]
fn unreachable_cache_volume_is_replaced() {
    let mut world = World::applied();
    world.cache = CacheSeen::Bound;
    world.volume_unreachable = true;
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Created);
    assert_eq!(last_run(&world), (2, true));
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(last_run(&world), (3, false));
    assert!(world.volume_unreachable);

    // Run 3 started without the cache volume. This shows that run 2 could not start because of the volume. The operator replaces the volume
    // before the next run.
    world.edit(|tf| tf.with_variable("size", 2));
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert!(!world.volume_unreachable);
    assert_eq!(last_run(&world), (4, true));
}

/// Returns a simulated cluster in which run 2 applies with the cache volume, and the volume then becomes unreachable for all nodes.
fn applying_with_unreachable_volume() -> World {
    let mut world = World::applied();
    world.cache = CacheSeen::Bound;
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.volume_unreachable = true;
    world
}

/// Returns a simulated cluster in which run 2 failed with a transient failure and left an unsaved state at `place`.
fn unsaved(place: UnsavedPlace) -> World {
    let mut world = applying_with_unreachable_volume();
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    report.unsaved = Some(place);
    world.record.as_mut().unwrap().unsaved = place == UnsavedPlace::Report;
    world
}

#[test]
fn runs_wait_for_cache_volume_with_unsaved_state() {
    let mut world = unsaved(UnsavedPlace::CacheVolume);
    for number in 3..15 {
        world.settle();
        world.advance_clock(10 * 60);
        world.run_to(Stage::Created);
        assert_eq!(last_run(&world), (number, true));
        world.advance_clock(20 * 60);
    }
    world.settle();
    world.delete();
    world.run_to(Stage::Created);
    assert!(last_run(&world).1);
    world.reconcile();
    let message = world.status().message;
    for part in [
        "PersistentVolumeClaim web-cache, which has the unsaved state of run 2",
        "permanently lost",
        "kubectl delete persistentvolumeclaim web-cache -n team",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(world.volume_unreachable, "the claim is not replaced");
}

#[test]
fn unsaved_state_in_the_report_needs_no_cache_volume() {
    let mut world = unsaved(UnsavedPlace::Report);
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(last_run(&world), (4, false));
}

#[test]
fn cache_volume_is_optional_once_failed_run_saved_state() {
    let mut world = unsaved(UnsavedPlace::CacheVolume);
    world.volume_unreachable = false;
    world.settle();
    world.advance_clock(10 * 60);
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.volume_unreachable = true;
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert!(!last_run(&world).1);
}

#[test]
fn run_without_cache_mounts_volume_with_unsaved_state() {
    let mut world = unsaved(UnsavedPlace::CacheVolume);
    world.volume_unreachable = false;
    world.edit(|tf| tf.with("/cache/enabled", false));
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(last_run(&world), (3, true));
    world.edit(|tf| tf.with_variable("size", 2));
    world.run_until_converged();
    assert_eq!(last_run(&world), (4, false));
}

#[test]
fn lost_claim_with_an_unsaved_state_is_not_replaced() {
    let mut world = unsaved(UnsavedPlace::CacheVolume);
    world.cache = CacheSeen::Lost;
    world.settle();
    world.advance_clock(10 * 60);
    world.run_to(Stage::Created);
    assert_eq!(last_run(&world), (3, true));
    assert_eq!(world.cache, CacheSeen::Lost);
}

/// The pod of an apply is killed, so the cache volume may contain an unsaved state. The operator must keep the volume, and later runs must
/// not mount it.
#[test]
fn lost_volume_is_kept_and_unused_after_an_interrupted_run() {
    let mut world = applying_with_unreachable_volume();
    world.advance_pod(0, PodEvent::Kill);
    world.settle();
    world.advance_clock(10 * 60);
    world.run_to(Stage::Created);
    assert_eq!(last_run(&world), (3, true));
    world.reconcile();
    let message = world.status().message;
    let claim = "without PersistentVolumeClaim web-cache, which may have the unsaved state";
    assert!(message.contains(claim), "{message}");
    world.advance_clock(20 * 60);
    world.settle();
    world.advance_clock(10 * 60);
    world.run_to(Stage::Applying);
    assert_eq!(last_run(&world), (4, false));
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(last_run(&world), (5, false));
    assert!(world.volume_unreachable, "the claim is not replaced");

    world.edit(|tf| tf.with_variable("size", 2));
    world.run_until_converged();
    assert!(!world.volume_unreachable, "a run has succeeded since");
}

#[test]
fn lost_volume_is_replaced_after_a_partial_apply() {
    let mut world = applying_with_unreachable_volume();
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(last_run(&world), (4, false));
    world.edit(|tf| tf.with_variable("size", 2));
    world.run_until_converged();
    assert!(!world.volume_unreachable);
}

#[test]
fn destroy_continues_without_unusable_cache_volume() {
    let mut world = World::applied();
    world.cache = CacheSeen::Bound;
    world.volume_unreachable = true;
    world.delete();
    world.run_to(Stage::Created);
    assert_eq!(last_run(&world), (2, true));
    world.run_until_converged();
    assert!(world.tf.is_none());
    assert!(world.volume_unreachable, "the claim is not replaced");
}

/// A plan run stores the destroy plan on the cache volume. After the approval, the destroy run applies the stored plan.
#[test]
fn destroy_plan_with_approval_mounts_cache_volume() {
    let mut world = World::applied();
    world.cache = CacheSeen::Bound;
    world.edit(|tf| tf.with("/approval", json!({"destroy": "Manual"})));
    world.settle();
    world.delete();
    world.run_to(Stage::Created);
    assert_eq!(last_run(&world), (2, true));
}

#[test]
fn cache_volume_is_usable_after_a_delayed_start() {
    let mut world = unsaved(UnsavedPlace::CacheVolume);
    world.settle();
    world.advance_clock(10 * 60);
    world.run_to(Stage::Created);
    world.advance_clock(20 * 60);
    // From now on, nodes can mount the cache volume. The next run mounts it, because it contains the unsaved state.
    world.volume_unreachable = false;
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    let history = &world.record.as_ref().unwrap().history;
    assert_eq!(history.cache, CacheVolume::Usable);
}

#[test]
fn time_limits_are_capped_by_the_operator() {
    let mut world = World::new();
    world.settings.max_timeout = SignedDuration::from_mins(45);
    world.run_to(Stage::Created);
    let inputs = world.record.as_ref().unwrap().inputs.as_ref().unwrap();
    let limits = inputs.timeouts;
    assert_eq!(
        (limits.plan, limits.apply, limits.destroy),
        (1_800, 2_700, 2_700)
    );
}

#[test]
fn disruption_budget_covers_only_pods_that_change_objects() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    let start = world.jobs["web-apply-1"].labels.clone();
    assert_eq!(
        start.get("alustan.io/changes").map(String::as_str),
        Some("true")
    );
    assert!(world.objects.contains("web-runner"));
    world.settle();
    world.advance_clock(4 * 3_600);
    world.run_to(Stage::Created);
    let (name, job) = world.jobs.iter().next_back().unwrap();
    assert!(name.contains("drift") && !job.labels.contains_key("alustan.io/changes"));
}
