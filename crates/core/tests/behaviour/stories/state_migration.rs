//! Rule 11: the state moves to another backend only with `backend.migrate: true`. The old backend is used until the move is complete.

use alustan_api::Terraform;
use alustan_api::report::FailureClass;
use alustan_api::run::RunInputs;
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World};

fn s3(key: &str) -> Value {
    json!({ "provider": "aws", "s3": "bucket", "region": "us-east-1", "key": key })
}

fn managed() -> Value {
    json!({ "provider": "managed" })
}

fn applied(backend: &Value) -> World {
    let mut world = World::with(terraform().with("/backend", backend.clone()));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world
}

fn to(backend: &Value, migrate: bool) -> impl Fn(Terraform) -> Terraform {
    let backend = backend.clone();
    move |tf| {
        tf.with("/backend", backend.clone())
            .with("/backend/migrate", migrate)
    }
}

fn inputs(world: &World) -> &RunInputs {
    world.record.as_ref().unwrap().inputs.as_ref().unwrap()
}

/// Returns the location of the state of a run, for example `s3://bucket/a`.
fn place(inputs: &RunInputs) -> String {
    alustan_backends::location(&inputs.backend)
}

#[rstest]
#[case::out_of_secrets(managed(), s3("a"), "Secret web-state", "s3://bucket/a")]
#[case::into_secrets(s3("a"), managed(), "s3://bucket/a", "Secret web-state")]
#[case::to_another_key(s3("a"), s3("b"), "s3://bucket/a", "s3://bucket/b")]
fn changed_state_location_needs_permission(
    #[case] from: Value,
    #[case] next: Value,
    #[case] old: &str,
    #[case] new: &str,
) {
    let mut world = applied(&from);
    world.edit(to(&next, false)).settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("BackendChanged", true)
    );
    let message = world.status().message;
    let leave = r#"-p '{"spec":{"backend":{"migrate":true}}}'"#;
    for part in [old, new, leave] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!(world.run_number(), 1);

    world.edit(to(&next, true)).run_to(Stage::Planning);
    assert_eq!(place(inputs(&world)), new);
    let before = inputs(&world).migrate.as_ref().unwrap();
    assert_eq!(alustan_backends::location(before), old);
    world.run_to(Stage::Reported);
    let report = world.record.as_mut().unwrap().report.as_mut();
    report.unwrap().moved_from = Some(old.to_owned());
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    let part = format!("the state was copied from {old}; the original is kept");
    let message = world.status().message;
    assert!(message.contains(&part), "{message}");
    let pin = world.pin.clone().unwrap();
    assert_eq!(place(&pin.inputs), new);
    assert!(
        pin.inputs.migrate.is_none(),
        "the old place is not needed any more"
    );
    world.commit(1).run_to(Stage::Planning);
    assert!(inputs(&world).migrate.is_none(), "it was moved already");
}

#[test]
fn changed_workspace_needs_permission_to_copy_the_state() {
    let mut world = applied(&s3("a"));
    world.edit(|tf| tf.with("/workspace", "staging")).settle();
    assert_eq!(world.reason(), "BackendChanged");
    let message = world.status().message;
    assert!(message.contains("s3://bucket/env:/staging/a"), "{message}");
    assert_eq!(world.run_number(), 1);
    // Destroy uses the workspace of the last apply.
    let mut deleted = world.clone();
    deleted.delete().run_to(Stage::Planning);
    assert_eq!(place(inputs(&deleted)), "s3://bucket/a");
    world.edit(|tf| tf.with("/workspace", "default")).settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 1, "the workspace is the same");

    world
        .edit(|tf| {
            tf.with("/workspace", "staging")
                .with("/backend/migrate", true)
        })
        .run_to(Stage::Planning);
    assert_eq!(place(inputs(&world)), "s3://bucket/env:/staging/a");
    let before = inputs(&world).migrate.as_ref().unwrap();
    assert_eq!(alustan_backends::location(before), "s3://bucket/a");
}

#[rstest]
#[case::default_backend(json!({}))]
#[case::managed(managed())]
fn workspace_of_the_managed_backend_is_refused(#[case] backend: Value) {
    let tf = terraform()
        .with("/backend", backend)
        .with("/workspace", "staging");
    let mut world = World::with(tf);
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("WorkspaceUnsupported", true)
    );
    let message = world.status().message;
    let part = "spec.workspace: backend managed has one workspace";
    assert!(message.contains(part), "{message}");
    assert_eq!(world.run_number(), 0);
}

#[test]
fn reverted_change_of_backend_starts_no_run() {
    let mut world = applied(&managed());
    world.edit(to(&s3("a"), false)).settle();
    world.edit(to(&managed(), false)).settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn state_location_may_change_before_the_first_apply() {
    let mut world = World::with(terraform().with("/backend", s3("a")));
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.edit(to(&s3("b"), false)).settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(place(&world.pin.clone().unwrap().inputs), "s3://bucket/b");
}

#[test]
fn changed_lock_of_the_same_state_needs_no_permission() {
    let mut world = applied(&s3("a"));
    let locked = s3("a");
    world
        .edit(to(&locked, false))
        .edit(|tf| tf.with("/backend/dynamoDB", "locks"))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 2);
}

/// A run that copies the state to another backend is killed. If this happens before phase `Applying`, the state in the old backend is
/// complete, and destroy uses the old backend. From phase `Applying` on, destroy uses the new backend.
#[rstest]
#[case::while_planning(Stage::Planning, "Secret web-state")]
#[case::while_applying(Stage::Applying, "s3://bucket/a")]
fn destroy_after_interrupted_move_uses_complete_state(#[case] stage: Stage, #[case] wanted: &str) {
    let mut world = applied(&managed());
    world.edit(to(&s3("a"), true)).run_to(stage);
    world.advance_pod(0, PodEvent::Kill);
    world.delete().run_to(Stage::Planning);
    assert_eq!(place(inputs(&world)), wanted);
    assert!(inputs(&world).migrate.is_none(), "a destroy copies nothing");
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn failed_move_is_retried_from_the_old_location() {
    let mut world = applied(&managed());
    world.edit(to(&s3("a"), true)).run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.settle();
    world.advance_clock(3600).run_to(Stage::Planning);
    let before = inputs(&world).migrate.as_ref().unwrap();
    assert_eq!(alustan_backends::location(before), "Secret web-state");
}

/// The state moves from or to the managed backend. In both cases, the Role of the runner must name the Secrets of the managed state.
#[rstest]
#[case(managed(), s3("a"), &["web-state", "web-state-slot-0", "web-state-slot-1"])]
#[case(s3("a"), managed(), &["web-state"])]
fn runner_role_names_secrets_of_managed_state_during_move(
    #[case] from: Value,
    #[case] next: Value,
    #[case] secrets: &[&str],
) {
    let mut world = applied(&from);
    world.edit(to(&next, true)).run_to(Stage::Planning);
    let role = alustan_core::objects::rbac::role(world.tf(), inputs(&world));
    let rules = role.rules.unwrap();
    let names = rules[1].resource_names.clone().unwrap();
    let states: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with("web-state"))
        .collect();
    assert_eq!(states, secrets);
}

/// The operator does not know the configuration in the backend block of the module, so it cannot detect a change of the backend. With
/// `backend.migrate: true`, it passes the previous backend to the runner, and the runner decides whether the state moves.
#[test]
fn module_backend_is_migrated_only_if_migrate_is_set() {
    let mut world = World::with(terraform());
    world.module_backend = Some("gcs".to_owned());
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world.commit(1).run_to(Stage::Planning);
    assert!(inputs(&world).migrate.is_none());
    world.settle();
    world.edit(|tf| tf.with("/backend/migrate", true));
    world.commit(2).run_to(Stage::Planning);
    assert!(inputs(&world).migrate.is_some());
}

#[test]
fn refused_move_is_retried_once_migrate_is_set() {
    let mut world = World::with(terraform());
    world.module_backend = Some("gcs".to_owned());
    world.settle();
    world.commit(1).run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    report.failure.as_mut().unwrap().reason = "BackendChanged".to_owned();
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("BackendChanged", true)
    );
    world.edit(|tf| tf.with("/backend/migrate", true)).settle();
    assert!(world.is_ready(), "{:?}", world.status());
}
