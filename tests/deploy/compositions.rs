//! The examples for kro and Crossplane read only fields of a `Terraform` resource that exist. kro resolves paths in CEL expressions from the
//! schema of the CRD, and refuses a path that the schema does not have. A map, and an object with
//! `x-kubernetes-preserve-unknown-fields`, has any field.

use std::fs;

use serde_json::{Value, json};

use crate::rendered::root;

fn documents(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join("deploy/examples").join(file)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Returns the schema of the `Terraform` resource, with the metadata that the API server adds.
fn schema() -> Value {
    let file = root().join("deploy/crd/terraforms.alustan.io.yaml");
    let crd: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    schema["properties"]["metadata"] = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "namespace": {"type": "string"}, "generation": {"type": "integer"},
    }});
    schema
}

/// Returns the schema of field `name` in objects with `schema`; `None` if they have no such field.
fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    if let Some(property) = schema["properties"].get(name) {
        return Some(property);
    }
    let values = &schema["additionalProperties"];
    if values.is_object() {
        return Some(values);
    }
    (schema["x-kubernetes-preserve-unknown-fields"] == true).then_some(schema)
}

/// Returns the schema at `path`, a list of fields with dots.
fn at<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(schema, field)
}

/// Returns the expressions `${…}` in the strings of `value`.
fn expressions(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            let parts = text.split("${").skip(1);
            let end = |part: &str| part.rsplit_once('}').unwrap().0.to_owned();
            parts.map(end).collect()
        }
        Value::Array(values) => values.iter().flat_map(expressions).collect(),
        Value::Object(fields) => fields.values().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

/// Returns the paths below variable `name` in `expression`, without the names of called functions.
fn paths(expression: &str, name: &str) -> Vec<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut paths = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_path) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if let Some(path) = word.strip_prefix(&format!("{name}.")) {
            let path = if after.starts_with('(') {
                path.rsplit_once('.').unwrap().0
            } else {
                path
            };
            paths.push(path.to_owned());
        }
        rest = after;
    }
    paths
}

fn is_terraform(object: &Value) -> bool {
    object["apiVersion"] == "alustan.io/v1alpha1" && object["kind"] == "Terraform"
}

/// Checks that `path` exists, and that an output in it is selected by `spec`.
fn check(schema: &Value, path: &str, spec: &Value) {
    assert!(at(schema, path).is_some(), "the CRD has no field {path}");
    if let Some(output) = path.strip_prefix("status.outputs.values.") {
        let selected = spec["outputs"]["status"].as_array().unwrap();
        assert!(
            selected.contains(&output.into()),
            "{output} is not in spec.outputs.status"
        );
    }
}

#[test]
fn kro_example_reads_fields_of_the_schema() {
    let schema = schema();
    let graph = documents("kro/rgd.yaml").remove(0);
    let resources = graph["spec"]["resources"].as_array().unwrap();
    let terraform = resources
        .iter()
        .find(|resource| is_terraform(&resource["template"]))
        .unwrap();
    let (id, spec) = (
        terraform["id"].as_str().unwrap(),
        &terraform["template"]["spec"],
    );
    let read: Vec<String> = expressions(&graph)
        .iter()
        .flat_map(|expression| paths(expression, id))
        .collect();
    for path in &read {
        check(&schema, path, spec);
    }
    for path in [
        "status.conditions",
        "status.outputs.values.url",
        "metadata.generation",
    ] {
        assert!(
            read.iter().any(|read| read == path),
            "no {path} in {read:?}"
        );
    }
    let condition = &at(&schema, "status.conditions").unwrap()["items"];
    let ready = terraform["readyWhen"][0].as_str().unwrap();
    let fields = paths(ready, "c");
    assert!(fields.len() >= 3, "{fields:?}");
    for name in fields {
        assert!(
            field(condition, &name).is_some(),
            "a condition has no field {name}"
        );
    }
    let module = fs::read_to_string(root().join("deploy/examples/kro/main.tf")).unwrap();
    for output in spec["outputs"]["status"].as_array().unwrap() {
        let block = format!("output {output} ");
        assert!(module.contains(&block), "the module has no {block}");
    }
}

#[test]
fn crossplane_example_reads_fields_of_the_schema() {
    let schema = schema();
    let composition = documents("crossplane/composition.yaml").remove(1);
    let resources = composition["spec"]["pipeline"][0]["input"]["resources"].as_array();
    let terraform = resources
        .unwrap()
        .iter()
        .find(|resource| is_terraform(&resource["base"]));
    let terraform = terraform.unwrap();
    let spec = &terraform["base"]["spec"];
    let patches = terraform["patches"].as_array().unwrap();
    assert_eq!(patches.len(), 2);
    for patch in patches {
        let side = match patch["type"].as_str().unwrap() {
            "ToCompositeFieldPath" => "fromFieldPath",
            "FromCompositeFieldPath" => "toFieldPath",
            other => panic!("{other}"),
        };
        check(&schema, patch[side].as_str().unwrap(), spec);
    }
}

#[test]
fn unknown_path_is_detected() {
    let schema = schema();
    for path in [
        "status.output.values.url",
        "status.outputs.url",
        "status.inventory.total",
    ] {
        assert!(at(&schema, path).is_none(), "{path}");
    }
    let found = paths("string(a.b.c) + a.d.exists(c, c.e == a.f) ? xa.g : b", "a");
    assert_eq!(found, ["b.c", "d", "f"]);
}
