//! Rule 11: no run uses a state that belongs to another resource.

use alustan_api::Terraform;
use alustan_api::run::Lineage;
use alustan_core::model::state_conflict::{address, conflict};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rstest::rstest;
use serde_json::json;

use crate::fixtures::{Edit as _, at, terraform};
use crate::world::{Stage, World};

/// Returns a resource with state in S3, created at `second`.
fn in_s3(name: &str, second: i64, key: Option<&str>) -> Terraform {
    let mut backend = json!({ "provider": "aws", "s3": "bucket", "region": "us-east-1" });
    if let Some(key) = key {
        backend["key"] = json!(key);
    }
    let mut tf = terraform().named(name).with("/backend", backend);
    tf.metadata.creation_timestamp = Some(Time(at(second)));
    tf
}

fn reported(name: &str, state: &str) -> Terraform {
    let mut tf = in_s3(name, 0, None).with("/backend", json!(null));
    tf.status.get_or_insert_default().state_address = Some(state.to_owned());
    tf
}

#[rstest]
#[case::in_spec(in_s3("web", 0, Some("a/b")), Some("s3://bucket/a/b"))]
#[case::by_default(in_s3("web", 0, None), Some("s3://bucket/team/web.tfstate"))]
#[case::in_report(reported("web", "gcs://bucket/web"), Some("gcs://bucket/web"))]
#[case::in_report_as_secrets(reported("web", "secret://team/web-state"), None)]
#[case::in_report_as_local(reported("web", "local://terraform.tfstate"), None)]
#[case::in_report_without_location(reported("web", "http://"), None)]
fn state_address_comes_from_spec_or_report(#[case] tf: Terraform, #[case] wanted: Option<&str>) {
    assert_eq!(address(&tf).as_deref(), wanted);
}

#[rstest]
#[case::with_older_resource(in_s3("old", 1, Some("x")), true)]
#[case::with_younger_resource(in_s3("young", 9, Some("x")), false)]
#[case::with_other_location(in_s3("old", 1, Some("y")), false)]
fn the_younger_of_two_on_one_state_is_refused(#[case] other: Terraform, #[case] refused: bool) {
    let tf = in_s3("web", 5, Some("x"));
    assert_eq!(conflict(&tf, None, [&other]).is_some(), refused);
}

/// A module can forge the state address in the run report of its resource. Therefore, the operator uses a reported address only to find
/// conflicts between resources in the same namespace.
#[rstest]
#[case::reported_in_same_namespace(reported("old", "s3://bucket/x"), "team", true)]
#[case::reported_in_another_namespace(reported("old", "s3://bucket/x"), "other", false)]
#[case::in_spec_in_another_namespace(in_s3("old", 1, Some("x")), "other", true)]
fn reported_address_blocks_no_other_namespace(
    #[case] mut other: Terraform,
    #[case] namespace: &str,
    #[case] refused: bool,
) {
    let mut tf = reported("web", "s3://bucket/x");
    tf.metadata.creation_timestamp = Some(Time(at(5)));
    other.metadata.namespace = Some(namespace.to_owned());
    assert_eq!(conflict(&tf, None, [&other]).is_some(), refused);
}

#[test]
fn exactly_one_of_two_resources_of_equal_age_is_refused() {
    let (first, second) = (in_s3("a", 1, Some("x")), in_s3("b", 1, Some("x")));
    assert_ne!(
        conflict(&first, None, [&second]).is_some(),
        conflict(&second, None, [&first]).is_some()
    );
}

#[test]
fn resource_that_applied_is_preferred_over_an_older_one() {
    let (squatter, mut owner) = (in_s3("old", 1, Some("x")), in_s3("web", 5, Some("x")));
    let applied = World::applied().status().last_applied;
    let address = address(&owner);
    let status = owner.status.get_or_insert_default();
    status.last_applied = applied;
    status.state_address = address;
    assert_eq!(conflict(&owner, None, [&squatter]), None);
    assert!(conflict(&squatter, None, [&owner]).is_some());
}

#[test]
fn reported_address_is_outdated_after_a_commit() {
    let mut world = World::applied();
    let tf = world.tf.as_mut().unwrap();
    tf.metadata.creation_timestamp = Some(Time(at(9)));
    tf.status.as_mut().unwrap().state_address = Some("gcs://b/x".to_owned());
    let report = &mut world.record.as_mut().unwrap().history.reports[0];
    report.state_address = Some("gcs://b/x".to_owned());
    let mut owner = reported("old", "gcs://b/x");
    owner.status.as_mut().unwrap().last_applied = world.status().last_applied;
    world.others = vec![owner];
    world.reconcile();
    assert_eq!(
        world.reason(),
        "StateConflict",
        "{}",
        world.status().message
    );
    world.commit(1).settle();
    let (_, trigger) = world.last_run();
    assert_eq!(
        world.run_number(),
        2,
        "the module may name another place by now"
    );
    assert!(trigger.starts_with("commit "), "{trigger}");
}

#[test]
fn refused_resource_starts_no_run_until_older_is_deleted() {
    let mut world = World::with(in_s3("web", 5, Some("x")));
    world.others = vec![in_s3("old", 1, Some("x"))];
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("StateConflict", true)
    );
    let message = world.status().message;
    for part in [
        "s3://bucket/x",
        "tf old",
        "spec.backend.key",
        "set deletionPolicy: Orphan on one of the two resources and delete it",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(world.jobs.is_empty());
    let requeue_at = world.reconcile().decision.requeue_at.unwrap();
    assert_eq!(requeue_at.duration_since(world.now).as_secs(), 60);
    world.now = requeue_at;
    world.others.clear();
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn conflict_message_hides_names_in_other_namespaces() {
    let mut owner = in_s3("old", 1, Some("x"));
    owner.metadata.namespace = Some("secret-team".to_owned());
    let failure = conflict(&in_s3("web", 5, Some("x")), None, [&owner]).unwrap();
    assert!(!failure.message.contains("old ") && !failure.message.contains("secret-team"));
}

/// Only the run record stores the lineage of the state. If the run record is lost, the operator must not assume that an existing state
/// belongs to the resource.
#[test]
fn recreated_record_marks_the_lineage_as_lost() {
    let lineage = |world: &World| world.record.as_ref().unwrap().record.lineage.clone();
    let mut world = World::new();
    world.reconcile();
    assert_eq!(lineage(&world), Lineage::Unknown, "no run has looked yet");
    let mut world = World::applied();
    world.record = None;
    world.reconcile();
    assert_eq!(lineage(&world), Lineage::Lost);
    world.run_to(Stage::Planning);
    let inputs = world.record.as_ref().unwrap().inputs.as_ref().unwrap();
    assert!(inputs.applied_before, "the status proves it");
    assert_eq!(lineage(&world), Lineage::Lost, "until the run has looked");
}
