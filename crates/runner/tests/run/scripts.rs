use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{RunKind, RunPhase};
use serde_json::json;

use crate::world::{World, text, until};

const MODULE: &str = r#"
    variable "name" { default = "none" }
    resource "terraform_data" "a" { input = var.name }
    output "name" { value = terraform_data.a.output }
"#;

#[test]
fn scripts_replace_the_engine_commands() {
    let mut world = World::new(MODULE);
    world.inputs.variables.insert("name".into(), json!("x"));
    world.inputs.scripts.init = Some("#!/bin/sh\necho own init; terraform init\n".into());
    world.inputs.scripts.plan =
        Some("echo own plan of $name; terraform plan -out=$ALUSTAN_PLAN_FILE -detailed-exitcode && code=0 || code=$?; exit $code".into());
    world.inputs.scripts.apply = Some("echo own apply; terraform apply $ALUSTAN_PLAN_FILE".into());
    world.inputs.scripts.destroy = Some("echo own destroy; terraform destroy -auto-approve".into());
    let ran = world.run(RunKind::Apply);
    let report = ran.expect(RunResult::Done);
    assert_eq!(report.changes.as_ref().unwrap().add, 1);
    for own in ["own init", "own plan of x", "own apply"] {
        assert!(ran.stdout.contains(own), "{}", ran.logs());
    }
    assert_eq!(text(&world.outputs().unwrap(), "name"), "x");
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert!(ran.stdout.contains("own destroy"));
}

#[test]
fn an_apply_script_alone_applies_without_a_plan() {
    let mut world = World::new(MODULE);
    world.inputs.scripts.apply = Some("terraform apply -auto-approve".into());
    let ran = world.run(RunKind::Apply);
    assert!(ran.expect(RunResult::Done).changes.is_none());
    assert_eq!(world.record().attempted, 1);
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
}

#[test]
fn engine_commands_of_scripts_use_the_variable_files() {
    let mut world = World::new(MODULE);
    world.write_module("env/prod.tfvars", "name = \"prod\"\n");
    world.inputs.var_files = vec!["env/prod.tfvars".into()];
    world.inputs.scripts.apply = Some("terraform apply -auto-approve".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(text(&world.outputs().unwrap(), "name"), "prod");
    world.inputs.variables.insert("name".into(), json!("own"));
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(text(&world.outputs().unwrap(), "name"), "own");
}

#[test]
fn script_may_run_init_with_the_backend_config() {
    let mut world = World::with_local_backend(MODULE);
    world.inputs.scripts.apply = Some("terraform init\nterraform apply -auto-approve".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert!(world.path("local.tfstate").is_file());
}

#[test]
fn script_may_provide_the_outputs() {
    let mut world = World::new("");
    world.inputs.scripts.apply = Some(
        r#"echo '{"a":{"value":[1],"type":"x","sensitive":true}}' > $ALUSTAN_OUTPUTS_FILE"#.into(),
    );
    world.run(RunKind::Apply).expect(RunResult::Done);
    let outputs = world.outputs().unwrap();
    assert!(outputs["a"].sensitive && outputs["a"].value == json!([1]));
}

#[test]
fn invalid_outputs_are_reported_by_position_and_not_quoted() {
    let mut world = World::new("");
    for (content, place) in [
        (r#""hunter2""#, "unexpected value at line 1, column 9"),
        (
            r#"{"a": {"value": 1, "sensitive": "hunter2"}}"#,
            "unexpected value at line 1, column 41",
        ),
        ("hunter2", "invalid JSON at line 1, column 1"),
        (r#"{"hunter2""#, "unexpected end at line 2, column 0"),
    ] {
        world.inputs.scripts.apply = Some(format!("echo '{content}' > $ALUSTAN_OUTPUTS_FILE"));
        let ran = world.run(RunKind::Apply);
        let message = ran.expect_failure(FailureClass::User, "OutputsUnreadable");
        assert_eq!(
            message,
            format!(
                "ALUSTAN_OUTPUTS_FILE is not in the format of `terraform output -json`: {place}"
            )
        );
        assert!(!ran.logs().contains("hunter2"), "{}", ran.logs());
    }
}

#[test]
fn failed_script_is_reported_with_its_exit_code() {
    let mut world = World::new("");
    world.inputs.scripts.apply = Some("echo before; false; echo never".into());
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::Module, "ScriptFailed");
    assert_eq!(message, "scripts.apply failed with exit code 1: before");
    assert!(ran.stdout.contains("before") && !ran.stdout.contains("never"));
    world.inputs.scripts.apply = Some("#!/no/such/shell\n".into());
    world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "ScriptFailed");
}

#[test]
fn orphans_of_a_script_do_not_stay_as_zombies() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    // The inner shell ends at once. Its background process ends later, as an orphan that the runner must reap.
    world.inputs.scripts.plan = Some(format!(
        "bash -c 'true & sleep 0.1 & disown' ; cat {}; exit 0",
        gate.path().display()
    ));
    world.start(RunKind::Drift);
    let pod = world.pod();
    let waiting = gate.wait();
    until("no zombie is left", || zombies_of(pod.pid()) == 0);
    assert_eq!(world.record().phase, RunPhase::Planning);
    drop(waiting);
    world.finish(pod).expect(RunResult::NoChanges);
}

fn zombies_of(parent: u32) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| {
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let fields: Vec<&str> = rest.split_whitespace().collect();
            fields.first() == Some(&"Z") && fields.get(1) == Some(&parent.to_string().as_str())
        })
        .count()
}
