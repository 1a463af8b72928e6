//! Architecture of images and nodes: `--architecture`, `spec.runner.architecture`.

use alustan_api::Architecture::{self, Amd64, Arm64};
use alustan_api::labels;
use alustan_api::report::FailureClass;
use k8s_openapi::api::batch::v1::Job;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::Value;

use super::objects::{CreatedObjects, pod};
use crate::fixtures::Edit as _;
use crate::world::{Stage, World};

/// Returns a simulated cluster with a resource that an operator on amd64 has applied.
fn applied() -> World {
    let mut world = World::new();
    world.settings.own_architecture = Amd64;
    world.settle();
    assert!(world.is_ready());
    world
}

/// Returns the architecture in the node selector of each pod. All pods also select Linux nodes.
fn selectors(created: &CreatedObjects) -> Vec<String> {
    let selector = |job: &Job| {
        let mut selector = pod(job).node_selector.unwrap();
        assert_eq!(selector["kubernetes.io/os"], "linux");
        selector.remove("kubernetes.io/arch").unwrap()
    };
    created.jobs.iter().map(selector).collect()
}

fn is_build(job: &Job) -> bool {
    job.labels().contains_key(labels::IMAGE_TAG)
}

fn last_architecture(world: &World) -> Architecture {
    let record = world.record.as_ref().unwrap();
    record.record.run.as_ref().unwrap().architecture
}

#[test]
fn leader_on_another_architecture_builds_and_applies_nothing() {
    let mut world = applied();
    world.settings.own_architecture = Arm64;
    world.restart().settle();
    assert!(world.is_ready());
    assert_eq!((world.run_number(), world.builds.len()), (1, 1));
    let created = CreatedObjects::in_world(world);
    assert!(!created.jobs.is_empty() && !created.jobs.iter().any(is_build));
    assert!(
        selectors(&created)
            .iter()
            .all(|selector| selector == "amd64")
    );
}

#[test]
fn pending_plan_survives_a_leader_on_another_architecture() {
    let mut world = World::new();
    world.edit(|tf| tf.with("/approval/mode", "Manual"));
    world.settings.own_architecture = Amd64;
    world.settle();
    world.settings.own_architecture = Arm64;
    world.restart().settle();
    assert!(world.approve(), "{:?}", world.status());
    world.settle();
    assert!(world.is_ready());
    assert_eq!((last_architecture(&world), world.builds.len()), (Amd64, 1));
}

fn by_the_operator(world: &mut World) {
    world.settings.architecture = Some(Arm64);
}

fn by_the_resource(world: &mut World) {
    world.edit(|tf| tf.with("/runner/architecture", "arm64"));
}

#[rstest]
#[case::by_the_operator(by_the_operator as fn(&mut World))]
#[case::by_the_resource(by_the_resource as fn(&mut World))]
fn configured_architecture_is_used_by_the_next_run(#[case] configure: fn(&mut World)) {
    let mut world = applied();
    configure(&mut world);
    world.restart().settle();
    assert!(world.is_ready());
    assert_eq!((world.run_number(), world.builds.len()), (1, 1));
    let created = CreatedObjects::in_world(world);
    assert!(is_build(&created.jobs[0]) && !is_build(&created.jobs[1]));
    assert!(
        selectors(&created)
            .iter()
            .all(|selector| selector == "arm64")
    );
}

/// One image has one architecture: resources in one cluster can use different ones.
#[test]
fn resources_of_two_architectures_have_different_images() {
    let tag = |architecture: &str| {
        let mut world = World::new();
        world.edit(|tf| tf.with("/runner/architecture", architecture));
        world.settle();
        assert!(world.is_ready());
        world
            .record
            .as_ref()
            .unwrap()
            .record
            .run
            .clone()
            .unwrap()
            .tag
    };
    assert_ne!(tag("amd64"), tag("arm64"));
}

#[test]
fn resource_overrides_the_operator() {
    let mut world = World::new();
    world.settings.architecture = Some(Arm64);
    world.edit(|tf| tf.with("/runner/architecture", "amd64"));
    world.settle();
    assert_eq!(last_architecture(&world), Amd64);
}

#[test]
fn architecture_of_a_failed_run_is_not_recorded() {
    let mut world = World::new();
    world.settings.own_architecture = Amd64;
    world.edit(|tf| tf.with("/runner/architecture", "arm64"));
    world.fail_at(Stage::Planning, FailureClass::User);
    assert_eq!(last_architecture(&world), Arm64);
    world.edit(|tf| {
        tf.with("/runner/architecture", Value::Null)
            .with("/variables/size", 2)
    });
    world.settle();
    assert_eq!(last_architecture(&world), Amd64);
}

#[test]
fn destroy_runs_on_the_architecture_of_the_apply() {
    let mut world = applied();
    world.settings.own_architecture = Arm64;
    world.restart().delete();
    let created = CreatedObjects::by_destroying(world);
    assert_eq!(selectors(&created), ["amd64"]);
    assert!(pod(&created.jobs[0]).init_containers.is_none());
}

#[rstest]
#[case::by_the_operator(by_the_operator as fn(&mut World))]
#[case::by_the_resource(by_the_resource as fn(&mut World))]
fn destroy_on_another_architecture_unpacks_the_base_image(#[case] configure: fn(&mut World)) {
    let mut world = applied();
    configure(&mut world);
    world.restart().delete();
    let created = CreatedObjects::by_destroying(world);
    assert_eq!(selectors(&created), ["arm64"]);
    assert!(pod(&created.jobs[0]).init_containers.is_some());
}
