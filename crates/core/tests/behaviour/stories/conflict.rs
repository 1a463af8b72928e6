//! Rules 11 and 13: the Terraform state of a resource belongs, or belonged, to another resource.

use alustan_api::report::FailureClass;
use alustan_core::model::state_conflict;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::fixtures::{Edit as _, at, terraform};
use crate::world::{PodEvent, Stage, World};

fn in_s3(name: &str, second: i64) -> alustan_api::Terraform {
    let backend = json!({ "provider": "aws", "s3": "bucket", "region": "us-east-1", "key": name });
    let mut tf = terraform().named(name).with("/backend", backend);
    tf.metadata.creation_timestamp = Some(Time(at(second)));
    tf
}

/// Returns resource `old`, which is older than `web` and is applied. Its state is in S3 at key `key`.
fn owner(key: &str) -> alustan_api::Terraform {
    let mut tf = in_s3("old", 1).with("/backend/key", key);
    let applied = World::applied().status().last_applied;
    let address = state_conflict::address(&tf);
    let status = tf.status.get_or_insert_default();
    status.last_applied = applied;
    status.state_address = address;
    tf
}

#[test]
fn claimed_address_does_not_block_owner_of_the_state() {
    let mut world = World::with(in_s3("web", 5));
    world.settle();
    assert!(world.is_ready());
    let address = state_conflict::address(world.tf.as_ref().unwrap());
    // Two older resources are applied and have the state address of `web`: `reported_owner` in its run report, `spec_owner` in its spec.
    let mut reported_owner = terraform().named("old");
    reported_owner.metadata.creation_timestamp = Some(Time(at(1)));
    reported_owner.status.clone_from(&owner("old").status);
    reported_owner.status.get_or_insert_default().state_address = address;
    let mut spec_owner = in_s3("old", 1).with("/backend/key", "web");
    spec_owner.status.clone_from(&owner("old").status);
    world.others = vec![reported_owner, spec_owner];
    world.commit(1).settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 2, "the new commit is applied");
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn address_in_spec_overrides_forged_address_in_report() {
    let mut world = World::with(in_s3("web", 5));
    world.run_to(Stage::Reported);
    set_reported_address(&mut world, "s3://bucket/of-another");
    world.settle();
    let address = state_conflict::address(world.tf.as_ref().unwrap());
    assert_eq!(world.status().state_address, address);
}

#[test]
fn forged_address_of_a_managed_state_is_ignored() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    set_reported_address(&mut world, "s3://bucket/of-another");
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    let address = world.status().state_address;
    assert_eq!(address.as_deref(), Some("secret://team/web-state"));
}

/// Rules 11 and 13: two resources use one state. Deletion of the younger resource must not destroy the objects of the older resource.
#[test]
fn state_of_older_resource_is_not_destroyed_with_younger_one() {
    let mut world = World::with(in_s3("web", 5));
    world.settle();
    assert!(world.is_ready());
    world.others = vec![owner("web")];
    world.settle();
    assert_eq!(world.reason(), "StateConflict");
    world.delete().settle();
    assert!(
        !world.real.is_empty(),
        "what the older one has is destroyed"
    );
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("StateConflict", true)
    );
    let message = world.status().message;
    assert!(message.contains("alustan.io/abandon=true"), "{message}");
    // After the older resource is gone, the operator destroys the objects of the younger resource.
    world.now = world.reconcile().decision.requeue_at.unwrap();
    world.others.clear();
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

/// Each workspace has its own state, in an object of the bucket whose key contains the workspace.
#[test]
fn resources_with_one_key_conflict_only_in_one_workspace() {
    let mut world = World::with(in_s3("web", 5).with("/workspace", "staging"));
    world.others = vec![owner("web")];
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    let address = world.status().state_address;
    assert_eq!(address.as_deref(), Some("s3://bucket/env:/staging/web"));
    for other in [
        owner("web").with("/workspace", "staging"),
        owner("env:/staging/web"),
    ] {
        let mut world = World::with(in_s3("web", 5).with("/workspace", "staging"));
        world.others = vec![other];
        world.settle();
        assert_eq!(world.reason(), "StateConflict");
    }
}

#[test]
fn destroy_uses_own_state_if_spec_names_state_of_another() {
    let mut world = World::with(in_s3("web", 5));
    world.settle();
    world.others = vec![owner("old")];
    world.edit(|tf| tf.with("/backend/key", "old"));
    world.settle();
    assert_eq!(world.reason(), "StateConflict");
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

/// Sets the state address in the current report to `address`.
fn set_reported_address(world: &mut World, address: &str) {
    let report = world.record.as_mut().unwrap().report.as_mut();
    report.unwrap().state_address = Some(address.to_owned());
}

/// Rule 11: the state address in a run report is outdated once the module changes its backend.
#[test]
fn conflict_ends_once_the_module_changes_its_backend() {
    let state = "gcs://bucket/web";
    let mut old = terraform().named("old");
    old.metadata.creation_timestamp = Some(Time(at(1)));
    old.status.get_or_insert_default().state_address = Some(state.to_owned());
    let mut tf = terraform();
    tf.metadata.creation_timestamp = Some(Time(at(5)));
    let mut world = World::with(tf);
    world.module_backend = Some("gcs".to_owned());
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    set_reported_address(&mut world, state);
    world.others = vec![old];
    world.settle();
    world.settle();
    assert_eq!(world.reason(), "StateConflict");
    world.advance_clock(36_000).settle();
    assert_eq!(
        world.run_number(),
        1,
        "nothing is tried in the state of another"
    );
    // With this commit, the module uses another backend.
    world.commit(1).run_to(Stage::Reported);
    set_reported_address(&mut world, "gcs://bucket/of-its-own");
    for _ in 0..10 {
        world.reconcile();
        assert_ne!(world.reason(), "StateConflict");
        world.advance_pod(0, PodEvent::Progress);
    }
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn changed_backend_after_deletion_keeps_the_conflict() {
    let mut world = World::with(in_s3("web", 5));
    world.settle();
    world.others = vec![owner("web")];
    world.delete();
    world.edit(|tf| tf.with("/backend/key", "elsewhere"));
    world.settle();
    assert_eq!(world.reason(), "StateConflict");
    assert!(
        !world.real.is_empty(),
        "what the older one has is destroyed"
    );
}
