//! Sources of modules other than git repositories.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_core::model::run_inputs::variable_names;
use alustan_core::observed::{FoundInput, FoundValue, VariablesSeen};
use serde_json::{Value, json};

use crate::fixtures::{Edit as _, terraform};
use crate::world::World;

/// Returns the fixture with `spec.source` instead of `spec.gitRepo`.
fn from_source(source: Value) -> Terraform {
    let mut tf = terraform().with("/source", source);
    tf.spec.git_repo = None;
    tf
}

#[test]
fn suspended_resource_keeps_the_revision_of_its_source() {
    let artifact = json!({"oci": {"url": "oci://registry.test/net"}});
    let mut world = World::with(from_source(artifact));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world.edit(|tf| tf.with("/suspend", true)).settle();
    let source = world.status().source;
    world.restart();
    (world.git_up, world.registry_up) = (false, false);
    world.settle();
    world
        .edit(|tf| tf.with("/source/oci/interval", "5m"))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.status().source, source);
    world.edit(|tf| tf.with("/source/oci/tag", "next")).settle();
    assert!(world.is_stalled(), "{:?}", world.status());
}

#[test]
fn root_module_has_the_variables_with_values_and_the_required_ones() {
    let from = json!([
        {"secretRef": {"name": "whole"}},
        {"secretRef": {"name": "db", "keys": {"password": "p", "TF_VAR_user": "u"}}},
        {"configMapRef": {"name": "maybe", "keys": {"size": "s"}, "optional": true}},
        {"terraformRef": {"name": "net", "outputs": {"subnets": "ids"}}},
        {"objectRef": {"apiVersion": "v1", "kind": "Pod", "name": "x", "values": {"ip": "object.status.podIP"}}},
    ]);
    let mut tf = terraform().with("/variablesFrom", from);
    tf.spec.variables.clear();
    let tf = tf.with_variable("TF_VAR_region", "us-east-1");
    let names = |seen: &VariablesSeen| {
        let names = variable_names(&tf, seen);
        names.into_iter().collect::<Vec<_>>().join(" ")
    };
    let nothing = VariablesSeen::default();
    assert_eq!(names(&nothing), "ip password region subnets user");
    let values = ["token", "size"].map(|name| {
        let value = FoundValue {
            value: json!("x"),
            secret: true,
        };
        (name.to_owned(), value)
    });
    let found = VariablesSeen {
        found: vec![FoundInput {
            of: "Secret whole".to_owned(),
            values: BTreeMap::from(values),
            trigger: true,
        }],
        missing: None,
    };
    assert_eq!(names(&found), "ip password region size subnets token user");
}
