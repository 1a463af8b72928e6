//! Changes by hand in the cluster, events while the controller is down, and changes between the last apply and the destroy.

use alustan_api::report::FailureClass;
use alustan_api::run::RunKind;
use alustan_core::observed::CacheSeen;
use alustan_core::step::Step;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::step_names;
use crate::fixtures::{self, Edit as _};
use crate::world::{PodEvent, Stage, World, condition};

fn destroy_inputs(world: &World) -> alustan_api::run::RunInputs {
    assert_eq!(world.last_run().0, RunKind::Destroy, "{:?}", world.status());
    world.record.as_ref().unwrap().inputs.clone().unwrap()
}

/// Run record, pin and state are deleted by hand. A run with a new, empty state would create every object a second time.
#[test]
fn lost_record_is_not_recreated_with_an_empty_state() {
    let mut world = World::applied();
    (world.record, world.pin) = (None, None);
    world.jobs.clear();
    world.ledger.forget_runs();
    world.reconcile();
    let start = world.reconcile().decision.start.expect("a run");
    assert!(
        !step_names(&start.steps).contains(&"Ensure Secret web-state".to_owned()),
        "{:?}",
        step_names(&start.steps)
    );
}

/// The runner image is deleted from the registry. A drift check causes a new build, and the new image has another digest. Later runs must
/// use the new image.
#[test]
fn resource_stays_ready_after_drift_check_rebuilds_image() {
    let mut world = World::applied();
    world.images.clear();
    world.builds.clear();
    let mut not_ready = 0;
    let mut statuses = Vec::new();
    let end = world.now + SignedDuration::from_hours(8);
    while world.now < end {
        let next = world.settle().unwrap();
        if !world.is_ready() {
            not_ready += 1;
            statuses.push((
                world.now.to_string(),
                world.reason(),
                world.status().message,
            ));
        }
        world.now = next.max(world.now);
    }
    assert!(not_ready <= 1, "{not_ready} times not ready: {statuses:#?}");
}

/// The runner image is deleted from the registry and built again with another digest. Destroy must use the new digest.
#[test]
fn destroy_uses_rebuilt_image() {
    let mut world = World::applied();
    world.images.clear();
    world.builds.clear();
    world.reconcile_after_requeue();
    world.run_until_converged();
    world.settle();
    let end = world.now + SignedDuration::from_hours(3);
    while world.now < end && world.images.is_empty() {
        let next = world.settle().unwrap();
        world.now = next.max(world.now);
    }
    assert_eq!(world.images.len(), 1, "it is there again");
    world.run_until_converged();
    world.delete();
    for _ in 0..20 {
        let next = world.settle();
        if world.tf.is_none() {
            return;
        }
        world.now = next.unwrap_or(world.now);
    }
    panic!("{:?}: {}", world.status().state, world.status().message);
}

fn s3(bucket: &str) -> serde_json::Value {
    json!({ "provider": "aws", "s3": bucket, "region": "eu-west-1" })
}

/// A user moves the state to another bucket by hand, and the apply with the new backend changes nothing. Destroy must use the new backend.
#[test]
fn destroy_uses_backend_of_last_successful_apply() {
    let mut world = World::with(fixtures::terraform().with("/backend", s3("old")));
    world.settle();
    assert!(world.is_ready());
    world.edit(|tf| {
        tf.with("/backend", s3("new"))
            .with("/backend/migrate", true)
    });
    // The user has moved the state, so the plan finds no changes.
    world.run_to(Stage::Planning);
    world.real.config = Some(world.wanted_now());
    world.settle();
    assert_eq!(
        (
            world.is_ready(),
            world.run_number(),
            world.status().runs[0].result.as_str()
        ),
        (true, 2, "NoChanges")
    );
    world.delete().run_to(Stage::Created);
    let config = destroy_inputs(&world).backend.config;
    assert_eq!(config.get("bucket"), Some(&json!("new")), "{config:?}");
}

/// The backend changed and was never applied. Destroy must use configuration and credentials of the old backend.
#[test]
fn destroy_uses_pinned_backend_with_pinned_credentials() {
    let mut world = World::with(fixtures::terraform().with("/backend", s3("old")));
    world
        .backend_secret
        .insert("AWS_ACCESS_KEY_ID".into(), "old".into());
    world.settle();
    assert!(world.is_ready());
    world.edit(|tf| tf.with("/backend", json!(null)));
    world.backend_secret.clear();
    world.git_up = false;
    world.delete().run_to(Stage::Created);
    let backend = destroy_inputs(&world).backend;
    assert_eq!(backend.kind.as_deref(), Some("s3"));
    assert!(
        backend.environment.contains_key("AWS_ACCESS_KEY_ID"),
        "s3 without credentials"
    );
}

/// A destroy needs no cache volume. If the `PersistentVolumeClaim` is missing, the destroy runs without it and does not create it.
#[test]
fn destroy_creates_no_persistent_volume_claim() {
    let mut world = World::applied();
    world.cache = CacheSeen::Absent;
    world.delete();
    let start = world.reconcile().decision.start.unwrap();
    assert!(!world.jobs["web-destroy-2"].volume);
    let steps = step_names(&start.steps);
    assert!(
        !steps.iter().any(|step| step.contains("Claim")),
        "{steps:?}"
    );
}

/// Run record and Job are deleted by hand while the pod applies. No second run may start.
#[test]
fn no_run_starts_beside_pod_of_deleted_record_and_job() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.record = None;
    for name in world.jobs.keys().cloned().collect::<Vec<_>>() {
        world.delete_job(&name);
    }
    for _ in 0..5 {
        world.reconcile();
        assert!(world.jobs.is_empty());
    }
    assert_eq!(world.reason(), "RecordLost");
}

/// The node of an applying pod is lost, but the Pod object remains: the run neither reports nor ends. The status must report that the run
/// has exceeded its timeout.
#[test]
fn overdue_run_makes_resource_not_ready() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    let due = world.reconcile().decision.requeue_at.unwrap();
    assert!(due > world.now + SignedDuration::from_hours(1));
    world.now = due;
    world.reconcile();
    let status = world.status();
    assert!(
        condition(&status, "Ready") == "False",
        "overdue: {:?} {:?} {}",
        status.state,
        world.reason(),
        status.message
    );
}

/// The module forges the time of the claim in the run report. The deadline of the run must not depend on this time.
#[test]
fn claim_in_the_future_delays_no_deadline() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    let claim = world.progress.as_mut().unwrap().claimed_by.as_mut();
    claim.unwrap().at = Timestamp::MAX;
    let due = world.reconcile().decision.requeue_at.unwrap();
    world.now = due;
    world.reconcile();
    assert!(
        world
            .status()
            .message
            .contains("has exceeded its timeouts, for example")
    );
}

/// Rule 13: a deleted resource waits for a pod that does not end. The status message must explain how to abandon the resource.
#[test]
fn deletion_waiting_for_overdue_run_names_abandon() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete();
    world.reconcile();
    world.advance_clock(24 * 3_600);
    world.reconcile();
    let status = world.status();
    assert!(status.message.contains("abandon"), "{}", status.message);
}

/// The pin of an applied resource is deleted by hand. The operator must write the pin again or report that the resource is not Ready,
/// because destroy would fail with `PinLost`.
#[test]
fn lost_pin_is_recreated_or_resource_is_not_ready() {
    let mut world = World::applied();
    world.pin = None;
    world.advance_clock(4 * 3_600);
    world.settle();
    assert!(
        world.pin.is_some() || !world.is_ready(),
        "Ready=True for ever; deletion will say PinLost"
    );
}

/// The registry in the spec changes, and the resource is deleted before the next apply. The pinned image is in the old registry, so destroy
/// must use the pull secret of the old registry.
#[test]
fn pinned_image_is_pulled_with_pull_secret_of_its_registry() {
    let mut world = World::applied();
    world.edit(|tf| {
        tf.with("/containerRegistry/imageName", "other.test/team/web")
            .with("/containerRegistry/secretRef/name", "othercred")
    });
    world.delete();
    let start = world.reconcile().decision.start.unwrap();
    let job = start
        .steps
        .iter()
        .find_map(|step| match step {
            Step::CreateJob(job) => Some(job),
            _ => None,
        })
        .unwrap();
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let secrets: Vec<_> = pod
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|secret| &secret.name)
        .collect();
    assert!(
        secrets.iter().any(|name| *name == "regcred"),
        "{:?} is pulled with {secrets:?}",
        pod.containers[0].image
    );
}

/// The run record of a resource with state in S3 is lost. When the state later moves to the managed backend, the operator must create the
/// Secrets of the managed state.
#[test]
fn recreated_record_assumes_no_managed_state() {
    let mut world = World::with(fixtures::terraform().with("/backend", s3("states")));
    world.settle();
    world.record = None;
    world.jobs.clear();
    world.ledger.forget_runs();
    world.settle();
    assert!(world.is_ready());
    world.edit(|tf| tf.with("/backend", json!({ "migrate": true })));
    world.run_to(Stage::Created);
    assert!(
        world.objects.contains("web-state"),
        "no run will ever find its state"
    );
}

/// The finalizer is removed by hand. The resource must stay Ready, because it is not a new resource.
#[test]
fn removed_finalizer_leaves_resource_ready() {
    let mut world = World::applied();
    world.tf.as_mut().unwrap().metadata.finalizers = None;
    world.reconcile();
    assert!(world.is_ready(), "{:?}", world.status());
}

/// An apply fails part-way. `InSync` must not be True.
#[test]
fn partial_apply_is_not_in_sync() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.reconcile();
    assert_ne!(condition(&world.status(), "InSync"), "True");
}

/// Drift mode `Report`: after drift was found, twelve drift checks in a row fail. The drift must stay in status.
#[test]
fn drift_stays_reported_while_drift_checks_fail() {
    let mut world = World::applied();
    world.edit(|tf| {
        tf.with("/driftDetection/mode", "Report")
            .with("/retry/limit", 30)
    });
    world.real.drifted = true;
    world.advance_clock(4 * 3_600);
    world.settle();
    assert_eq!(condition(&world.status(), "InSync"), "False");
    world.advance_clock(3_601);
    for _ in 0..12 {
        world.run_to(Stage::Planning);
        world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
        world.reconcile();
        world.advance_pod(0, PodEvent::Progress);
        world.advance_clock(601);
    }
    world.reconcile();
    assert_eq!(
        condition(&world.status(), "InSync"),
        "False",
        "{:?}",
        world.status().drift
    );
}

/// The controller is down while the first apply ends. The reconcile that publishes the outputs must not start a run for missing outputs.
#[test]
fn outputs_published_in_same_reconcile_start_no_run() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Progress);
    world.advance_pod(0, PodEvent::Progress);
    assert_eq!(world.pods[0].stage, Stage::Dead);
    world.settle();
    assert_eq!(world.run_number(), 1, "{:?}", world.last_run());
}
