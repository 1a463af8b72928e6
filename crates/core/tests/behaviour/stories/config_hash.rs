//! Rule 3: a change of the config hash starts a run. Other changes start no run.

use alustan_api::run::{BackendInputs, RunInputs};
use alustan_api::{Terraform, WrapperName};
use alustan_core::model::run_inputs::{config, run_inputs};
use alustan_core::observed::{InputsSeen, Seen, SourceSeen, VariablesSeen};
use k8s_openapi::jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::changed_nothing;
use crate::fixtures::{Edit as _, terraform};
use crate::world::World;

fn inputs(tf: &Terraform, seen: &InputsSeen) -> RunInputs {
    let source = SourceSeen {
        revision: "a1".to_owned(),
        artifact: "sha256:a1".to_owned(),
        context: "c1".to_owned(),
        path: "web".to_owned(),
        backend: None,
        committed_at: crate::fixtures::at(0),
        commit: None,
    };
    run_inputs(
        tf,
        &source,
        seen,
        &VariablesSeen::default(),
        0,
        SignedDuration::from_hours(24),
    )
    .ok()
    .unwrap()
}

fn hash(inputs: &RunInputs, seen: &InputsSeen) -> String {
    hash_of(b"key", "tag", inputs, seen)
}

fn hash_of(key: &[u8], tag: &str, inputs: &RunInputs, seen: &InputsSeen) -> String {
    let seen = Seen {
        inputs: Ok(seen.clone()),
        ..World::new().observe(0)
    };
    config(&terraform(), key, tag, inputs, &seen).hash
}

fn usual() -> RunInputs {
    inputs(&terraform(), &InputsSeen::default())
}

fn aws() -> serde_json::Value {
    json!({ "provider": "aws", "s3": "bucket", "region": "us-east-1" })
}

#[rstest]
#[case::a_variable(inputs(&terraform().with_variable("size", 9), &InputsSeen::default()))]
#[case::the_type_of_a_variable(inputs(&terraform().with_variable("size", "0"), &InputsSeen::default()))]
#[case::a_backend(inputs(&terraform().with("/backend", aws()), &InputsSeen::default()))]
#[case::the_workspace(RunInputs {
    backend: BackendInputs { workspace: Some("staging".to_owned()), ..usual().backend },
    ..usual()
})]
#[case::variable_files(RunInputs { var_files: vec!["prod.tfvars".to_owned()], ..usual() })]
#[case::the_wrapper(RunInputs { wrapper: Some(WrapperName::Terragrunt), ..usual() })]
#[case::the_path(RunInputs { path: "other".to_owned(), ..usual() })]
#[case::a_secret_part_of_the_backend(RunInputs {
    backend: BackendInputs {
        secret_config: [("conn_str".to_owned(), "x".to_owned())].into(), ..usual().backend
    },
    ..usual()
})]
#[case::credentials_of_the_backend(RunInputs {
    backend: BackendInputs {
        environment: [("AWS_ACCESS_KEY_ID".to_owned(), "x".to_owned())].into(), ..usual().backend
    },
    ..usual()
})]
fn config_hash_changes_with(#[case] inputs: RunInputs) {
    let seen = InputsSeen::default();
    assert_ne!(hash(&inputs, &seen), hash(&usual(), &seen));
}

#[test]
fn config_hash_changes_with_tag_key_scripts_and_environment() {
    let (seen, mut scripts) = (InputsSeen::default(), usual());
    let first = hash(&usual(), &seen);
    assert_ne!(hash_of(b"key", "another", &usual(), &seen), first);
    assert_ne!(hash_of(b"another", "tag", &usual(), &seen), first);
    scripts.scripts.destroy = Some("make destroy".to_owned());
    assert_ne!(hash(&scripts, &seen), first);
    let token = [("TOKEN".to_owned(), "x".to_owned())].into();
    let seen = InputsSeen {
        runner: [("cloud".to_owned(), token)].into(),
        ..seen
    };
    assert_ne!(hash(&usual(), &seen), first);
}

#[test]
fn variable_prefix_tf_var_is_stripped() {
    let plain = terraform().with_variable("zone", "a");
    let prefixed = terraform().with_variable("TF_VAR_zone", "a");
    let seen = InputsSeen::default();
    assert_eq!(
        inputs(&plain, &seen).variables,
        inputs(&prefixed, &seen).variables
    );
}

#[test]
fn additional_state_slots_do_not_change_config_hash() {
    let mut more = usual();
    let managed = more.backend.managed.as_mut().unwrap();
    managed.slots.push("web-state-slot-3".to_owned());
    let seen = InputsSeen::default();
    assert_eq!(hash(&more, &seen), hash(&usual(), &seen));
}

#[rstest]
#[case::retry("/retry/limit", json!(9))]
#[case::timeouts("/timeouts/apply", json!("2h"))]
#[case::drift_detection("/driftDetection/mode", json!("Report"))]
#[case::the_cache("/cache/size", json!("9Gi"))]
#[case::repository_interval("/gitRepo/interval", json!("5m"))]
#[case::the_architecture("/runner/architecture", json!("arm64"))]
#[case::engine_arguments("/engine", json!({ "parallelism": 3, "lockTimeout": "1m" }))]
#[case::the_builder("/containerRegistry/builder", json!({ "image": "b" }))]
fn no_run_starts_after_change_of(#[case] field: &str, #[case] value: serde_json::Value) {
    let mut world = World::applied();
    world.edit(|tf| tf.with(field, value));
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.start.is_none());
    assert!(world.is_ready());
    assert_eq!(world.status().observed_generation, Some(2));
    assert!(changed_nothing(&world.reconcile()));
}

fn moved() -> serde_json::Value {
    let mut backend = aws();
    backend["migrate"] = json!(true);
    backend
}

#[rstest]
#[case::variable("/variables/size", json!(9))]
#[case::variable_files("/varFiles", json!(["prod.tfvars"]))]
#[case::plans_without_refresh("/engine", json!({ "refresh": false }))]
#[case::backend("/backend", moved())]
#[case::script("/scripts/apply", json!({ "inline": "make apply" }))]
#[case::repository("/containerRegistry/imageName", json!("registry.test/other/web"))]
fn run_starts_after_change_of(#[case] field: &str, #[case] value: serde_json::Value) {
    let mut world = World::applied();
    world.edit(|tf| tf.with(field, value));
    world.reconcile();
    assert!(!world.is_ready());
    world.settle();
    assert_eq!(world.run_number(), 2);
    assert_eq!(world.last_run().1, "spec");
    assert!(world.is_ready());
}

#[test]
fn run_starts_after_change_of_runner_secret() {
    let mut world = World::applied();
    world.cloud = Some(1);
    world.settle();
    assert_eq!(world.run_number(), 2);
    assert!(world.is_ready());
}
