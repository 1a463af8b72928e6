//! Variables: `spec.vars`, `spec.varsFrom` and `spec.values`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::adoption::Adoption;
use super::super::fields::Note;
use super::super::object::{is_true, items, text, value};
use super::super::values::{is_identifier, is_key, is_object_name};

/// Maximum number of entries of `variablesFrom` (CRD).
const MAX_SOURCES: usize = 50;
/// Maximum number of keys of an entry of `variablesFrom` (CRD).
const MAX_KEYS: usize = 100;
/// Maximum number of variables. The API server accepts at most 10,000 values in a resource.
const MAX_VARIABLES: usize = 5_000;

/// Sets `variables` and `variablesFrom`.
pub(super) fn set(adoption: &mut Adoption, spec: &Value) {
    let overridden = set_sources(adoption, spec);
    let mut variables = Map::new();
    if let Some(values) = value(spec, "/values") {
        if has_template(values) {
            let text = "contains a template (`${{ }}`) and is not copied";
            adoption.note(Note::lacks("spec.values", text));
        } else {
            variables.insert("values".to_owned(), values.clone());
        }
    }
    for variable in items(spec, "/vars") {
        let name = text(variable, "/name").unwrap_or_default();
        if !is_identifier(name) || variables.len() >= MAX_VARIABLES {
            let text = format!(
                "entries with an invalid name, and entries after {MAX_VARIABLES}, are not copied"
            );
            adoption.note(Note::lacks("spec.vars[]", text));
        } else if let Some(value) = variable.get("value") {
            variables.insert(name.to_owned(), value.clone());
        }
    }
    variables.retain(|name, _| !overridden.contains(name));
    if !variables.is_empty() {
        adoption.set("variables", Value::Object(variables));
    }
}

/// Sets `variablesFrom`. Returns the names of the variables that it sets.
fn set_sources(adoption: &mut Adoption, spec: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut sources = Vec::new();
    let mut takes_all = false;
    for item in items(spec, "/varsFrom") {
        match source(item) {
            Some(source) if sources.len() < MAX_SOURCES => {
                takes_all |= source.keys.is_empty();
                names.extend(source.keys.keys().cloned());
                sources.push(source.value());
            }
            _ => {
                let text = format!(
                    "entries that are not valid, and entries after the first {MAX_SOURCES}, are \
                     not copied"
                );
                adoption.note(Note::lacks("spec.varsFrom[]", text));
            }
        }
    }
    if takes_all && value(spec, "/vars").is_some() {
        let text = "an entry without `varsKeys` takes precedence over `vars` there. Here \
                    `variables` takes precedence: remove the names that both contain from \
                    `variables`";
        adoption.note(Note::differs("spec.varsFrom[]", text));
    }
    if !sources.is_empty() {
        adoption.set("variablesFrom", json!(sources));
    }
    names
}

struct Source<'a> {
    field: &'static str,
    name: &'a str,
    /// Key of each variable, by name of the variable.
    keys: Map<String, Value>,
    is_optional: bool,
}

impl Source<'_> {
    fn value(&self) -> Value {
        let mut reference = json!({ "name": self.name });
        if let Value::Object(fields) = &mut reference {
            if !self.keys.is_empty() {
                fields.insert("keys".to_owned(), Value::Object(self.keys.clone()));
            }
            if self.is_optional {
                fields.insert("optional".to_owned(), json!(true));
            }
        }
        json!({ self.field: reference })
    }
}

/// Parses an entry of `varsFrom`. `None` if it is not valid.
fn source(item: &Value) -> Option<Source<'_>> {
    let field = match text(item, "/kind")? {
        "Secret" => "secretRef",
        "ConfigMap" => "configMapRef",
        _ => return None,
    };
    let mut keys = Map::new();
    for pattern in items(item, "/varsKeys") {
        let pattern = pattern.as_str()?;
        let (key, variable) = pattern.split_once(':').unwrap_or((pattern, pattern));
        if !is_key(key) || !is_identifier(variable) || keys.len() >= MAX_KEYS {
            return None;
        }
        keys.insert(variable.to_owned(), json!(key));
    }
    Some(Source {
        field,
        name: text(item, "/name").filter(|name| is_object_name(name))?,
        keys,
        is_optional: is_true(item, "/optional"),
    })
}

fn has_template(value: &Value) -> bool {
    value.to_string().contains("${{")
}
