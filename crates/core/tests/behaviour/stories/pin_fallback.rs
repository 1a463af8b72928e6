//! Rule 13: if an object that the spec names exists, destroy uses its values. If it is missing, destroy uses the values in the pin.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::report::FailureClass;
use alustan_api::run::{RunInputs, RunKind};
use alustan_core::observed::CacheSeen;
use alustan_core::step::{Keep, Object, Step};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube_core::ResourceExt;
use serde_json::json;

use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World};

/// Returns a resource that references every kind of object that may be deleted before destroy.
fn rich() -> Terraform {
    let backend = json!({
        "provider": "aws", "s3": "states", "region": "us-east-1", "secretRef": {"name": "aws"},
    });
    let script = json!({"configMapRef": {"name": "scripts", "key": "destroy"}});
    terraform()
        .with("/backend", backend)
        .with("/scripts", json!({"destroy": script}))
}

fn applied() -> World {
    let mut world = World::with(rich());
    world.cloud = Some(7);
    world.script = Some("make destroy".to_owned());
    world.backend_secret = [("AWS_ACCESS_KEY_ID".to_owned(), "k".to_owned())].into();
    r#"{"auths":{"registry.test":{"auth":"dTpw"}}}"#.clone_into(&mut world.docker_config);
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world
}

fn remove_referenced_objects(world: &mut World) {
    world.git_up = false;
    world.registry_up = false;
    world.regcred = false;
    world.cloud = None;
    world.script = None;
    world.backend_secret.clear();
    world.cache = CacheSeen::Lost;
    world.restart();
}

/// Starts the next run. Returns the inputs of the run, its Job, and the Secrets that the operator applies before it creates the Job.
fn started(world: &mut World) -> (RunInputs, Job, Vec<Secret>) {
    let start = world.reconcile().decision.start.expect("a run");
    let inputs = world.record.clone().unwrap().inputs.unwrap();
    let (mut jobs, mut secrets) = (Vec::new(), Vec::new());
    for step in start.steps {
        match step {
            Step::CreateJob(job) => jobs.push(*job),
            Step::Ensure(object) => {
                if let Object::Secret(secret) = *object {
                    secrets.push(secret);
                }
            }
            _ => {}
        }
    }
    (inputs, jobs.remove(0), secrets)
}

#[test]
fn destroy_succeeds_without_any_referenced_object() {
    let mut world = applied();
    remove_referenced_objects(&mut world);
    world.delete();
    let (inputs, job, secrets) = started(&mut world);
    assert_eq!(inputs.scripts.destroy.as_deref(), Some("make destroy"));
    assert_eq!(inputs.environment["TOKEN"], "7");
    assert!(inputs.secret_environment.contains("TOKEN"));
    assert_eq!(inputs.backend.environment["AWS_ACCESS_KEY_ID"], "k");
    let pod = job.spec.unwrap().template.spec.unwrap();
    let env_secrets = pod.containers[0].env_from.iter().flatten();
    let mut env_secrets = env_secrets.filter_map(|from| from.secret_ref.as_ref());
    assert!(env_secrets.all(|secret| secret.optional == Some(true)));
    let pulls = pod.image_pull_secrets.unwrap();
    assert_eq!(pulls[0].name, "web-registry");
    let derived = secrets
        .iter()
        .find(|secret| secret.name_any() == "web-registry");
    let data = derived.unwrap().data.clone().unwrap();
    let docker = String::from_utf8(data[".dockerconfigjson"].0.clone()).unwrap();
    assert_eq!(docker, world.docker_config);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_uses_pin_only_for_missing_values() {
    let mut world = applied();
    world.cloud = None;
    world.script = Some("make clean".to_owned());
    world.backend_secret = [("AWS_ACCESS_KEY_ID".to_owned(), "new".to_owned())].into();
    world.delete();
    let (inputs, ..) = started(&mut world);
    assert_eq!(inputs.scripts.destroy.as_deref(), Some("make clean"));
    assert_eq!(inputs.backend.environment["AWS_ACCESS_KEY_ID"], "new");
    assert_eq!(inputs.environment["TOKEN"], "7");
}

/// Returns the environment variables that a destroy run gets from the pin. `names`: names of the Secrets in `envFromSecrets`, in order.
/// Secret `cloud` is deleted, Secret `other` exists.
fn environment(names: [&str; 2]) -> BTreeMap<String, String> {
    let mut world = applied();
    let pinned = ["TOKEN", "REGION", "PROXY"].map(|name| (name.to_owned(), "pinned".to_owned()));
    let pin = world.pin.as_mut().unwrap();
    pin.environment.insert("cloud".to_owned(), pinned.into());
    let explicit = ("PROXY".to_owned(), "explicit".to_owned());
    world.settings.environment.extend([explicit]);
    world.cloud = None;
    let secrets = names.map(|name| json!({"name": name}));
    world.edit(|tf| tf.with("/runner/envFromSecrets", json!(secrets)));
    world.delete();
    let mut seen = world.observe(0);
    let mut inputs = seen.found().clone();
    let live = [("TOKEN".to_owned(), "live".to_owned())].into();
    inputs.runner.insert("other".to_owned(), live);
    seen.inputs = Ok(inputs);
    let (_, decision) = world.decide(seen);
    let start = decision.start.expect("a run");
    let mut swaps = start.steps.into_iter().filter_map(|step| match step {
        Step::SwapRecord(swap) => Some(swap.inputs),
        _ => None,
    });
    let set = |inputs| match inputs {
        Keep::Set(inputs) => Some(*inputs),
        Keep::Same | Keep::Drop => None,
    };
    swaps.find_map(set).unwrap().environment
}

#[test]
fn missing_secret_keeps_its_precedence_in_environment() {
    let later = environment(["cloud", "other"]);
    assert_eq!(later, [("REGION".to_owned(), "pinned".to_owned())].into());
    let earlier = environment(["other", "cloud"]);
    let pinned = ["REGION", "TOKEN"].map(|name| (name.to_owned(), "pinned".to_owned()));
    assert_eq!(earlier, pinned.into());
}

#[test]
fn pin_is_not_used_if_nothing_is_missing() {
    let mut world = applied();
    world.delete();
    let (inputs, _, secrets) = started(&mut world);
    assert!(inputs.environment.is_empty());
    assert!(
        !secrets
            .iter()
            .any(|secret| secret.name_any() == "web-registry")
    );
}

#[test]
fn script_removed_from_spec_is_not_run() {
    let mut world = applied();
    world.edit(|tf| tf.with("/scripts", json!(null)));
    world.script = None;
    world.delete();
    let (inputs, ..) = started(&mut world);
    assert_eq!(inputs.scripts.destroy, None);
}

#[test]
fn secret_deleted_during_destroy_does_not_reset_budget() {
    let mut world = applied();
    world.delete().run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.reconcile();
    world.advance_pod(0, PodEvent::Progress);
    assert!(world.is_stalled(), "{:?}", world.status());
    remove_referenced_objects(&mut world);
    world.settle();
    assert!(world.is_stalled(), "the same values, the same destroy");
    world.cloud = Some(8);
    world.settle();
    assert!(world.tf.is_none(), "another value is a new budget");
}

#[test]
fn apply_waits_for_missing_secret() {
    let mut world = applied();
    world.cloud = None;
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert_eq!(world.reason(), "SecretNotFound");
    assert_eq!(world.last_run().0, RunKind::Apply);
    assert_eq!(world.run_number(), 1);
}

#[test]
fn the_pin_has_the_spec_and_the_variables_once() {
    let world = applied();
    let pin = world.pin.unwrap();
    assert_eq!(pin.spec["backend"]["s3"], "states");
    assert_eq!(pin.spec.get("variables"), None);
    assert_eq!(pin.inputs.variables["size"], 0);
    assert_eq!(
        pin.artifact.as_deref(),
        Some("registry.test/team/web@sha256:artifact-0")
    );
    assert_eq!(
        pin.base.as_deref(),
        Some("registry.test/base:1@sha256:base-1")
    );
}
