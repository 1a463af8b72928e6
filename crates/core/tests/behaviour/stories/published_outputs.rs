//! Rule 14: the operator publishes the outputs of the last apply to the objects in `spec.outputs`.

use std::collections::BTreeMap;

use alustan_api::labels;
use alustan_api::run::{Output, RunKind};
use alustan_core::objects::outputs;
use alustan_core::observed::Ownership;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::{changed_nothing, step_names};
use crate::fixtures::{self, Edit as _};
use crate::world::{ReconcileFaults, Stage, World};

/// Returns a simulated cluster with `spec.outputs` set to `spec`. The module has outputs besides `size`.
fn with_outputs(spec: Value) -> World {
    let mut world = World::with(fixtures::terraform().with("/outputs", spec));
    for (name, value, sensitive) in [
        ("endpoint", json!("https://api.test"), false),
        ("zones", json!(["a", "b"]), false),
        ("config", json!({"token": "hush"}), true),
    ] {
        let output = Output { value, sensitive };
        world.more_outputs.insert(name.to_owned(), output);
    }
    world
}

fn applied(spec: Value) -> World {
    let mut world = with_outputs(spec);
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world
}

/// Returns the data of the outputs Secret.
fn secret(world: &World) -> BTreeMap<String, String> {
    let data = world.outputs_secret.data.iter().flatten();
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    data.map(|(key, value)| (key.clone(), text(&value.0)))
        .collect()
}

fn texts<const N: usize>(texts: [(&str, &str); N]) -> BTreeMap<String, String> {
    BTreeMap::from(texts.map(|(key, text)| (key.to_owned(), text.to_owned())))
}

/// A reconcile that observes an outdated run record must not publish the outputs of an earlier apply.
#[test]
fn outputs_of_an_earlier_apply_are_not_published_again() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let versions_before = world.earlier_records.len();
    world.settle();
    assert_eq!(secret(&world)["size"], "0");
    world.edit(|tf| tf.with_variable("size", 1));
    world.settle();
    assert_eq!(secret(&world)["size"], "1");
    let stale = world.earlier_records.len() - versions_before;
    world.reconcile_with(ReconcileFaults {
        stale: Some(stale),
        crash: None,
    });
    world.settle();
    assert!(world.is_ready());
    assert_eq!(secret(&world)["size"], "1", "those of the apply before");
}

#[test]
fn sensitive_outputs_are_published_only_in_the_secret() {
    let world = applied(json!({
        "configMapName": "web-values",
        "keys": {"server": "endpoint", "zones": "zones", "config": "config"},
    }));
    let public = texts([("server", "https://api.test"), ("zones", r#"["a","b"]"#)]);
    assert_eq!(world.outputs_config_map.data.as_ref(), Some(&public));
    let config = texts([("config", r#"{"token":"hush"}"#)]);
    assert_eq!(secret(&world), public.into_iter().chain(config).collect());
    let read = outputs::read(&world.outputs_secret);
    assert_eq!(read["zones"].value, json!(["a", "b"]));
    assert!(read["config"].sensitive && !read["server"].sensitive);
    let to = world.status().outputs.unwrap();
    assert_eq!(to.secret_name, "web-outputs");
    assert_eq!(to.config_map_name.as_deref(), Some("web-values"));
}

#[test]
fn outputs_without_keys_are_all_published_in_the_secret() {
    let world = applied(Value::Null);
    let keys: Vec<_> = secret(&world).into_keys().collect();
    assert_eq!(keys, ["config", "endpoint", "size", "zones"]);
    assert!(
        world.outputs_config_map.data.is_none()
            && world.status().outputs.unwrap().config_map_name.is_none()
    );
}

#[test]
fn labels_in_spec_do_not_replace_labels_of_the_operator() {
    let world = applied(json!({
        "configMapName": "web-values",
        "labels": {"argocd.argoproj.io/secret-type": "cluster", labels::UID: "another"},
        "annotations": {"example.com/zones": "zones", "example.com/server": "endpoint"},
        "constantAnnotations": {"reloader.stakater.com/match": "true"},
    }));
    let wanted = texts([
        ("reloader.stakater.com/match", "true"),
        ("example.com/zones", r#"["a","b"]"#),
        ("example.com/server", "https://api.test"),
    ]);
    let ours = texts([
        (labels::JSON_OUTPUTS, "config,size,zones"),
        (labels::SENSITIVE_OUTPUTS, "config"),
    ]);
    assert_eq!(world.outputs_config_map.annotations(), &wanted);
    let annotations: BTreeMap<_, _> = wanted.into_iter().chain(ours).collect();
    assert_eq!(world.outputs_secret.annotations(), &annotations);
    for has in [
        world.outputs_config_map.labels(),
        world.outputs_secret.labels(),
    ] {
        assert_eq!(has["argocd.argoproj.io/secret-type"], "cluster");
        assert_eq!(has[labels::UID], "uid-of-web");
        assert_eq!(has[labels::COMPONENT], "outputs");
    }
}

#[rstest]
#[case::key(
    json!({"keys": {"server": "host"}}),
    "OutputNotFound",
    "spec.outputs.keys.server: the module has no output host, or its value is null (outputs: config, endpoint, size, zones)"
)]
#[case::annotation(
    json!({"annotations": {"example.com/server": "host"}}),
    "OutputNotFound",
    "spec.outputs.annotations.example.com/server: the module has no output host, or its value is null (outputs: config"
)]
#[case::sensitive(
    json!({"annotations": {"example.com/config": "config"}}),
    "OutputSensitive",
    "spec.outputs.annotations.example.com/config: output config is sensitive"
)]
#[case::reserved(
    json!({"annotations": {"alustan.io/json-outputs": "zones"}}),
    "OutputAnnotationReserved",
    "spec.outputs.annotations.alustan.io/json-outputs: this annotation is reserved"
)]
#[case::reserved_constant(
    json!({"constantAnnotations": {"kubernetes.io/service-account.name": "default"}}),
    "OutputAnnotationReserved",
    "spec.outputs.constantAnnotations.kubernetes.io/service-account.name: this annotation is reserved"
)]
fn invalid_outputs_field_stalls_until_it_changes(
    #[case] spec: Value,
    #[case] reason: &str,
    #[case] says: &str,
) {
    let mut world = with_outputs(spec);
    assert!(world.run_until_converged().stalled);
    let message = world.status().message;
    assert_eq!((world.reason().as_str(), world.run_number()), (reason, 1));
    assert!(message.contains(says), "{message}");
    assert!(message.contains("apply succeeded"), "{message}");
    assert!(!world.objects.contains("web-outputs") && !message.contains("hush"));
    world.advance_clock(7_200).settle();
    assert_eq!(world.run_number(), 1, "tried again");
    world.edit(|tf| tf.with("/outputs", Value::Null));
    world.settle();
    assert!(world.is_ready() && world.objects.contains("web-outputs"));
    assert_eq!(world.run_number(), 2);
}

#[test]
fn foreign_config_map_is_kept_and_nothing_is_published() {
    let mut world = with_outputs(json!({"configMapName": "theirs"}));
    world.outputs.config_map = Ownership::Foreign;
    assert!(world.run_until_converged().stalled);
    assert_eq!(world.reason(), "OutputsOwnershipConflict");
    let message = world.status().message;
    for part in [
        "ConfigMap theirs exists",
        "set another spec.outputs.configMapName",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(!message.contains("remove"), "{message}");
    assert!(
        world
            .objects
            .is_disjoint(&["theirs", "web-outputs"].map(str::to_owned).into())
    );
    // A changed name in `spec.outputs` resets the number of failures.
    world.outputs.config_map = Ownership::Absent;
    world.edit(|tf| tf.with("/outputs/configMapName", "ours"));
    world.settle();
    assert!(world.is_ready() && world.objects.contains("ours"));
}

#[rstest]
#[case::keys("/outputs/keys", json!({"server": "endpoint"}))]
#[case::labels("/outputs/labels", json!({"team": "infra"}))]
#[case::annotations("/outputs/annotations", json!({"example.com/server": "endpoint"}))]
#[case::constants("/outputs/constantAnnotations", json!({"example.com/a": "true"}))]
#[case::config_map("/outputs/configMapName", json!("web-values"))]
#[case::secret("/outputs/secretName", json!("shared"))]
#[case::status("/outputs/status", json!(["endpoint"]))]
fn changed_outputs_field_is_applied_while_ready_stays_true(
    #[case] field: &str,
    #[case] value: Value,
) {
    let mut world = applied(Value::Null);
    let (before, real) = (world.outputs_secret.clone(), world.real.config.clone());
    world.edit(|tf| tf.with(field, value));
    let reconciled = world.reconcile();
    assert!(reconciled.started && world.is_ready());
    world.settle();
    assert_eq!(world.last_run(), (RunKind::Apply, "outputs".to_owned()));
    assert_eq!((world.run_number(), world.is_ready()), (2, true));
    assert!(changed_nothing(&world.reconcile()));
    let in_status = !world.status().outputs.unwrap().values.is_empty();
    assert!(world.outputs_secret != before || world.objects.contains("web-values") || in_status);
    assert_eq!(world.real.config, real);
}

#[test]
fn explicit_defaults_in_spec_outputs_start_no_run() {
    let mut world = applied(Value::Null);
    world.edit(|tf| tf.with("/outputs", json!({"secretName": "web-outputs", "keys": {}})));
    world.settle();
    assert_eq!(world.run_number(), 1);
}

/// Drift mode `Report`: changed outputs start no apply, because an apply would also correct drift.
#[test]
fn changed_outputs_wait_for_next_apply_in_report_mode() {
    let mut world = applied(json!({"configMapName": "web-values"}));
    world.edit(|tf| tf.with("/driftDetection/mode", "Report"));
    world.edit(|tf| tf.with("/outputs", json!({"keys": {"server": "endpoint"}})));
    world.settle();
    assert_eq!(world.run_number(), 1);
    assert!(secret(&world).contains_key("zones") && world.objects.contains("web-values"));
    world.edit(|tf| tf.with_variable("size", 1));
    world.settle();
    assert_eq!(
        secret(&world),
        texts([("server", "https://api.test")]),
        "{:?}",
        world.status()
    );
    assert!(!world.objects.contains("web-values"));
}

#[test]
fn deleted_outputs_config_map_is_recreated() {
    let mut world = applied(json!({"configMapName": "web-values"}));
    world.objects.remove("web-values");
    world.outputs.config_map = Ownership::Absent;
    world.settle();
    assert_eq!(world.last_run(), (RunKind::Apply, "outputs".to_owned()));
    assert!(world.is_ready() && world.objects.contains("web-values"));
    assert_eq!(world.run_number(), 2);
}

#[rstest]
#[case::renamed(json!({"configMapName": "other"}), &["Ensure ConfigMap other", "Delete ConfigMap web-values"])]
#[case::unwanted(json!({}), &["Delete ConfigMap web-values"])]
fn unwanted_config_map_is_deleted_after_publication(
    #[case] spec: Value,
    #[case] deletions: &[&str],
) {
    let mut world = applied(json!({"configMapName": "web-values"}));
    world.edit(|tf| tf.with("/outputs", spec));
    world.reconcile();
    world.run_to(Stage::Reported);
    let reconciled = world.reconcile();
    let first = ["CheckRecord", "Ensure Secret web-outputs"];
    let last = [
        "RecordRun web-uid-o-2",
        "SwapRecord Recorded",
        "SwapReport close",
    ];
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [&first, deletions, &last].concat()
    );
    assert!(!world.objects.contains("web-values"));
    world.settle();
    assert_eq!((world.run_number(), world.is_ready()), (2, true));
}

#[rstest]
#[case::values(
    json!({"keys": {"a": "endpoint", "b": "large", "c": "large"}}),
    "the values have 1200016 bytes and exceed the limit of 1048576 bytes; the largest is c (600000 bytes)"
)]
#[case::annotations(
    json!({"annotations": {"example.com/large": "large", "example.com/server": "endpoint"}}),
    "bytes and exceed the limit of 262144 bytes; the largest is example.com/large (600017 bytes)"
)]
fn oversized_outputs_stall_and_name_the_largest(#[case] spec: Value, #[case] says: &str) {
    let mut world = with_outputs(spec);
    let large = Output {
        value: "x".repeat(600_000).into(),
        sensitive: false,
    };
    world.more_outputs.insert("large".to_owned(), large);
    assert!(world.run_until_converged().stalled);
    assert_eq!(world.reason(), "OutputsTooLarge");
    let message = world.status().message;
    assert!(message.contains(says), "{message}");
    assert!(!world.objects.contains("web-outputs"));
}

/// Returns the values in the status.
fn status_values(world: &World) -> Value {
    json!(world.status().outputs.unwrap().values)
}

#[test]
fn selected_outputs_are_in_the_status_until_deselected() {
    let mut world = applied(json!({"status": ["endpoint", "zones", "size", "config", "typo"]}));
    let values = json!({"endpoint": "https://api.test", "zones": ["a", "b"], "size": 0});
    assert_eq!(status_values(&world), values);
    let omitted = json!([
        {"name": "config", "reason": "OutputSensitive"}, {"name": "typo", "reason": "OutputNotFound"},
    ]);
    let status = world.status();
    assert_eq!(json!(status.outputs.as_ref().unwrap().omitted), omitted);
    assert_eq!(
        status.message,
        "Terraform applied successfully; outputs in spec.outputs.status that are not copied to the \
         status: config (OutputSensitive), typo (OutputNotFound)"
    );
    assert!(!json!(status).to_string().contains("hush"));

    world.restart();
    world.settle();
    assert_eq!(status_values(&world), values);
    assert!(changed_nothing(&world.reconcile()));

    world.edit(|tf| tf.with_variable("size", 1));
    world.settle();
    assert_eq!(status_values(&world)["size"], 1);

    world.edit(|tf| tf.with("/suspend", true));
    world.edit(|tf| tf.with("/outputs/status", json!(["zones"])));
    world.settle();
    assert_eq!(status_values(&world), json!({"zones": ["a", "b"]}));
    assert!(world.status().outputs.unwrap().omitted.is_empty());
    world.edit(|tf| tf.with("/suspend", false));
    world.edit(|tf| tf.with("/outputs", Value::Null));
    world.settle();
    assert_eq!(status_values(&world), json!({}));
}

/// `spec.variablesFrom[].terraformRef` refers to keys of the Secret, whatever the status contains.
#[test]
fn outputs_in_the_status_do_not_change_the_secret() {
    let without = applied(json!({"keys": {"server": "endpoint"}}));
    let with = applied(json!({"keys": {"server": "endpoint"}, "status": ["zones"]}));
    assert_eq!(with.outputs_secret, without.outputs_secret);
    assert_eq!(status_values(&with), json!({"zones": ["a", "b"]}));
}
