//! Schemas of Kubernetes types with upper bounds. The API server estimates the cost of CEL rules from these bounds, and refuses a CRD with
//! a rule over a list or string without one.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

/// Maximum number of items of a list, and of entries of a map, inside a Kubernetes type.
const MAX_ITEMS: u64 = 32;
/// Maximum number of characters of a string.
const MAX_LENGTH: u64 = 1024;
/// Maximum number of characters of a name: <https://kubernetes.io/docs/concepts/overview/working-with-objects/names>.
const MAX_NAME: u64 = 253;
/// Maximum number of characters of the value of an environment variable.
const MAX_VALUE: u64 = 16 << 10;
/// Non-negative quantity.
const QUANTITY: &str = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// Returns the schema of `T`, a Kubernetes type or a list of at most `ITEMS` objects of a Kubernetes type. The schema has upper bounds and
/// no descriptions: `kubectl explain pod.spec` describes the fields, and the descriptions would make the CRD too large for
/// `kubectl apply`, which stores the object in an annotation of at most 256 KiB.
pub(crate) fn bounded<T: JsonSchema, const ITEMS: u64>(generate: &mut SchemaGenerator) -> Schema {
    let mut schema = generate.subschema_for::<T>();
    if let Some(list) = schema.as_object_mut().filter(|schema| is(schema, "array")) {
        list.insert("maxItems".to_owned(), ITEMS.into());
    }
    Bounds.transform(&mut schema);
    schema
}

/// Returns the schema of a map with at most `ITEMS` strings.
pub(crate) fn strings<const ITEMS: u64>(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": MAX_VALUE},
        "maxProperties": ITEMS,
    })
}

/// Returns the schema of a map of quantities, by resource name.
pub(crate) fn quantities(generate: &mut SchemaGenerator) -> Schema {
    bounded::<BTreeMap<String, Quantity>, MAX_ITEMS>(generate)
}

fn is(schema: &Map<String, Value>, kind: &str) -> bool {
    schema.get("type").and_then(Value::as_str) == Some(kind)
}

/// Adds upper bounds and removes descriptions.
struct Bounds;

impl Transform for Bounds {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(schema) = schema.as_object_mut() else {
            return;
        };
        schema.remove("description");
        if is(schema, "array") {
            schema.entry("maxItems").or_insert_with(|| MAX_ITEMS.into());
        }
        if is(schema, "string") {
            schema
                .entry("maxLength")
                .or_insert_with(|| MAX_LENGTH.into());
        }
        if schema
            .get("additionalProperties")
            .is_some_and(Value::is_object)
        {
            schema
                .entry("maxProperties")
                .or_insert_with(|| MAX_ITEMS.into());
        }
        if schema.contains_key("x-kubernetes-int-or-string") {
            schema.insert("pattern".to_owned(), QUANTITY.into());
        }
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        for (name, property) in properties.into_iter().flatten() {
            let bound = match name.as_str() {
                "name" | "secretName" | "claimName" | "prefix" => MAX_NAME,
                "value" => MAX_VALUE,
                _ => continue,
            };
            if let Some(text) = property
                .as_object_mut()
                .filter(|property| is(property, "string"))
            {
                text.insert("maxLength".to_owned(), bound.into());
            }
        }
    }
}
