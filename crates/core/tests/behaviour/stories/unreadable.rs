//! Rule 13: for a deleted resource that cannot be parsed, destroy uses the metadata of the resource and the pin.

use alustan_api::{Script, Terraform};
use alustan_core::model::lenient::parse_leniently;
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::{Edit as _, terraform};
use crate::world::World;

/// Returns the stored resource with an invalid value at `pointer` of its spec.
fn unreadable(world: &World, pointer: &str) -> Value {
    let mut stored = serde_json::to_value(world.tf()).unwrap();
    let wrong = json!("of another time");
    *stored["spec"].pointer_mut(pointer).unwrap() = wrong;
    assert!(serde_json::from_value::<Terraform>(stored.clone()).is_err());
    stored
}

/// Parses `stored` as the operator parses a deleted resource: fields that are invalid in `stored` get their values from the pin of `world`.
fn read(world: &World, stored: &Value) -> Terraform {
    let metadata = world.tf().metadata.clone();
    parse_leniently(metadata, stored, world.pin.as_ref()).unwrap()
}

fn applied() -> World {
    let tf = terraform()
        .with_script("destroy", "make destroy")
        .with_variable("zones", json!(["a"]));
    let mut world = World::with(tf);
    world.settle();
    world
}

#[test]
fn unreadable_resource_is_destroyed_with_pinned_spec() {
    let mut world = applied();
    world.delete();
    let mut stored = unreadable(&world, "/gitRepo");
    stored["spec"]["containerRegistry"] = json!("registry.test");
    stored["status"] = json!({"runs": "many"});
    let tf = read(&world, &stored);
    assert_eq!(tf.status, None);
    assert_eq!(tf.metadata, world.tf().metadata);
    assert_eq!(tf.spec, world.tf().spec);
    world.tf = Some(tf);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn readable_fields_override_the_pin() {
    let world = applied();
    let mut stored = unreadable(&world, "/gitRepo");
    stored["spec"]["deletionProtection"] = json!(true);
    stored["spec"]["scripts"] = json!({"destroy": {"inline": "make clean"}});
    stored["spec"]["timeouts"] = json!({"destroy": 7});
    let tf = read(&world, &stored);
    assert!(tf.spec.deletion_protection);
    let script = |tf: &Terraform| -> Script { tf.spec.scripts.clone().unwrap().destroy.unwrap() };
    assert_eq!(script(&tf).inline.as_deref(), Some("make clean"));
    assert_eq!(tf.spec.git_repo, world.tf().spec.git_repo);
    assert_eq!(tf.spec.timeouts, world.tf().spec.timeouts);
    assert_eq!(tf.spec.variables, world.tf().spec.variables);
}

#[test]
fn field_removed_from_spec_is_not_taken_from_pin() {
    let mut world = applied();
    world.edit(|tf| tf.with("/deletionProtection", true));
    world.pin.as_mut().unwrap().spec["deletionProtection"] = json!(true);
    let mut stored = unreadable(&world, "/retry");
    let spec = stored["spec"].as_object_mut().unwrap();
    spec.remove("deletionProtection");
    assert!(!read(&world, &stored).spec.deletion_protection);
}

#[test]
fn readable_fields_are_used_without_pin() {
    let mut world = applied();
    world.pin = None;
    let stored = unreadable(&world, "/gitRepo");
    let tf = read(&world, &stored);
    assert_eq!(tf.spec.git_repo.unwrap().url, "https://unknown.invalid/");
    assert_eq!(tf.spec.runner, world.tf().spec.runner);
    assert!(tf.status.is_some());
}

#[test]
fn pin_with_unreadable_spec_is_still_used() {
    let mut world = applied();
    world.pin.as_mut().unwrap().spec = json!({"something": "else"});
    world.delete();
    let tf = read(&world, &unreadable(&world, "/retry"));
    assert_eq!(tf.spec.git_repo, world.tf().spec.git_repo);
    world.tf = Some(tf);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_needs_only_metadata_and_pin() {
    let mut world = applied();
    world.delete();
    world.tf = Some(read(&world, &json!({})));
    assert_eq!(world.tf().spec.variables, std::collections::BTreeMap::new());
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

/// An unknown value in one rule makes `spec.approval` unparsable. `spec.approval.destroy: Manual` must still apply.
#[test]
fn destroy_waits_for_approval_with_unreadable_rules() {
    let mut world = applied();
    world.edit(|tf| tf.with("/approval/destroy", "Manual"));
    world.delete();
    let mut stored = serde_json::to_value(world.tf()).unwrap();
    let rule = json!({"when": "plan.add > 0", "then": "SomethingNew"});
    stored["spec"]["approval"]["rules"] = json!([rule]);
    assert!(serde_json::from_value::<Terraform>(stored.clone()).is_err());
    world.tf = Some(read(&world, &stored));
    world.settle();
    world.is_destroyed_once_approved();
}

#[rstest]
#[case::policy("deletionPolicy", json!("Retain"))]
#[case::protection("deletionProtection", json!("always"))]
#[case::suspend("suspend", json!({"until": "tomorrow"}))]
fn unknown_value_of_protective_field_prevents_destroy(#[case] field: &str, #[case] value: Value) {
    let mut world = applied();
    world.delete();
    let mut stored = serde_json::to_value(world.tf()).unwrap();
    stored["spec"][field] = value;
    assert!(serde_json::from_value::<Terraform>(stored.clone()).is_err());
    world.tf = Some(read(&world, &stored));
    world.settle();
    assert!(!world.real.is_empty(), "destroyed");
    assert!(world.is_stalled());
}
