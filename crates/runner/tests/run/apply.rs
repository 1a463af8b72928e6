use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{RunKind, RunPhase};
use serde_json::json;

use crate::world::{World, make_read_only, text};

/// Module that counts its applies in a file.
fn counter(world: &World) -> String {
    format!(
        r#"
        variable "name" {{ default = "none" }}
        resource "terraform_data" "a" {{
          input = var.name
          provisioner "local-exec" {{ command = "echo applied >> {}" }}
        }}
        output "name" {{ value = terraform_data.a.output }}
        output "secret" {{
          value     = "hidden-value"
          sensitive = true
        }}
        "#,
        world.path("count").display()
    )
}

fn world() -> World {
    let world = World::new("");
    world.write_module("main.tf", &counter(&world));
    world
}

/// OpenShift assigns a user to each namespace.
#[test]
fn any_user_without_home_and_passwd_entry_applies_and_destroys() {
    let mut world = World::new("");
    let file = world.path("user").display().to_string();
    let command = format!(
        "echo $(id -u) $(id -g) $(getent passwd $(id -u) || echo unknown) >> {file}; touch ~/a || echo read-only >> {file}"
    );
    let module = format!(
        "resource \"terraform_data\" \"a\" {{\n  provisioner \"local-exec\" {{ command = {} }}\n}}\n",
        json!(command)
    );
    world.write_module("main.tf", &module);
    for folder in ["home", "module"] {
        make_read_only(&world.path(folder));
    }
    world.user = Some(1_000_650_000);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.read("user"), "1000650000 0 unknown\nread-only\n");
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn a_module_is_applied_once_and_then_has_no_changes() {
    let mut world = world();
    world.inputs.variables.insert("name".into(), json!("first"));
    let ran = world.run(RunKind::Apply);
    let report = ran.expect(RunResult::Done);
    let changes = report.changes.clone().unwrap();
    assert_eq!((changes.add, changes.change, changes.destroy), (1, 0, 0));
    assert_eq!(changes.resources[0].address, "terraform_data.a");
    assert_eq!(
        report.state_address.as_deref(),
        Some("secret://team/web-state")
    );
    assert_eq!(text(&world.outputs().unwrap(), "name"), "first");
    assert!(world.outputs().unwrap()["secret"].sensitive);
    assert_eq!(world.record().phase, RunPhase::Reported);
    assert_eq!(world.record().attempted, 1);
    assert!(world.record().lock.is_none());
    assert_eq!(world.read("count"), "applied\n");
    assert!(
        ran.stdout.contains("Apply complete!") && !ran.stdout.contains("\u{1b}["),
        "{}",
        ran.logs()
    );
    assert!(world.read("termination-log").len() <= 4096);

    let again = world.run(RunKind::Apply);
    assert!(again.expect(RunResult::NoChanges).changes.is_none());
    assert_eq!(text(&world.outputs().unwrap(), "name"), "first");
    assert_eq!(world.read("count"), "applied\n");
    assert_eq!(
        world.pointer().current.unwrap().version,
        1,
        "an unchanged state was written"
    );
}

#[test]
fn drift_check_reports_changes_and_applies_nothing() {
    let mut world = world();
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    world
        .inputs
        .variables
        .insert("name".into(), json!("second"));
    let first = world
        .run(RunKind::Drift)
        .expect(RunResult::Changes)
        .changes
        .clone()
        .unwrap();
    let second = world
        .run(RunKind::Plan)
        .expect(RunResult::Changes)
        .changes
        .clone()
        .unwrap();
    assert_eq!(
        first.digest, second.digest,
        "one change set has two digests"
    );
    assert_eq!((first.add, first.change, first.destroy), (0, 1, 0));
    assert_eq!(world.record().phase, RunPhase::Reported);
    assert_eq!(world.pointer().current.unwrap().version, 1);
}

#[test]
fn recurring_diff_keeps_its_shape_and_changes_its_digest() {
    let mut world = World::new(
        "resource \"terraform_data\" \"now\" { input = uuid() }\n\
         resource \"terraform_data\" \"a\" { input = \"constant\" }\n",
    );
    world.run(RunKind::Apply).expect(RunResult::Done);
    let mut seen = Vec::new();
    for kind in [RunKind::Apply, RunKind::Apply, RunKind::Drift] {
        let result = match kind {
            RunKind::Apply => RunResult::Done,
            _ => RunResult::Changes,
        };
        seen.push(world.run(kind).expect(result).changes.clone().unwrap());
    }
    assert!(
        seen.iter()
            .all(|changes| changes.shape == seen[0].shape && changes.change == 1)
    );
    assert_ne!(seen[0].digest, seen[1].digest);
}

#[test]
fn retry_after_failed_apply_creates_no_object_twice() {
    let mut world = World::new("");
    let module = |command: &str| {
        format!(
            r#"
            resource "terraform_data" "a" {{
              provisioner "local-exec" {{ command = "echo a >> {}" }}
            }}
            resource "terraform_data" "b" {{
              depends_on = [terraform_data.a]
              provisioner "local-exec" {{ command = "{command}" }}
            }}
            "#,
            world.path("count").display()
        )
    };
    let (broken, mended) = (module("exit 3"), module("true"));
    world.write_module("main.tf", &broken);
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::Module, "ApplyFailed");
    assert!(
        message.contains("exit status 3") && !message.contains('│'),
        "{message}"
    );
    assert!(world.record().lock.is_none());
    world.write_module("main.tf", &mended);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.read("count"), "a\n");
}

#[test]
fn end_of_a_failed_runs_log_is_kept_redacted() {
    let module = |end: &str| {
        format!(
            r#"
            variable "token" {{}}
            resource "terraform_data" "a" {{
              provisioner "local-exec" {{ command = "echo token is s3cr3t-value; {end}" }}
            }}
            "#
        )
    };
    let mut world = World::new(&module("exit 3"));
    world
        .inputs
        .variables
        .insert("token".into(), json!("s3cr3t-value"));
    world.inputs.secret_variables.insert("token".into());
    world.run(RunKind::Apply).expect(RunResult::Failed);
    let log = world.kept_log(1).unwrap();
    assert!(log.contains("token is (redacted)"), "{log}");
    assert!(
        log.contains("exit status 3") && !log.contains("s3cr3t"),
        "{log}"
    );
    world.write_module("main.tf", &module("true"));
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.kept_log(2), None);
}

#[test]
fn report_contains_the_duration_of_each_step() {
    let mut world = world();
    let ran = world.run(RunKind::Apply);
    let took = ran.expect(RunResult::Done).took;
    assert!(took.plan > Some(0) && took.apply > Some(0), "{took:?}");
    let ran = world.run(RunKind::Apply);
    assert_eq!(ran.expect(RunResult::NoChanges).took.apply, None);
}

#[test]
fn module_with_a_syntax_error_is_a_user_failure() {
    let mut world = World::new("resource \"terraform_data\" \"a\" { input = \n");
    let message = world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "ModuleInvalid")
        .to_owned();
    assert!(message.contains("main.tf line 1"), "{message}");
    assert_eq!(world.record().attempted, 0);
}

#[test]
fn reference_to_an_undeclared_variable_is_a_user_failure() {
    let module = "locals { a = 1 }\n\noutput \"a\" { value = var.nowhere }\n";
    let mut world = World::new(module);
    let message = world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "ModuleInvalid")
        .to_owned();
    for part in ["main.tf line 3", "nowhere"] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    world.write_module("main.tf", &module.replace("var.nowhere", "local.a"));
    world.run(RunKind::Apply).expect(RunResult::Done);
}

#[test]
fn values_of_every_type_override_tfvars_of_the_module() {
    let mut world = World::new(
        r#"
        variable "text" {}
        variable "count_of" { type = number }
        variable "tags" { type = map(list(string)) }
        variable "parsed" { type = list(number) }
        output "all" { value = jsonencode([var.text, var.count_of, var.tags, var.parsed]) }
        "#,
    );
    world.write_module("terraform.tfvars", "text = \"from the module\"\n");
    let values = [
        ("TF_VAR_text", json!("a \"quoted\" ${text}")),
        ("count_of", json!(3)),
        ("tags", json!({"a": ["b", "c"]})),
        ("parsed", json!("[1, 2]")),
        ("unknown", json!("ignored")),
    ];
    world
        .inputs
        .variables
        .extend(values.map(|(name, value)| (name.to_owned(), value)));
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    let all = text(&world.outputs().unwrap(), "all");
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(
        all,
        json!(["a \"quoted\" ${text}", 3, {"a": ["b", "c"]}, [1, 2]])
    );
    assert!(
        !ran.logs().contains("Value for undeclared variable"),
        "{}",
        ran.logs()
    );
}

#[test]
fn value_of_wrong_type_is_refused_with_its_field() {
    let mut world = World::new("variable \"size\" { type = number }\n");
    world.inputs.variables = [("size".to_owned(), json!("x"))].into();
    world.inputs.own_variables = ["size".to_owned()].into();
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "VariablesInvalid");
    assert!(message.contains("on spec.variables.size:"), "{message}");
    assert!(!message.contains("zzz-"), "{message}");
    assert!(!ran.logs().contains('\u{1b}'), "{}", ran.logs());
}

#[test]
fn string_for_a_list_is_refused_with_its_field() {
    for default in ["", "default = []"] {
        let mut world = World::new(&format!(
            "variable \"zones\" {{\n  type = list(string)\n  {default}\n}}\n"
        ));
        world.inputs.own_variables = ["zones".to_owned()].into();
        for value in ["eu-west-1a", "a b", "[", "3"] {
            world.inputs.variables = [("zones".to_owned(), json!(value))].into();
            let ran = world.run(RunKind::Apply);
            let message = ran.expect_failure(FailureClass::User, "VariablesInvalid");
            for part in ["spec.variables.zones: the variable", "write a list"] {
                assert!(message.contains(part), "{message}");
            }
            for part in ["<value", "-var", "No value for"] {
                assert!(!message.contains(part), "{message}");
            }
        }
    }
}

#[test]
fn undeclared_variables_are_reported_and_refused_if_strict() {
    let mut world = World::new("variable \"replicas\" { default = 1 }\n");
    world.inputs.variables = [("replica".to_owned(), json!(3))].into();
    world.inputs.own_variables = ["replica".to_owned()].into();
    let ran = world.run(RunKind::Apply);
    let report = ran.expect(RunResult::NoChanges);
    let variables: Vec<_> = report.undeclared.iter().map(ToString::to_string).collect();
    assert_eq!(variables, ["replica (did you mean replicas?)"]);

    world.write_module("main.tf", "variable \"replicas\" {}\n");
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "VariablesInvalid");
    let advice = "the module does not declare replica (did you mean replicas?)";
    assert!(message.contains(advice), "{message}");

    world.inputs.strict_variables = true;
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "VariableUndeclared");
    assert!(message.contains(advice), "{message}");
}

const THREE: &str = r#"
    variable "a" { default = "default" }
    variable "b" { default = "default" }
    variable "c" { default = "default" }
    variable "list" {
      type    = list(string)
      default = []
    }
    output "all" { value = "${var.a} ${var.b} ${var.c} ${join(",", var.list)}" }
"#;

#[test]
fn variable_files_are_applied_in_order_before_variables() {
    let mut world = World::new("");
    world.write_module("web/main.tf", THREE);
    world.write_module("web/z.auto.tfvars", "a = \"auto\"\nb = \"auto\"\n");
    let common = "a = \"common\"\nb = \"common\"\nc = \"common\"\nlist = [\"common\"]\n";
    world.write_module("web/common.tfvars", common);
    world.write_module("env/prod.tfvars.json", r#"{"b": "prod", "c": "prod"}"#);
    world.inputs.path = "web".into();
    world.inputs.var_files = ["common.tfvars", "../env/prod.tfvars.json"]
        .map(Into::into)
        .into();
    let all = |world: &mut World| {
        world.run(RunKind::Apply).expect(RunResult::Done);
        text(&world.outputs().unwrap(), "all")
    };
    assert_eq!(all(&mut world), "common prod prod common");
    world.inputs.variables = [
        ("c".to_owned(), json!("variable")),
        ("list".to_owned(), json!("[\"variable\"]")),
    ]
    .into();
    assert_eq!(all(&mut world), "common prod variable variable");
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    // A required variable with a value in the file alone: destroy gets the files as well.
    world.write_module("web/required.tf", "variable \"required\" {}\n");
    world.write_module("web/common.tfvars", &format!("{common}required = 1\n"));
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn missing_variable_file_fails_the_run() {
    let mut world = World::new(THREE);
    for file in ["prod.tfvars", "../prod.tfvars"] {
        world.inputs.var_files = vec![file.into()];
        let ran = world.run(RunKind::Apply);
        let message = ran.expect_failure(FailureClass::User, "VarFileNotFound");
        assert!(
            message.contains(&format!(
                "spec.varFiles: the context has no file \"{file}\""
            )),
            "{message}"
        );
    }
}

#[test]
fn invalid_variable_file_is_named_by_its_path_in_the_repository() {
    let mut world = World::new(THREE);
    world.write_module("env/prod.tfvars", "list = 3\n");
    world.inputs.var_files = vec!["env/prod.tfvars".into()];
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "VariablesInvalid");
    assert!(message.contains("on env/prod.tfvars line 1"), "{message}");
}

#[test]
fn known_secrets_are_not_printed() {
    let mut world = World::new(
        r#"
        variable "password" { sensitive = true }
        resource "terraform_data" "a" {
          provisioner "local-exec" {
            command = "echo one $TOKEN; printf 'two hunter'; sleep 0.05; echo '22-long'; echo three $TF_HTTP_PASSWORD; exit 1"
          }
        }
        "#,
    );
    world
        .inputs
        .variables
        .insert("password".into(), json!("hunter22-long"));
    world
        .inputs
        .backend
        .environment
        .insert("TOKEN".into(), "tok-123456".into());
    let ran = world.run(RunKind::Apply);
    let report = serde_json::to_string(ran.expect(RunResult::Failed)).unwrap();
    for (source, text) in [("log", ran.logs()), ("report", report)] {
        assert!(
            !text.contains("hunter22-long") && !text.contains("tok-123456"),
            "{source}: {text}"
        );
    }
    assert!(ran.stdout.contains("one (redacted)"), "{}", ran.logs());
    assert!(
        ran.stdout.contains("two (redacted)") && ran.stdout.contains("three (redacted)"),
        "{}",
        ran.logs()
    );
}

#[test]
fn value_marked_sensitive_by_the_module_is_redacted() {
    let mut world = World::new(
        r#"
        variable "password" { sensitive = true }
        resource "terraform_data" "a" { for_each = toset([nonsensitive(var.password)]) }
        "#,
    );
    world
        .inputs
        .variables
        .insert("password".into(), json!("hunter22-long"));
    let ran = world.run(RunKind::Drift);
    let changes = ran.expect(RunResult::Changes).changes.clone().unwrap();
    assert_eq!(
        changes.resources[0].address,
        "terraform_data.a[\"(redacted)\"]"
    );

    // The name of the lock holder contains the secret value. The runner reads this name from the run report, not from the output of the engine.
    world.start(RunKind::Apply);
    world.lock_by("hunter22-long@host");
    let ran = world.finish(world.pod());
    let message = ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert!(message.contains("locked by (redacted)@host"), "{message}");
    let copy = world.read("termination-log");
    for text in [ran.logs(), copy] {
        assert!(!text.contains("hunter22-long"), "{text}");
    }
}

#[test]
fn environment_secrets_and_proxy_password_are_not_printed() {
    let mut world = World::new(
        r#"
        resource "terraform_data" "a" {
          provisioner "local-exec" {
            command = "echo one $SUPERUSER of $PLACE; echo two $HTTPS_PROXY; echo three $INSECURE; exit 1"
          }
        }
        "#,
    );
    let vars = [
        ("SUPERUSER", "alice-of-the-base"),
        ("PLACE", "north"),
        ("HTTPS_PROXY", "http://me:pass-of-proxy@127.0.0.1:9"),
        ("INSECURE", "false"),
    ];
    world
        .vars
        .extend(vars.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let from_secrets = ["SUPERUSER", "INSECURE", "NOT_THERE"].map(String::from);
    world.inputs.secret_environment.extend(from_secrets);
    let ran = world.run(RunKind::Apply);
    let report = serde_json::to_string(ran.expect(RunResult::Failed)).unwrap();
    let message = world.read("termination-log");
    for text in [&ran.logs(), &report, &message] {
        assert!(
            !text.contains("alice-of-the-base") && !text.contains("pass-of-proxy"),
            "{text}"
        );
    }
    for line in [
        "one (redacted) of north",
        "two http://(redacted)@127.0.0.1:9",
        "three false",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.logs());
    }
}

#[test]
fn module_backend_block_gets_its_config_from_a_file() {
    let mut world = World::with_local_backend("output \"x\" { value = 1 }\n");
    let state = world.path("local.tfstate");
    let ran = world.run(RunKind::Apply);
    let report = ran.expect(RunResult::Done);
    assert_eq!(
        report.state_address,
        Some(format!("local://{}", state.display()))
    );
    assert!(state.is_file());
    assert_eq!(text(&world.outputs().unwrap(), "x"), "1");
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert_eq!(text(&world.outputs().unwrap(), "x"), "1");
}

#[test]
fn a_run_works_without_its_cache_volume() {
    let mut world = world();
    std::fs::remove_dir(world.path("cache")).unwrap();
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    assert!(
        ran.stderr
            .contains("cannot use the cache volume: failed to store the plan"),
        "{}",
        ran.logs()
    );
}

#[test]
fn plans_are_kept_encrypted() {
    let mut world = world();
    world.run(RunKind::Apply).expect(RunResult::Done);
    let plan = std::fs::read(world.path("cache/plans/1.plan")).unwrap();
    assert!(
        plan.starts_with(b"ALUSTAN1") && !plan.windows(4).any(|window| window == b"PK\x03\x04")
    );
}

#[test]
fn too_large_outputs_fail_after_the_state_is_saved() {
    let mut world = World::new(
        r#"
        resource "terraform_data" "a" { input = "x" }
        output "small" { value = "x" }
        output "big" { value = join("", [for n in range(1000) : join("", [for m in range(800) : "x"])]) }
        "#,
    );
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "OutputsTooLarge");
    let largest = "the largest output is big (800";
    assert!(message.contains(largest), "{}", message);
    assert!(world.pointer().current.is_some());
}

#[test]
fn module_in_a_folder_may_call_another_folder() {
    let mut world = World::new("");
    world.write_module(
        "stacks/web/main.tf",
        "module \"x\" { source = \"../../lib\" }\noutput \"x\" { value = module.x.x }\n",
    );
    world.write_module(
        "lib/main.tf",
        "output \"x\" { value = \"of the library\" }\n",
    );
    world.inputs.path = "stacks/web".into();
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(text(&world.outputs().unwrap(), "x"), "of the library");
    world.inputs.path = "stacks/none".into();
    world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::User, "PathNotFound");
}
