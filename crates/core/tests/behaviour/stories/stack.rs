//! Rules 13 and 14: value sources (`spec.variablesFrom`), dependencies and dependents of a resource.

use alustan_api::State;
use alustan_api::report::FailureClass;
use alustan_core::observed::{DependencySeen, FoundInput, FoundValue, Readiness, TestSeen};
use k8s_openapi::jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use super::changed_nothing;
use crate::fixtures::{Edit as _, failure, terraform};
use crate::world::{Stage, World, condition};

fn ready(name: &str) -> DependencySeen {
    DependencySeen {
        field: "spec.dependsOn[0]".to_owned(),
        name: name.to_owned(),
        readiness: Readiness::Ready,
    }
}

pub(super) fn stalled(name: &str) -> DependencySeen {
    DependencySeen {
        readiness: Readiness::NotReady {
            reason: "ApplyFailed".to_owned(),
            message: "no quota".to_owned(),
        },
        ..ready(name)
    }
}

fn found(source: &str, variable: &str, value: impl Into<Value>) -> FoundInput {
    let value = FoundValue {
        value: value.into(),
        secret: source.starts_with("Secret"),
    };
    FoundInput {
        of: source.to_owned(),
        values: [(variable.to_owned(), value)].into(),
        trigger: true,
    }
}

fn test(list: &str, result: Result<(), (FailureClass, &str)>) -> TestSeen {
    TestSeen {
        field: format!("spec.{list}[0]"),
        timeout: SignedDuration::from_mins(10),
        result: result.map_err(|(class, reason)| {
            failure(class, reason, "spec.gate: ConfigMap gate is closed")
        }),
    }
}

fn fails(list: &str) -> TestSeen {
    test(list, Err((FailureClass::Transient, "ObjectNotReady")))
}

/// Returns a simulated cluster with a resource that was applied with `password` from Secret `db`.
fn with_password(password: &str) -> World {
    let mut world = World::new();
    world.stack.variables.found = vec![found("Secret db", "password", password)];
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    world
}

impl World {
    fn set_input(&mut self, input: FoundInput) -> &mut Self {
        self.stack.variables.found = vec![input];
        self
    }

    fn applied_variables(&self) -> Value {
        let inputs = &self.pin.as_ref().unwrap().inputs;
        serde_json::to_value(&inputs.variables).unwrap()
    }
}

#[test]
fn unready_dependency_blocks_run_but_not_build() {
    let mut world = World::new();
    world.stack.dependencies = vec![ready("dns"), stalled("network")];
    world.settle();
    let status = world.status();
    assert_eq!(
        (status.state, world.reason().as_str()),
        (State::Pending, "DependencyNotReady")
    );
    assert_eq!(
        status.message,
        "spec.dependsOn[0]: network is not ready (ApplyFailed: no quota)"
    );
    assert_eq!(condition(&status, "DependenciesReady"), "False");
    let blocked: Vec<_> = status
        .blocked_by
        .iter()
        .map(|dependency| (&*dependency.name, &*dependency.reason))
        .collect();
    assert_eq!(blocked, [("network", "ApplyFailed")]);
    assert!(status.image.is_some_and(|image| image.digest.is_some()));
    assert_eq!(world.run_number(), 0);
    assert!(changed_nothing(&world.reconcile()));
    world.stack.dependencies = vec![ready("dns"), ready("network")];
    world.settle();
    assert!(world.is_ready());
    assert_eq!(condition(&world.status(), "DependenciesReady"), "True");
}

#[test]
fn missing_dependency_is_reported_by_name() {
    let mut world = World::new();
    world.stack.dependencies = vec![DependencySeen {
        readiness: Readiness::Missing,
        ..ready("network")
    }];
    world.settle();
    assert_eq!(world.reason(), "DependencyNotFound");
    assert!(
        world
            .status()
            .message
            .contains("spec.dependsOn[0]: Terraform resource network does not exist")
    );
}

#[test]
fn applied_resource_stays_ready_with_unready_dependencies() {
    let mut world = World::applied();
    world.stack.dependencies = vec![stalled("network")];
    world.stack.wait_for = vec![fails("waitFor")];
    world.settle();
    assert!(world.is_ready());
    assert_eq!(condition(&world.status(), "DependenciesReady"), "False");
    assert!(changed_nothing(&world.reconcile()));
    world.advance_clock(2 * 3_600).settle();
    assert_eq!(world.last_run().1, "interval", "looks for drift go on");
    world.edit(|tf| tf.with_variable("size", 9)).settle();
    assert_eq!(world.reason(), "DependencyNotReady");
}

#[test]
fn missing_value_blocks_run_but_not_build() {
    let mut world = World::new();
    let missing = failure(
        FailureClass::Transient,
        "SecretNotFound",
        "Secret db does not exist",
    );
    world.stack.variables.missing = Some(missing);
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
    world.stack.variables.missing = None;
    world.settle();
    assert!(world.is_ready());
}

#[rstest]
#[case::user_failure("InputTooLarge", FailureClass::User, true)]
#[case::transient_failure("OutputNotFound", FailureClass::Transient, false)]
fn missing_value_stalls_only_for_user_failures(
    #[case] reason: &str,
    #[case] class: FailureClass,
    #[case] stalls: bool,
) {
    let mut world = World::new();
    world.stack.variables.missing = Some(failure(class, reason, "spec.variablesFrom[0]: no"));
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        (reason, stalls)
    );
}

#[test]
fn deleted_value_source_leaves_applied_resource_ready() {
    let mut world = with_password("one");
    let values = std::mem::take(&mut world.stack.variables.found);
    let message = "spec.variablesFrom[0].secretRef: Secret db does not exist";
    world.stack.variables.missing =
        Some(failure(FailureClass::Transient, "SecretNotFound", message));
    world.settle();
    let status = world.status();
    assert!(world.is_ready(), "{status:?}");
    assert!(status.message.ends_with(message), "{}", status.message);
    assert_eq!(condition(&status, "DependenciesReady"), "False");
    world
        .edit(|tf| tf.with("/variables/size", json!(7)))
        .settle();
    assert_eq!(world.reason(), "SecretNotFound", "the spec is not applied");
    world.stack.variables.missing = None;
    world.stack.variables.found = values;
    world.settle();
    assert!(world.is_ready() && world.run_number() == 2);
}

#[rstest]
#[case::in_wait_for("/waitFor", "spec.waitFor[0].cel")]
#[case::in_health_checks("/healthChecks", "spec.healthChecks[0].cel")]
fn invalid_expression_is_reported_before_the_first_run(#[case] list: &str, #[case] field: &str) {
    let test = json!({"apiVersion": "v1", "kind": "Pod", "name": "x", "cel": "object.data.("});
    let mut world = World::with(terraform().with(list, json!([test])));
    world.settle();
    assert_eq!(world.reason(), "InvalidExpression");
    let message = world.status().message;
    assert!(message.starts_with(field), "{message}");
    assert_eq!(world.run_number(), 0);
}

#[test]
fn a_changed_input_causes_one_run_that_names_it() {
    let mut world = with_password("one");
    world
        .advance_clock(600)
        .set_input(found("Secret db", "password", "two"))
        .settle();
    assert_eq!(
        (world.run_number(), world.last_run().1.as_str()),
        (2, "input Secret db")
    );
    assert!(world.is_ready());
    assert_eq!(
        world.applied_variables(),
        json!({"size": 0, "password": "two"})
    );
    assert!(changed_nothing(&world.reconcile()));
}

#[test]
fn changed_input_waits_for_other_changing_inputs() {
    let mut world = with_password("one");
    world.stack.changing = Some("subnets".to_owned());
    world
        .advance_clock(600)
        .set_input(found("Secret db", "password", "two"))
        .settle();
    assert_eq!(
        (world.run_number(), world.reason().as_str()),
        (1, "WaitingForUpstream")
    );
    let message = world.status().message;
    assert!(message.contains("waits for subnets"), "{message}");
    world.stack.changing = None;
    world.settle();
    assert_eq!(world.run_number(), 2);
}

#[test]
fn changed_spec_does_not_wait_for_changing_inputs() {
    let mut world = with_password("one");
    world.stack.changing = Some("subnets".to_owned());
    world
        .edit(|tf| tf.with("/variables/size", json!(7)))
        .settle();
    assert_eq!(world.run_number(), 2);
}

#[test]
fn flapping_input_starts_runs_at_increasing_intervals() {
    let mut world = with_password("first");
    let mut runs = Vec::new();
    for second in 0..3_600 {
        world.set_input(found("Secret db", "password", second.to_string()));
        let before = world.run_number();
        world.settle();
        if world.run_number() > before {
            runs.push(second);
        }
        world.advance_clock(1);
    }
    let gaps: Vec<_> = runs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(runs[0], 0, "the first change is applied at once");
    assert_eq!(gaps, [60, 120, 240, 480, 960]);
    assert_eq!(world.reason(), "InputFlapping");
    assert!(
        world
            .status()
            .message
            .contains("Secret db changed again; the next run starts at ")
    );
    world.advance_clock(3 * 3_600).settle();
    assert!(world.is_ready());
    world
        .advance_clock(5 * 3_600)
        .set_input(found("Secret db", "password", "rare"))
        .settle();
    assert!(
        world.is_ready(),
        "after a quiet time a change is applied at once"
    );
}

#[test]
fn input_without_trigger_waits_for_the_next_run() {
    let mut world = World::new();
    let quiet = |value: &str| FoundInput {
        trigger: false,
        ..found("ConfigMap settings", "color", value)
    };
    world.set_input(quiet("red")).settle();
    world.advance_clock(600).set_input(quiet("blue")).settle();
    assert_eq!(world.run_number(), 1);
    assert!(changed_nothing(&world.reconcile()));
    world.edit(|tf| tf.with_variable("size", 9)).settle();
    assert_eq!(world.last_run().1, "spec");
    assert_eq!(
        world.applied_variables(),
        json!({"size": 9, "color": "blue"})
    );
}

#[test]
fn later_sources_override_earlier_and_spec_overrides_all() {
    let mut world = World::new();
    world.stack.variables.found = vec![
        found("ConfigMap a", "TF_VAR_color", "red"),
        found("ConfigMap b", "color", "blue"),
        found("Secret c", "size", "secret"),
    ];
    world.settle();
    assert_eq!(
        world.applied_variables(),
        json!({"size": 0, "color": "blue"})
    );
    let inputs = world.pin.clone().unwrap().inputs;
    assert!(
        inputs.secret_variables.is_empty(),
        "what does not count is no secret"
    );
    world.advance_clock(600);
    world.stack.variables.found[0] = found("ConfigMap a", "color", "green");
    world.stack.variables.found[2] = found("Secret c", "size", "another");
    world.settle();
    assert_eq!(
        world.run_number(),
        1,
        "what does not count is no reason to run"
    );
}

#[test]
fn values_from_secrets_are_marked_as_secret() {
    let world = with_password("correct horse");
    let inputs = world.pin.clone().unwrap().inputs;
    assert_eq!(inputs.secret_variables, ["password".to_owned()].into());
}

#[test]
fn input_and_spec_changed_together_start_one_run() {
    let mut world = with_password("one");
    world
        .advance_clock(600)
        .set_input(found("Secret db", "password", "two"));
    world.edit(|tf| tf.with_variable("size", 9)).settle();
    assert_eq!(
        (world.run_number(), world.last_run().1.as_str()),
        (2, "spec")
    );
    assert!(world.is_ready());
}

#[test]
fn wait_timeout_is_reported_and_the_wait_continues() {
    let mut world = World::new();
    world.stack.wait_for = vec![fails("waitFor")];
    world.settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Pending, "ObjectNotReady")
    );
    assert!(changed_nothing(&world.reconcile()));
    world.advance_clock(599).settle();
    assert!(!world.is_stalled());
    world.advance_clock(2).settle();
    assert_eq!(world.reason(), "WaitTimedOut");
    assert!(world.is_stalled() && world.status().message.contains("ConfigMap gate is closed"));
    assert_eq!(world.run_number(), 0);
    world.stack.wait_for = vec![test("waitFor", Ok(()))];
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn wait_timeout_is_measured_per_object() {
    let mut world = World::new();
    world.stack.wait_for = vec![fails("waitFor"), fails("waitFor")];
    world.stack.wait_for[1].field = "spec.waitFor[1]".to_owned();
    world.settle();
    world.advance_clock(599).settle();
    world.stack.wait_for[0].result = Ok(());
    world.settle();
    world.advance_clock(599).settle();
    assert!(!world.is_stalled());
    world.advance_clock(2).settle();
    assert!(world.is_stalled());
}

#[test]
fn invalid_test_stalls_immediately() {
    let mut world = World::new();
    world.stack.wait_for = vec![test(
        "waitFor",
        Err((FailureClass::User, "InvalidExpression")),
    )];
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("InvalidExpression", true)
    );
}

#[test]
fn applied_resource_is_ready_once_health_checks_pass() {
    let mut world = World::new();
    world.stack.health_checks = vec![fails("healthChecks")];
    world.settle();
    assert_eq!(world.reason(), "HealthCheckPending");
    assert_eq!(condition(&world.status(), "Ready"), "Unknown");
    assert_eq!(world.run_number(), 1);
    world.advance_clock(601).settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Stalled, "HealthCheckFailed")
    );
    assert!(
        changed_nothing(&world.reconcile()),
        "nothing is applied for that"
    );
    world.stack.health_checks = vec![test("healthChecks", Ok(()))];
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn destroy_waits_for_dependents() {
    let mut world = World::applied();
    world.stack.dependents = vec!["apps".to_owned(), "dns".to_owned()];
    world.delete().settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Destroying, "DependentsExist")
    );
    let message = world.status().message;
    for part in [
        "dependents are destroyed first: apps, dns",
        "alustan.io/abandon=true",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!world.real.is_empty());
    assert!(changed_nothing(&world.reconcile()));
    world.stack.dependents = Vec::new();
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_waits_for_destroy_wait_for() {
    let mut world = World::applied();
    world.stack.destroy_wait_for = vec![fails("destroyWaitFor")];
    world.delete().settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Destroying, "ObjectNotReady")
    );
    world.advance_clock(601).settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Stalled, "WaitTimedOut")
    );
    assert!(!world.real.is_empty());
    world.stack.destroy_wait_for = Vec::new();
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[rstest]
#[case::never_applied(World::new(), "")]
#[case::orphaned(World::applied(), "Orphan")]
#[case::abandoned(World::applied(), "Destroy")]
fn release_without_destroy_does_not_wait(#[case] mut world: World, #[case] policy: &str) {
    world.reconcile();
    world.stack.dependents = vec!["apps".to_owned()];
    world.stack.destroy_wait_for = vec![fails("destroyWaitFor")];
    match policy {
        "Orphan" => drop(world.set_orphan(true)),
        "Destroy" => drop(world.edit(|tf| tf.annotated(alustan_api::ABANDON, "true"))),
        _ => {}
    }
    world.delete().settle();
    assert!(world.tf.is_none());
}

#[rstest]
#[case::live(Some("two"), "two")]
#[case::pinned_if_missing(None, "one")]
fn destroy_uses_value_of_source_or_pin(#[case] now: Option<&str>, #[case] wanted: &str) {
    let mut world = with_password("one");
    if let Some(now) = now {
        world.set_input(found("Secret db", "password", now));
    } else {
        world.stack.variables.found = Vec::new();
        let missing = failure(
            FailureClass::Transient,
            "SecretNotFound",
            "Secret db does not exist",
        );
        world.stack.variables.missing = Some(missing);
    }
    world.delete().run_to(Stage::Planning);
    let inputs = world.record.as_ref().unwrap().inputs.as_ref().unwrap();
    assert_eq!(inputs.variables["password"], wanted);
    assert!(inputs.secret_variables.contains("password"));
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn resource_without_dependencies_has_dependencies_ready() {
    let world = World::with(terraform());
    assert_eq!(condition(&world.status(), "DependenciesReady"), "");
    let world = World::applied();
    assert_eq!(condition(&world.status(), "DependenciesReady"), "True");
}

#[test]
fn wait_timeout_starts_once_dependencies_are_ready() {
    let mut world = World::new();
    world.stack.wait_for = vec![fails("waitFor")];
    world.stack.dependencies = vec![stalled("network")];
    world.settle();
    world.advance_clock(3_600).settle();
    world.stack.dependencies = vec![ready("network")];
    world.settle();
    assert_eq!(
        world.reason(),
        "ObjectNotReady",
        "it has only just begun to wait"
    );
    world.advance_clock(601).settle();
    assert_eq!(world.reason(), "WaitTimedOut");
}

#[test]
fn health_check_timeout_restarts_after_success() {
    let mut world = World::applied();
    world.stack.health_checks = vec![fails("healthChecks")];
    world.settle();
    world.stack.health_checks = vec![test("healthChecks", Ok(()))];
    world.settle();
    assert!(world.is_ready());
    world.advance_clock(30 * 24 * 3_600).settle();
    world.stack.health_checks = vec![fails("healthChecks")];
    world.settle();
    assert_eq!(
        world.reason(),
        "HealthCheckPending",
        "it has failed for a moment only"
    );
}

#[test]
fn blocked_correction_leaves_ready_true() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.stack.dependencies = vec![stalled("network")];
    world.advance_clock(2 * 3_600).settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.last_run().1, "interval");
    world.stack.dependencies = vec![ready("network")];
    world.settle();
    assert_eq!(world.last_run().1, "drift");
}

#[test]
fn changed_value_source_counts_as_spec_change() {
    let from = json!([{ "secretRef": { "name": "db", "keys": { "password": "p" } } }]);
    let mut world = with_password("one");
    world
        .advance_clock(600)
        .set_input(found("Secret db", "password", "two"))
        .settle();
    assert_eq!(world.last_run().1, "input Secret db");
    world.edit(|tf| tf.with("/variablesFrom", from));
    world
        .set_input(found("Secret other", "password", "three"))
        .settle();
    assert_eq!(
        world.last_run().1,
        "spec",
        "an edit does not wait for a minute"
    );
}

#[test]
fn inputs_before_first_apply_are_rate_limited() {
    let mut world = World::new();
    world.set_input(found("ConfigMap c", "color", "0"));
    world.run_to(Stage::Planning);
    for _ in 0..5 {
        world.set_input(found(
            "ConfigMap c",
            "color",
            world.run_number().to_string(),
        ));
        world.settle();
    }
    assert!(world.run_number() <= 2, "{}", world.run_number());
}
