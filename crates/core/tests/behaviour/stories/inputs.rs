//! Rules 11, 14 and 16: the spec contains invalid references, or references to missing objects.

use alustan_api::State;
use alustan_core::step::{Object, Step};
use serde_json::json;

use super::{changed_nothing, step_names};
use crate::fixtures::{Edit as _, terraform};
use crate::world::{ReconcileFaults, Stage, World};

#[test]
fn missing_registry_secret_prevents_build() {
    let mut world = World::new();
    world.regcred = false;
    world.settle();
    assert!(world.builds.is_empty() && world.memory.pushed.is_empty());
    assert!(
        world
            .status()
            .message
            .contains("spec.containerRegistry.secretRef")
    );
    assert!(changed_nothing(&world.reconcile()));
    world.regcred = true;
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn missing_secret_is_reported_before_outages() {
    let mut world = World::new();
    world.regcred = false;
    (world.git_up, world.registry_up) = (false, false);
    world.settle();
    assert_eq!(world.reason(), "SecretNotFound");
    world.advance_clock(600);
    assert!(changed_nothing(&world.reconcile()));
}

#[test]
fn secret_deleted_after_apply_is_reported_without_new_run() {
    let mut world = World::applied();
    world.cloud = None;
    world.settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Pending, "SecretNotFound")
    );
    assert!(
        world
            .status()
            .image
            .is_some_and(|image| image.digest.is_some())
    );
    world.cloud = Some(0);
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1, "it has the same value");
}

#[test]
fn backend_conflict_with_module_is_refused_before_build() {
    let aws = json!({ "provider": "aws", "s3": "bucket", "region": "us-east-1" });
    let mut world = World::with(terraform().with("/backend", aws));
    world.module_backend = Some("gcs".to_owned());
    world.settle();
    assert!(world.is_stalled());
    assert_eq!(world.reason(), "BackendConflict");
    assert!(
        world
            .status()
            .message
            .starts_with("spec.backend.provider: the module has a")
    );
    assert!(world.builds.is_empty());
    world.edit(|tf| tf.with("/backend", json!(null))).settle();
    assert!(world.is_ready());
}

#[test]
fn registry_secret_is_used_as_pull_secret() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    assert_eq!(
        world.pin.clone().unwrap().pull_secret.as_deref(),
        Some("regcred")
    );
    assert!(!world.objects.contains("web-registry"));
}

#[test]
fn pull_secret_is_derived_from_secret_of_another_type() {
    let mut world = World::new();
    world.pull_config = Some(r#"{"auths":{}}"#.to_owned());
    let mut pulls = Vec::new();
    for _ in 0..20 {
        let decision = world.reconcile_with(ReconcileFaults::default()).decision;
        let started = decision.start.map(|start| start.steps).unwrap_or_default();
        for step in decision.steps.iter().chain(&started) {
            match step {
                Step::Ensure(object) => {
                    if let Object::Secret(secret) = &**object {
                        pulls.extend(secret.type_.clone().filter(|type_| type_ != "Opaque"));
                    }
                }
                Step::CreateJob(job) => {
                    let pod = job.spec.clone().unwrap().template.spec.unwrap();
                    pulls.push(pod.image_pull_secrets.unwrap()[0].name.clone());
                }
                _ => {}
            }
        }
        world.advance_builds(None);
    }
    let kind = "kubernetes.io/dockerconfigjson";
    assert_eq!(
        pulls,
        [kind, "web-registry", kind, "web-registry"],
        "before build and run"
    );
    assert_eq!(
        world.pin.unwrap().pull_secret.as_deref(),
        Some("web-registry")
    );
}

#[test]
fn pull_secret_is_recreated_from_pin_without_registry_secret() {
    let mut world = World::new();
    world.pull_config = Some(r#"{"auths":{}}"#.to_owned());
    world.settle();
    world.regcred = false;
    world.delete();
    let reconciled = world.reconcile();
    let start = reconciled.decision.start.unwrap();
    assert!(step_names(&start.steps).contains(&"Ensure Secret web-registry".to_owned()));
    let Some(Step::CreateJob(job)) = start.steps.last() else {
        panic!("no Job")
    };
    let pod = job.spec.clone().unwrap().template.spec.unwrap();
    assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "web-registry");
}

#[test]
fn images_are_pulled_anonymously_without_registry_secret() {
    let open = terraform().with("/containerRegistry/secretRef", json!(null));
    let mut world = World::with(open);
    world.run_to(Stage::Planning);
    assert_eq!(world.pin.clone().unwrap().pull_secret, None);
}
