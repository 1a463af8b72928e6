//! A run fails if its engine differs from the engine of the last apply, or is an older version. `spec.engine.allowSwitch` permits such a run.

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{EngineArguments, RunKind};
use alustan_api::{Engine, EngineName};

use crate::world::World;

const MODULE: &str = "resource \"terraform_data\" \"a\" { input = \"x\" }\n";

fn engine(name: EngineName, version: &str) -> Engine {
    Engine {
        name,
        version: version.into(),
    }
}

/// Returns a test environment whose module was initialised by `engine` during the build.
fn prepared_by(engine: &Engine) -> World {
    let world = World::new(MODULE);
    let json = serde_json::to_string(engine).unwrap();
    world.write_module(".terraform/engine.json", &json);
    world
}

#[test]
fn older_or_other_engine_is_refused_until_allowed() {
    let (terraform, tofu) = (EngineName::Terraform, EngineName::Opentofu);
    let current = engine(terraform, "1.11.4");
    for before in [engine(tofu, "1.6.0"), engine(terraform, "1.11.5")] {
        let mut world = prepared_by(&current);
        world.inputs.engine_before = Some(before.clone());
        for kind in [RunKind::Plan, RunKind::Apply, RunKind::Drift] {
            let ran = world.run(kind);
            let message = ran.expect_failure(FailureClass::User, "EngineChangeNotAllowed");
            for part in [
                before.to_string(),
                current.to_string(),
                "\"allowSwitch\":true".to_owned(),
            ] {
                assert!(message.contains(&part), "no {part:?} in {message}");
            }
            assert!(!ran.stdout.contains("Plan:"), "{}", ran.logs());
        }
        world.inputs.engine_before = None;
        let report = world.run(RunKind::Apply).expect(RunResult::Done).clone();
        assert_eq!(report.engine.as_ref(), Some(&current));
    }
}

#[test]
fn same_or_newer_engine_is_accepted() {
    let current = engine(EngineName::Terraform, "1.11.4");
    for before in ["1.11.4", "1.9.8"] {
        let mut world = prepared_by(&current);
        world.inputs.engine_before = Some(engine(EngineName::Terraform, before));
        world.run(RunKind::Apply).expect(RunResult::Done);
    }
}

#[test]
fn runs_call_the_engine_without_colours() {
    let mut world = World::new(MODULE);
    world.watch_engine();
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    let calls = world.read("calls");
    for call in ["init -no-color", "plan -no-color", "apply -no-color"] {
        let is_called = calls.lines().any(|line| line == call);
        assert!(is_called, "no {call:?} in {calls}");
    }
    assert!(!ran.logs().contains('\u{1b}'), "{}", ran.logs());
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert!(!ran.logs().contains('\u{1b}'), "{}", ran.logs());
}

#[test]
fn missing_cli_configuration_file_causes_no_warning() {
    let mut world = World::new(MODULE);
    let missing = world.path("missing.tfrc").display().to_string();
    world.vars.insert("TF_CLI_CONFIG_FILE".into(), missing);
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    let logs = ran.logs();
    assert!(!logs.contains("CLI configuration"), "{logs}");
}

/// Returns the arguments of each engine command `command` since the last call of this function.
fn arguments(world: &World, command: &str) -> Vec<String> {
    let calls = world.read("arguments");
    let _ = std::fs::remove_file(world.path("arguments"));
    calls
        .lines()
        .filter_map(|call| call.strip_prefix(command))
        .map(str::to_owned)
        .collect()
}

#[test]
fn engine_commands_get_parallelism_refresh_and_lock_timeout() {
    let module = "resource \"terraform_data\" \"a\" { input = \"x\" }\n";
    let mut world = World::new(module);
    let log = world.path("arguments").display().to_string();
    world.wrap_engine(&format!("echo \"$@\" >> {log}"));
    world.inputs.engine_arguments = EngineArguments {
        parallelism: Some(3),
        skips_refresh: true,
        lock_timeout: Some(2_000),
    };
    world.run(RunKind::Apply).expect(RunResult::Done);
    let calls = world.read("arguments");
    let plan = arguments(&world, "plan ");
    let is_plan =
        |call: &String| call.contains("-parallelism=3") && call.contains("-refresh=false");
    assert!(plan.len() == 1 && plan.iter().all(is_plan), "{calls}");
    let changes = "-parallelism=3 -lock-timeout=2000ms";
    assert!(
        calls.contains(&format!("apply -no-color -input=false {changes} ")),
        "{calls}"
    );
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    world.run(RunKind::Destroy).expect(RunResult::Done);
    let calls = world.read("arguments");
    let destroy = arguments(&world, "apply -destroy ");
    assert!(destroy.len() == 1, "{calls}");
    assert!(
        destroy[0].contains(changes) && !destroy[0].contains("-refresh"),
        "{calls}"
    );
}
