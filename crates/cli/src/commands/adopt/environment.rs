//! Environment of runner pods: `env` and `envFrom` of a container.

use serde_json::{Map, Value, json};

use super::adoption::Adoption;
use super::fields::Note;
use super::object::{items, text, value};
use super::values::{is_identifier, is_key, is_object_name};

/// Maximum number of entries of `runner.envFromSecrets` (CRD).
const MAX_SECRETS: usize = 100;
/// Maximum number of variables from `env`.
const MAX_VARIABLES: usize = 100;

/// Fields of `valueFrom`, and the fields of `variablesFrom` with the same meaning.
const KINDS: [(&str, &str); 2] = [
    ("secretKeyRef", "secretRef"),
    ("configMapKeyRef", "configMapRef"),
];

/// Sets `runner.envFromSecrets`, `variables` and `variablesFrom` from `env` and `envFrom` at `pointer`. `path` is the path of the same
/// place, for notes. Values of variables other than `TF_VAR_*` are neither copied nor printed: they may be secrets.
pub(crate) fn set(adoption: &mut Adoption, spec: &Value, pointer: &str, path: &str) {
    let from = items(spec, &format!("{pointer}/envFrom"));
    let secrets: Vec<Value> = from.iter().filter_map(secret).take(MAX_SECRETS).collect();
    if secrets.len() < from.len() {
        let text = "entries other than Secrets without a prefix, and entries after the first 100, \
                    are not copied";
        adoption.note(Note::lacks(format!("{path}.envFrom[]"), text));
    }
    if !secrets.is_empty() {
        adoption.set("runner.envFromSecrets", json!(secrets));
    }
    let mut values = Map::new();
    let mut sources = Vec::new();
    for item in items(spec, &format!("{pointer}/env")) {
        let name = text(item, "/name").unwrap_or_default();
        let is_full = values.len() + sources.len() >= MAX_VARIABLES;
        let variable = name
            .strip_prefix("TF_VAR_")
            .filter(|name| is_identifier(name) && !is_full);
        match (
            variable,
            variable.and_then(|variable| source(variable, item)),
        ) {
            (_, Some(source)) => sources.push(source),
            (Some(variable), None) if value(item, "/valueFrom").is_none() => {
                let value = item.get("value").cloned().unwrap_or_else(|| json!(""));
                values.insert(variable.to_owned(), value);
            }
            _ => {
                let name = if is_identifier(name) {
                    name
                } else {
                    "(invalid name)"
                };
                let text = "is not copied: put it into a Secret of runner.envFromSecrets";
                adoption.note(Note::lacks(format!("{path}.env {name}"), text));
            }
        }
    }
    merge(adoption, values, sources);
}

/// Adds variables of the environment. The engine reads them with lower precedence than the variables that are set already.
fn merge(adoption: &mut Adoption, values: Map<String, Value>, mut sources: Vec<Value>) {
    let is_set = |adoption: &Adoption, name: &str| {
        let is_in_source = adoption
            .get("variablesFrom")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .flat_map(keys)
            .any(|key| key == name);
        is_in_source || adoption.get(&format!("variables.{name}")).is_some()
    };
    for (name, value) in values {
        if !is_set(adoption, &name) {
            adoption.set(&format!("variables.{name}"), value);
        }
    }
    if !sources.is_empty() {
        let present = adoption.get("variablesFrom").and_then(Value::as_array);
        sources.extend(present.into_iter().flatten().cloned());
        adoption.set("variablesFrom", json!(sources));
    }
}

/// Returns the names of the variables that an entry of `variablesFrom` sets.
fn keys(source: &Value) -> Vec<&str> {
    ["/secretRef/keys", "/configMapRef/keys"]
        .into_iter()
        .filter_map(|pointer| source.pointer(pointer)?.as_object())
        .flat_map(Map::keys)
        .map(String::as_str)
        .collect()
}

fn secret(item: &Value) -> Option<Value> {
    let name = text(item, "/secretRef/name").filter(|name| is_object_name(name))?;
    text(item, "/prefix")
        .is_none()
        .then(|| json!({ "name": name }))
}

/// Returns the entry of `variablesFrom` for `variable`, with the value of `valueFrom` of `item`: a key of a Secret or `ConfigMap`.
pub(crate) fn source(variable: &str, item: &Value) -> Option<Value> {
    KINDS.into_iter().find_map(|(theirs, ours)| {
        let field = |name: &str| text(item, &format!("/valueFrom/{theirs}/{name}"));
        let name = field("name").filter(|name| is_object_name(name))?;
        let key = field("key").filter(|key| is_key(key))?;
        Some(json!({ ours: {"name": name, "keys": {variable: key}} }))
    })
}

#[cfg(test)]
mod tests {
    use super::super::adoption::Options;
    use super::*;

    #[test]
    fn environment_is_mapped_without_printing_values() {
        let spec = json!({"pod": {
            "envFrom": [
                {"secretRef": {"name": "aws"}},
                {"secretRef": {"name": "x"}, "prefix": "P_"},
                {"configMapRef": {"name": "settings"}},
            ],
            "env": [
                {"name": "TF_VAR_region", "value": "eu"},
                {"name": "TF_VAR_set", "value": "x3-lower"},
                {"name": "TF_VAR_password", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}},
                {"name": "TF_VAR_field", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "AWS_SECRET_ACCESS_KEY", "value": "x3-secret"},
            ],
        }});
        let mut adoption = Adoption::new(&Options::default());
        adoption.set("variables", json!({"set": "higher"}));
        set(&mut adoption, &spec, "/pod", "spec.pod");
        let secrets = json!([{"name": "aws"}]);
        assert_eq!(adoption.get("runner.envFromSecrets"), Some(&secrets));
        let variables = json!({"region": "eu", "set": "higher"});
        assert_eq!(adoption.get("variables"), Some(&variables));
        let from = json!([{"secretRef": {"name": "db", "keys": {"password": "pw"}}}]);
        assert_eq!(adoption.get("variablesFrom"), Some(&from));
        let notes: Vec<&str> = adoption.notes.iter().map(|note| &*note.path).collect();
        let wanted = [
            "spec.pod.env AWS_SECRET_ACCESS_KEY",
            "spec.pod.env TF_VAR_field",
            "spec.pod.envFrom[]",
        ];
        assert_eq!(notes, wanted);
        let all = format!("{:?}{}", adoption.notes, adoption.manifest());
        assert!(!all.contains("x3-secret"), "{all}");
    }
}
