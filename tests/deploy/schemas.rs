//! Validates objects with kubeconform against the published schemas of Kubernetes, one JSON file per kind. Unknown fields are errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::rendered::{root, run};

/// Third-party kinds. Their schemas are not available.
const FOREIGN: [&str; 3] = ["CompositeController", "PodMonitor", "PrometheusRule"];

/// File name of a schema, as a template of kubeconform.
const NAMES: &str = "{{.Group}}-{{.ResourceAPIVersion}}-{{.ResourceKind}}.json";

/// Validates the files in `folder`, which contain objects of `kinds`, with kubeconform. Returns its summary.
///
/// # Errors
/// Output of kubeconform if an object is invalid.
pub(crate) fn conforms(
    folder: &Path,
    kinds: &BTreeSet<(String, String)>,
) -> Result<String, String> {
    let schemas = tempfile::tempdir().unwrap();
    write(schemas.path(), kinds);
    let names = schemas.path().join(NAMES);
    let foreign = FOREIGN.join(",");
    let check = ["-strict", "-summary", "-skip", &foreign, "-schema-location"];
    let places = [names.to_str().unwrap(), folder.to_str().unwrap()];
    run("kubeconform", &[&check[..], &places].concat())
}

/// Writes one schema file per entry of `kinds` (API version and kind) into `folder`.
fn write(folder: &Path, kinds: &BTreeSet<(String, String)>) {
    let file = kubernetes().join("api/openapi-spec/swagger.json");
    let swagger: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let definitions = swagger["definitions"].as_object().unwrap();
    let names = names(definitions);
    for (api_version, kind) in kinds {
        if FOREIGN.contains(&kind.as_str()) {
            continue;
        }
        let schema =
            if (api_version.as_str(), kind.as_str()) == ("alustan.io/v1alpha1", "Terraform") {
                ours()
            } else {
                let name = names
                    .get(&(api_version.clone(), kind.clone()))
                    .unwrap_or_else(|| panic!("Kubernetes has no {api_version} {kind}"));
                with_all_it_needs(definitions, name)
            };
        let (group, version) = api_version.split_once('/').unwrap_or(("v1", api_version));
        let file = format!("{group}-{version}-{}.json", kind.to_lowercase());
        std::fs::write(folder.join(file), schema.to_string()).unwrap();
    }
}

/// Returns the source tree of Kubernetes, at the version of the dev cluster.
fn kubernetes() -> PathBuf {
    let folder = std::env::var_os("KUBERNETES_SOURCE");
    PathBuf::from(
        folder.unwrap_or_else(|| panic!("KUBERNETES_SOURCE is not set: run `make chart`")),
    )
}

/// Returns the names of definitions by API version and kind.
fn names(definitions: &Map<String, Value>) -> BTreeMap<(String, String), &str> {
    let mut names = BTreeMap::new();
    for (name, definition) in definitions {
        let kinds = definition["x-kubernetes-group-version-kind"].as_array();
        for kind in kinds.into_iter().flatten() {
            let word = |key: &str| kind[key].as_str().unwrap();
            let api_version = match word("group") {
                "" => word("version").to_owned(),
                group => format!("{group}/{}", word("version")),
            };
            names.insert((api_version, word("kind").to_owned()), name.as_str());
        }
    }
    names
}

/// Returns a definition together with all definitions that it references.
fn with_all_it_needs(definitions: &Map<String, Value>, name: &str) -> Value {
    let mut needed = BTreeMap::new();
    let mut missing = vec![name.to_owned()];
    while let Some(name) = missing.pop() {
        if needed.contains_key(&name) {
            continue;
        }
        let mut definition = definitions[&name].clone();
        strict(&mut definition, &mut missing);
        needed.insert(name, definition);
    }
    json!({"$ref": format!("#/definitions/{name}"), "definitions": needed})
}

/// Forbids additional properties in `schema` and collects the names of the referenced definitions.
fn strict(schema: &mut Value, references: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            if map.get("format") == Some(&json!("int-or-string"))
                || map.contains_key("x-kubernetes-int-or-string")
            {
                map.insert("type".to_owned(), json!(["integer", "string"]));
            }
            let open = map.contains_key("additionalProperties")
                || map.contains_key("x-kubernetes-preserve-unknown-fields");
            if map.get("properties").is_some_and(Value::is_object) && !open {
                map.insert("additionalProperties".to_owned(), json!(false));
            }
            if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                references.extend(name.strip_prefix("#/definitions/").map(str::to_owned));
            }
            for (key, value) in map {
                match value {
                    // Keys of `properties` are field names, not keywords of JSON Schema.
                    Value::Object(properties) if key == "properties" => {
                        let properties = properties.values_mut();
                        properties.for_each(|schema| strict(schema, references));
                    }
                    value => strict(value, references),
                }
            }
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|schema| strict(schema, references)),
        _ => {}
    }
}

/// Returns the schema of `Terraform` from the CRD in `deploy/crd`.
fn ours() -> Value {
    let file = root().join("deploy/crd/terraforms.alustan.io.yaml");
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    for (name, kind) in [
        ("apiVersion", "string"),
        ("kind", "string"),
        ("metadata", "object"),
    ] {
        schema["properties"][name] = json!({"type": kind});
    }
    strict(&mut schema, &mut Vec::new());
    schema
}
