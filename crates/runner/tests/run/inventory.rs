//! Managed objects and outputs that a run reports.

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{MAX_OBJECTS, RunKind};
use serde_json::{Value, json};

use crate::world::World;

/// Returns the addresses in the report, with their marks.
fn addresses(world: &World) -> Vec<String> {
    let objects = world.inventory().unwrap().objects;
    objects
        .iter()
        .map(|object| {
            assert_eq!(object.kind, "terraform_data");
            assert!(
                object.provider.ends_with("/builtin/terraform"),
                "{object:?}"
            );
            let tainted = if object.tainted { " tainted" } else { "" };
            let deposed = if object.deposed.is_some() {
                " deposed"
            } else {
                ""
            };
            format!("{}{tainted}{deposed}", object.address)
        })
        .collect()
}

#[test]
fn apply_lists_the_managed_objects_and_destroy_none() {
    let mut world = World::new(
        r#"
        variable "keys" { default = ["a", "<\"ü\">"] }
        resource "terraform_data" "one" { input = "attribute-value" }
        resource "terraform_data" "each" { for_each = toset(var.keys) }
        resource "terraform_data" "count" { count = 2 }
        "#,
    );
    let ran = world.run(RunKind::Apply);
    assert_eq!(ran.expect(RunResult::Done).inventory, Some(5));
    let inventory = world.inventory().unwrap();
    assert_eq!(
        (inventory.run, inventory.count, inventory.truncated),
        (1, 5, false)
    );
    assert_eq!(
        addresses(&world),
        [
            "terraform_data.count[0]",
            "terraform_data.count[1]",
            r#"terraform_data.each["<\"ü\">"]"#,
            r#"terraform_data.each["a"]"#,
            "terraform_data.one",
        ]
    );
    let ids: Vec<_> = inventory.objects.iter().map(|object| &object.id).collect();
    assert!(
        ids.iter()
            .all(|id| id.as_ref().is_some_and(|id| id.len() == 36)),
        "{ids:?}"
    );
    assert!(!format!("{inventory:?}").contains("attribute-value"));

    let checked = world.run(RunKind::Drift);
    assert_eq!(checked.expect(RunResult::NoChanges).inventory, None);
    assert_eq!(world.inventory().unwrap(), inventory);

    let destroyed = world.run(RunKind::Destroy);
    assert_eq!(destroyed.expect(RunResult::Done).inventory, Some(0));
    assert_eq!(addresses(&world), Vec::<String>::new());
}

#[test]
fn failed_apply_lists_tainted_and_deposed_objects() {
    let module = |version: &str, command: &str| {
        format!(
            r#"
            resource "terraform_data" "a" {{
              triggers_replace = "{version}"
              lifecycle {{ create_before_destroy = true }}
            }}
            resource "terraform_data" "b" {{
              triggers_replace = terraform_data.a.id
              provisioner "local-exec" {{ command = "{command}" }}
            }}
            "#
        )
    };
    let mut world = World::new(&module("1", "true"));
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.write_module("main.tf", &module("2", "exit 3"));
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Module, "ApplyFailed");
    assert_eq!(ran.report.as_ref().unwrap().inventory, Some(3));
    assert_eq!(
        addresses(&world),
        [
            "terraform_data.a",
            "terraform_data.a deposed",
            "terraform_data.b tainted"
        ]
    );
}

#[test]
fn list_of_many_objects_is_truncated() {
    let mut world = World::new("resource \"terraform_data\" \"a\" { count = 1003 }\n");
    let ran = world.run(RunKind::Apply);
    assert_eq!(ran.expect(RunResult::Done).inventory, Some(1003));
    let inventory = world.inventory().unwrap();
    assert_eq!((inventory.count, inventory.truncated), (1003, true));
    assert_eq!(inventory.objects.len(), MAX_OBJECTS);
}

/// A state in another backend is pulled only after changes, and once if no list exists.
#[test]
fn list_of_another_backend_is_renewed_after_changes() {
    let mut world = World::with_local_backend("resource \"terraform_data\" \"a\" {}\n");
    let ran = world.run(RunKind::Apply);
    assert_eq!(ran.expect(RunResult::Done).inventory, Some(1));
    assert_eq!(addresses(&world), ["terraform_data.a"]);
    world.watch_engine();
    let again = world.run(RunKind::Apply);
    assert_eq!(again.expect(RunResult::NoChanges).inventory, None);
    assert_eq!(world.engine_calls(), ["init", "output", "plan"]);
    assert_eq!(world.inventory().unwrap().run, 1);

    world.forget_inventory();
    let drift = world.run(RunKind::Drift);
    assert_eq!(drift.expect(RunResult::NoChanges).inventory, Some(1));
    assert_eq!(world.inventory().unwrap().run, 3);

    let destroyed = world.run(RunKind::Destroy);
    assert_eq!(destroyed.expect(RunResult::Done).inventory, Some(0));
}

/// The operator copies outputs to the status from this report.
#[test]
fn outputs_are_reported_with_type_and_sensitivity() {
    let mut world = World::new(
        r#"
        output "null" { value = null }
        output "nested" { value = { a = null, b = [1, 2.5, "ü\u0001"] } }
        output "ünïcode" { value = "\U0001F600 <&> ${"$"}{x}" }
        output "large" { value = join("", [for n in range(1000) : "xxxxxxxxxxxxxxxxxxxx"]) }
        output "number" { value = 18446744073709551615 }
        output "secret" {
          value     = "hidden-value"
          sensitive = true
        }
        "#,
    );
    world.run(RunKind::Apply).expect(RunResult::Done);
    let outputs = world.outputs().unwrap();
    let value = |name: &str| outputs.get(name).map(|output| output.value.clone());
    // The engine does not store an output whose value is null.
    assert!(value("null").is_none_or(|value| value.is_null()));
    assert_eq!(
        value("nested"),
        Some(json!({"a": null, "b": [1, 2.5, "ü\u{1}"]}))
    );
    assert_eq!(value("ünïcode"), Some(json!("\u{1F600} <&> ${x}")));
    assert_eq!(value("large"), Some("x".repeat(20_000).into()));
    assert_eq!(value("number"), Some(Value::from(u64::MAX)));
    let sensitive = outputs.iter().filter(|(_, output)| output.sensitive);
    let sensitive: Vec<_> = sensitive.map(|(name, _)| name.as_str()).collect();
    assert_eq!(sensitive, ["secret"]);
}
