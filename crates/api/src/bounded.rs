//! Schemas of Kubernetes types with upper bounds. The API server estimates the cost of CEL rules from these bounds, and refuses a CRD with
//! a rule over a list or string without one.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
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
/// Name of an object that is a DNS subdomain (RFC 1123).
const OBJECT_NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";
/// Maximum number of characters of a quantity.
const MAX_QUANTITY: u64 = 64;
/// Maximum number of labels and of values in a label selector. The operator has the same limit for their sum.
const MAX_TERMS: u64 = 50;
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
    Bounds {
        items: MAX_ITEMS,
        keeps_descriptions: false,
    }
    .transform(&mut schema);
    schema
}

/// Returns the schema of an optional label selector.
pub(crate) fn selector(generate: &mut SchemaGenerator) -> Schema {
    let mut schema = generate.subschema_for::<Option<LabelSelector>>();
    Bounds {
        items: MAX_TERMS,
        keeps_descriptions: true,
    }
    .transform(&mut schema);
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

/// Returns the schema of the name of an object that the properties refer to: a name with `optional`, or without other properties, or that of
/// a Secret or claim. The name of a `ClusterTrustBundle` is no DNS subdomain: it has the name of its signer and colons.
fn referenced_name(properties: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    let is_bundle = properties.contains_key("signerName");
    let is_reference = (properties.contains_key("optional") && !is_bundle) || properties.len() == 1;
    let name = ["secretName", "claimName"]
        .into_iter()
        .find(|name| properties.contains_key(*name))
        .or_else(|| is_reference.then_some("name"))?;
    properties.get_mut(name)?.as_object_mut()
}

/// Adds upper bounds and patterns of names of objects.
struct Bounds {
    /// Maximum number of items of a list, and of entries of a map.
    items: u64,
    keeps_descriptions: bool,
}

impl Transform for Bounds {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(schema) = schema.as_object_mut() else {
            return;
        };
        if !self.keeps_descriptions {
            schema.remove("description");
        }
        if is(schema, "array") {
            schema
                .entry("maxItems")
                .or_insert_with(|| self.items.into());
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
                .or_insert_with(|| self.items.into());
        }
        // The API server does not check this format, and the operator could not read larger values. No field of a pod is negative.
        if schema.get("format").and_then(Value::as_str) == Some("int32") {
            schema.insert("minimum".to_owned(), 0.into());
            schema.insert("maximum".to_owned(), i32::MAX.into());
        }
        if schema.contains_key("x-kubernetes-int-or-string") {
            schema.insert("pattern".to_owned(), QUANTITY.into());
            schema.insert("maxLength".to_owned(), MAX_QUANTITY.into());
        }
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        if let Some(name) = properties.and_then(referenced_name) {
            name.insert("pattern".to_owned(), OBJECT_NAME.into());
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

#[cfg(test)]
mod tests {
    use kube_core::CustomResourceExt as _;

    use super::*;
    use crate::Terraform;

    /// Fields with any number of JSON values. The operator limits the values of the whole resource.
    const ANY: [&str; 2] = ["spec.backend.config", "spec.variables"];

    /// Adds the paths of the values below `path` that have no upper bound.
    fn collect_unbounded(path: &str, schema: &Value, unbounded: &mut Vec<String>) {
        let has = |name: &str| schema.get(name).is_some();
        let is_bounded = match schema["type"].as_str() {
            Some("string") => has("maxLength") || has("enum"),
            Some("array") => has("maxItems"),
            Some("object") => has("maxProperties") || !has("additionalProperties"),
            Some("integer") if schema["format"] == "int32" => {
                has("maximum") || has("x-kubernetes-validations")
            }
            _ => !has("x-kubernetes-int-or-string") || has("maxLength"),
        };
        if !is_bounded {
            unbounded.push(path.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            collect_unbounded(&format!("{path}.{name}"), property, unbounded);
        }
        for part in ["items", "additionalProperties"] {
            if let Some(part) = schema.get(part) {
                collect_unbounded(&format!("{path}[]"), part, unbounded);
            }
        }
    }

    #[test]
    fn every_value_of_the_spec_has_an_upper_bound() {
        let crd = serde_json::to_value(Terraform::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut unbounded = Vec::new();
        collect_unbounded("spec", &schema["properties"]["spec"], &mut unbounded);
        assert_eq!(unbounded, ANY);
    }
}
