//! Runs and builds with the wrapper Terragrunt (`spec.engine.wrapper`). The tests need `terragrunt` on PATH; `hack/test` builds it.

use std::fs;

use alustan_api::WrapperName;
use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::RunKind;
use serde_json::json;

use crate::world::{World, text};

const ROOT: &str = r#"
locals { common = yamldecode(file("common.yaml")) }
inputs = {
  owner = local.common.owner
  unit  = path_relative_to_include()
  size  = 1
}
"#;
const UNIT: &str = r#"
include "root" { path = find_in_parent_folders("root.hcl") }
terraform {
  source = "${get_repo_root()}/modules//app"
  extra_arguments "vars" {
    commands           = get_terraform_commands_that_need_vars()
    required_var_files = ["${get_terragrunt_dir()}/../prod.tfvars"]
  }
}
inputs = { size = 2 }
"#;
const MODULE: &str = r#"
variable "owner" {}
variable "unit" {}
variable "size" { type = number }
variable "zone" {}
resource "terraform_data" "a" { input = "${var.owner} ${var.unit} ${var.size} ${var.zone}" }
output "all" { value = terraform_data.a.output }
"#;

/// Returns a test environment with the unit `live/prod/app` and its module.
fn unit() -> World {
    let mut world = World::new("");
    fs::remove_file(world.path("module/main.tf")).unwrap();
    for (path, content) in [
        ("live/root.hcl", ROOT),
        ("live/common.yaml", "owner: team-a\n"),
        ("live/prod/prod.tfvars", "zone = \"b\"\n"),
        ("live/prod/app/terragrunt.hcl", UNIT),
        ("modules/app/main.tf", MODULE),
    ] {
        world.write_module(path, content);
    }
    world.inputs.path = "live/prod/app".into();
    world.inputs.wrapper = Some(WrapperName::Terragrunt);
    world
}

#[test]
fn unit_of_terragrunt_is_planned_applied_and_destroyed() {
    let mut world = unit();
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    assert!(ran.stdout.contains("Plan: 1 to add"), "{}", ran.logs());
    let all = |world: &World| text(&world.outputs().unwrap(), "all");
    assert_eq!(all(&world), "team-a prod/app 2 b");
    world.run(RunKind::Drift).expect(RunResult::NoChanges);

    // Values of the resource take precedence over inputs.
    world.inputs.variables = [("size".to_owned(), json!(7))].into();
    world.inputs.own_variables = ["size".to_owned()].into();
    world.inputs.strict_variables = true;
    world.inputs.approval.manual = true;
    let report = world.run(RunKind::Plan).expect(RunResult::Changes).clone();
    world.approve(&report);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(all(&world), "team-a prod/app 7 b");
    world.inputs.approval.manual = false;

    world.inputs.variables = [("sizes".to_owned(), json!(7))].into();
    world.inputs.own_variables = ["sizes".to_owned()].into();
    let ran = world.run(RunKind::Drift);
    ran.expect_failure(FailureClass::User, "VariableUndeclared");
    world.inputs.strict_variables = false;
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert!(ran.stdout.contains("Destroy complete"), "{}", ran.logs());
}

#[test]
fn unit_reads_outputs_of_its_dependency_in_remote_state() {
    let mut world = unit();
    let state = world.path("states").display().to_string();
    let root = format!(
        "remote_state {{\n  backend = \"local\"\n  generate = {{\n    path = \"backend.tf\"\n    if_exists = \"overwrite\"\n  }}\n  \
         config = {{ path = \"{state}/${{path_relative_to_include()}}.tfstate\" }}\n}}\n"
    );
    world.write_module("live/root.hcl", &root);
    let include = "include \"root\" { path = find_in_parent_folders(\"root.hcl\") }\n";
    world.write_module("live/prod/net/terragrunt.hcl", include);
    let net = "resource \"terraform_data\" \"n\" { input = \"vpc-1\" }\noutput \"id\" { value = terraform_data.n.output }\n";
    world.write_module("live/prod/net/main.tf", net);
    let app = format!(
        "{include}dependency \"net\" {{ config_path = \"../net\" }}\ninputs = {{ id = dependency.net.outputs.id }}\n"
    );
    world.write_module("live/prod/app/terragrunt.hcl", &app);
    let module = "variable \"id\" {}\nresource \"terraform_data\" \"a\" { input = var.id }\noutput \"all\" { value = terraform_data.a.output }\n";
    world.write_module("live/prod/app/main.tf", module);
    world.inputs.backend.kind = None;
    world.inputs.backend.write_block = false;
    world.inputs.backend.managed = None;
    world.inputs.path = "live/prod/net".into();
    world.run(RunKind::Apply).expect(RunResult::Done);

    world.forget_record();
    world.inputs.path = "live/prod/app".into();
    let report = world.run(RunKind::Apply).expect(RunResult::Done).clone();
    assert_eq!(text(&world.outputs().unwrap(), "all"), "vpc-1");
    let address = report.state_address.unwrap_or_default();
    assert!(address.contains("prod/app.tfstate"), "{address}");
    assert!(report.lineage.is_some());
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn missing_wrapper_and_unit_fail_the_run() {
    let mut world = unit();
    fs::remove_file(world.path("module/live/prod/app/terragrunt.hcl")).unwrap();
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::User, "NoConfiguration");

    let mut world = unit();
    world.wrap_engine("");
    let only_engine = world.path("bin").display().to_string();
    world.vars.insert("PATH".into(), only_engine);
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "EngineNotFound");
    assert!(message.contains("has no `terragrunt` in PATH"), "{message}");
}

#[test]
fn error_of_terragrunt_is_the_failure_of_the_run() {
    let mut world = unit();
    world.write_module(
        "live/prod/app/terragrunt.hcl",
        "inputs = { a = local.missing }\n",
    );
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "ModuleInvalid");
    let place = "ERROR   on ./terragrunt.hcl line 1";
    assert!(message.contains(place), "{message}");
}
