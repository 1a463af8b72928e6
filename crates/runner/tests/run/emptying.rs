//! Modules without configuration files, and plans that remove every managed object.

use std::fs;

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::RunKind;

use crate::world::{Ran, World};

fn module(names: &[&str]) -> String {
    let resource = |name: &&str| format!("resource \"terraform_data\" \"{name}\" {{}}\n");
    names.iter().map(resource).collect()
}

/// Returns the number of created objects and the number of destroyed objects.
fn changes(ran: &Ran) -> (i64, i64) {
    let report = ran.expect(RunResult::Done);
    let changes = report.changes.as_ref().unwrap();
    (changes.add, changes.destroy)
}

/// Returns a test environment in which `a` and `b` are applied, and in which a plan that removes both objects needs approval.
fn applied() -> World {
    let mut world = World::new("");
    world.inputs.approval.emptying = true;
    world.write_module("main.tf", &module(&["a", "b"]));
    world.run(RunKind::Apply).expect(RunResult::Done);
    world
}

fn reasons(ran: &Ran) -> String {
    let report = ran.expect(RunResult::Changes);
    report.asks.as_ref().unwrap().because.join("; ")
}

#[test]
fn folder_without_configuration_is_neither_applied_nor_checked() {
    let mut world = applied();
    fs::rename(world.path("module/main.tf"), world.path("module/README.md")).unwrap();
    for kind in [RunKind::Plan, RunKind::Apply, RunKind::Drift] {
        let ran = world.run(kind);
        let message = ran.expect_failure(FailureClass::User, "NoConfiguration");
        assert!(
            message.starts_with("the root of the repository has no configuration files"),
            "{message}"
        );
    }
    fs::rename(world.path("module/README.md"), world.path("module/main.tf")).unwrap();
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
}

#[test]
fn folder_without_configuration_is_destroyed_with_its_resource() {
    let mut world = applied();
    fs::remove_file(world.path("module/main.tf")).unwrap();
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn init_script_may_write_the_configuration() {
    let mut world = applied();
    fs::rename(world.path("module/main.tf"), world.path("module/main.tpl")).unwrap();
    world.inputs.scripts.init = Some("terraform init".into());
    world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "NoConfiguration");
    world.inputs.scripts.init = Some("cp main.tpl main.tf && terraform init".into());
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
}

#[test]
fn plan_that_removes_every_object_needs_approval() {
    let mut world = applied();
    world.write_module("main.tf", &module(&["c"]));
    let ran = world.run(RunKind::Apply);
    assert!(
        reasons(&ran).contains("spec.approval.emptying"),
        "{}",
        ran.logs()
    );
    world.approve(ran.report.as_ref().unwrap());
    assert_eq!(changes(&world.run(RunKind::Apply)), (1, 2));
}

#[test]
fn plan_that_forgets_every_object_needs_approval() {
    let mut world = applied();
    let removed = |name: &str| {
        format!(
            "removed {{\n  from = terraform_data.{name}\n  lifecycle {{ destroy = false }}\n}}\n"
        )
    };
    world.write_module("main.tf", &(removed("a") + &removed("b")));
    let ran = world.run(RunKind::Apply);
    assert!(
        reasons(&ran).contains("spec.approval.emptying"),
        "{}",
        ran.logs()
    );
}

#[test]
fn plan_that_keeps_an_object_is_applied() {
    let mut world = applied();
    world.write_module("main.tf", &module(&["b"]));
    assert_eq!(changes(&world.run(RunKind::Apply)), (0, 1));
}

#[test]
fn plan_that_removes_every_object_is_applied_if_allowed() {
    let mut world = applied();
    world.inputs.approval.emptying = false;
    world.write_module("main.tf", "");
    assert_eq!(changes(&world.run(RunKind::Apply)), (0, 2));
}

#[test]
fn unreadable_script_plan_needs_approval_after_an_apply() {
    let mut world = World::new("");
    world.inputs.approval.emptying = true;
    world.inputs.scripts.plan = Some("echo own format > $ALUSTAN_PLAN_FILE; exit 2".into());
    world.inputs.scripts.apply = Some("terraform apply -auto-approve -lock=false".into());
    world.write_module("main.tf", &module(&["a"]));
    world.run(RunKind::Apply).expect(RunResult::Done);
    let ran = world.run(RunKind::Apply);
    assert!(
        reasons(&ran).contains("scripts.plan cannot be read"),
        "{}",
        ran.logs()
    );
    world.approve(ran.report.as_ref().unwrap());
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.inputs.approval.approved = None;
    world.inputs.approval.emptying = false;
    world.run(RunKind::Apply).expect(RunResult::Done);
}

#[test]
fn apply_script_is_refused_after_configuration_removal() {
    let mut world = applied();
    world.inputs.scripts.apply = Some("terraform apply -auto-approve".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
    fs::rename(world.path("module/main.tf"), world.path("module/main.tpl")).unwrap();
    for kind in [RunKind::Apply, RunKind::Drift] {
        let ran = world.run(kind);
        let message = ran.expect_failure(FailureClass::User, "NoConfiguration");
        assert!(
            message.ends_with("set spec.approval.emptying: Allow"),
            "{message}"
        );
    }
    world.inputs.scripts.init = Some("terraform init".into());
    world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "NoConfiguration");
    world.inputs.scripts.init = Some("cp main.tpl main.tf && terraform init".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
}

#[test]
fn apply_script_without_configuration_runs_first_or_if_allowed() {
    let mut world = World::new("");
    world.inputs.approval.emptying = true;
    fs::remove_file(world.path("module/main.tf")).unwrap();
    world.inputs.scripts.apply = Some("echo '{}' > $ALUSTAN_OUTPUTS_FILE".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
    world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "NoConfiguration");
    let wrapper = world.path("module/terragrunt.hcl");
    fs::write(&wrapper, "").unwrap();
    world.run(RunKind::Apply).expect(RunResult::Done);
    fs::remove_file(wrapper).unwrap();
    world.inputs.approval.emptying = false;
    world.run(RunKind::Apply).expect(RunResult::Done);
}
