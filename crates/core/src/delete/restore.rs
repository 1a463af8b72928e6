//! A deleted resource that this version of the operator cannot read: its metadata, what of it can
//! be read, and the pin for the rest (rule 13).

use alustan_api::run::Pin;
use alustan_api::{Terraform, TerraformSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

/// The resource with this `metadata`, of which `stored` is what the API server has. Each field of
/// the spec is the live one where that can be read, else the pin's; so is the status, if it can be
/// read at all. `None` where not even a bare spec makes sense.
pub fn restored(metadata: ObjectMeta, stored: &Value, pin: Option<&Pin>) -> Option<Terraform> {
    let pinned = pin.and_then(|pin| pin.spec.as_object()).cloned();
    let mut spec = pinned.filter(is_readable).unwrap_or_else(bare);
    let live = stored.get("spec").and_then(Value::as_object);
    let empty = Map::new();
    let live = live.unwrap_or(&empty);
    let mut fields: Vec<String> = spec.keys().chain(live.keys()).cloned().collect();
    fields.sort();
    fields.dedup();
    for field in fields {
        let mut next = spec.clone();
        match live.get(&field) {
            Some(value) => drop(next.insert(field, value.clone())),
            None => drop(next.remove(&field)),
        }
        if is_readable(&next) {
            spec = next;
        }
    }
    let status = stored.get("status").cloned();
    Some(Terraform {
        metadata,
        spec: read(&spec)?,
        status: status.and_then(|status| serde_json::from_value(status).ok()),
    })
}

fn read(spec: &Map<String, Value>) -> Option<TerraformSpec> {
    serde_json::from_value(Value::Object(spec.clone())).ok()
}

fn is_readable(spec: &Map<String, Value>) -> bool {
    read(spec).is_some()
}

/// The least that is a spec.
fn bare() -> Map<String, Value> {
    let bare = json!({
        "gitRepo": {"url": "https://unknown.invalid/"},
        "containerRegistry": {"imageName": "unknown.invalid/unknown"},
    });
    bare.as_object().cloned().unwrap_or_default()
}
