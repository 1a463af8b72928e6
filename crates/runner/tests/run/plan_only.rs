//! Speculative plans (`spec.mode: PlanOnly`, and requested plans): the runner publishes the plan, and writes no state.

use std::fs;

use alustan_api::Mode;
use alustan_api::names::plan_key::{ID, SPECULATIVE_RUN, SPECULATIVE_TEXT, TEXT};
use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{Lineage, RunKind, Trigger};
use serde_json::{Value, json};

use crate::world::World;

const MODULE: &str = "variable \"name\" { default = \"first\" }\n\
                      resource \"terraform_data\" \"a\" { input = var.name }\n";

/// Returns a test environment in which runs create speculative plans.
fn plan_only(mut world: World) -> World {
    world.mode = Mode::PlanOnly;
    world.inputs.plan_secret = Some("web-plan".into());
    world.secrets.put("web-plan", []);
    world
}

/// Returns the data key `key` of the plan Secret.
fn plan_text(world: &World, key: &str) -> Option<String> {
    let data = world.secrets.get("web-plan")?.data;
    String::from_utf8(data.get(key)?.clone()).ok()
}

#[test]
fn speculative_plan_is_published_and_changes_nothing() {
    for world in [World::new(MODULE), World::with_local_backend(MODULE)] {
        let mut world = plan_only(world);
        world.watch_engine();
        let secret = json!("value-of-a-secret");
        world.inputs.variables.insert("name".into(), secret);
        world.inputs.secret_variables.insert("name".into());
        let report = world.run(RunKind::Drift).expect(RunResult::Changes).clone();
        let calls = world.engine_calls();
        assert!(!calls.contains(&"apply".to_owned()), "{calls:?}");
        assert_eq!(report.changes.unwrap().add, 1);
        assert_eq!(report.asks, None, "no approval applies the plan");
        let text = plan_text(&world, SPECULATIVE_TEXT).unwrap();
        assert!(
            text.contains("# terraform_data.a will be created"),
            "{text}"
        );
        assert!(!text.contains("value-of-a-secret"), "{text}");
        assert_eq!(plan_text(&world, SPECULATIVE_RUN).unwrap(), "1");
        assert_eq!(
            (plan_text(&world, TEXT), plan_text(&world, ID)),
            (None, None)
        );
        assert!(!world.path("local.tfstate").exists());
        if world.inputs.backend.managed.is_some() {
            assert!(world.pointer().current.is_none());
        }
        assert_eq!((world.record().begun, world.record().attempted), (0, 0));
        assert!(world.outputs().is_none());
        world.mode = Mode::Apply;
        world.run(RunKind::Apply).expect(RunResult::Done);
    }
}

#[test]
fn drift_check_with_mode_apply_publishes_no_plan() {
    let mut world = plan_only(World::new(MODULE));
    world.mode = Mode::Apply;
    world.run(RunKind::Drift).expect(RunResult::Changes);
    assert_eq!(plan_text(&world, SPECULATIVE_TEXT), None);
}

#[test]
fn requested_plan_is_published_and_keeps_the_pending_plan() {
    let mut world = plan_only(World::new(MODULE));
    world.mode = Mode::Apply;
    world.inputs.approval.manual = true;
    let report = world.run(RunKind::Plan).expect(RunResult::Changes).clone();
    let pending = plan_text(&world, TEXT).unwrap();
    world.trigger = Trigger::PlanRequested {
        request: "now".to_owned(),
    };
    world.run(RunKind::Drift).expect(RunResult::Changes);
    assert_eq!(plan_text(&world, SPECULATIVE_RUN).unwrap(), "2");
    assert_eq!(plan_text(&world, TEXT).unwrap(), pending);
    world.trigger = Trigger::Created;
    world.approve(&report);
    world.run(RunKind::Apply).expect(RunResult::Done);
}

#[test]
fn speculative_plan_does_not_push_an_unsaved_state() {
    let mut world = plan_only(World::with_local_backend(MODULE));
    world.run(RunKind::Drift).expect(RunResult::Changes);
    let state = json!({
        "version": 4, "terraform_version": "1.11.4", "serial": 7, "lineage": "lost",
        "outputs": {"x": {"value": "of value", "type": "string"}}, "resources": []
    });
    world.keep_unsaved(&state.to_string());
    let ran = world.run(RunKind::Drift);
    let message = ran.expect_failure(FailureClass::User, "StateNotSaved");
    assert!(message.contains("spec.mode: Apply"), "{message}");
    assert!(!ran.expect(RunResult::Failed).recovered);
    assert!(world.unsaved_state().is_some() && !world.path("local.tfstate").exists());
    // The next run with mode Apply saves the state.
    world.mode = Mode::Apply;
    world.run(RunKind::Drift);
    let saved: Value = serde_json::from_str(&world.read("local.tfstate")).unwrap();
    assert_eq!(saved["lineage"], "lost");
}

#[test]
fn speculative_plan_does_not_migrate_the_state() {
    let mut world = World::with_local_backend(MODULE);
    world.run(RunKind::Apply).expect(RunResult::Done);
    let before = world.read("local.tfstate");
    let mut world = plan_only(world);
    world.inputs.migrate = Some(world.inputs.backend.clone());
    let path = world.path("new.tfstate").display().to_string();
    let config = &mut world.inputs.backend.config;
    config.insert("path".into(), path.into());
    let ran = world.run(RunKind::Drift);
    let message = ran.expect_failure(FailureClass::User, "MigrationFailed");
    assert!(message.contains("spec.mode: Apply"), "{message}");
    assert!(!world.path("new.tfstate").exists());
    assert_eq!(world.read("local.tfstate"), before);
    world.mode = Mode::Apply;
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert!(fs::exists(world.path("new.tfstate")).unwrap());
}

#[test]
fn speculative_plan_does_not_adopt_a_state() {
    let mut world = World::with_local_backend(MODULE);
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.forget_record();
    let mut world = plan_only(world);
    world.inputs.adopt = true;
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    assert_eq!(world.record().lineage, Lineage::Unknown);
    // So the first plan with mode Apply waits for approval.
    world.mode = Mode::Apply;
    let second = json!("second");
    world.inputs.variables.insert("name".into(), second);
    let ran = world.run(RunKind::Apply);
    assert!(ran.expect(RunResult::Changes).asks.is_some());
}
