//! Parses deleted resources that this version of the operator cannot read completely. Uses their metadata and readable fields, and the pin
//! for the other fields (rule 13).

use alustan_api::run::Pin;
use alustan_api::{Terraform, TerraformSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

const APPROVAL: &str = "approval";
const DESTROY: &str = "destroy";
const PROTECTION: &str = "deletionProtection";

/// Fields that can prevent destroy. If this version of the operator cannot read one of these fields, the resource is handled as if
/// `spec.deletionProtection` were true.
const HOLD_FIELDS: [&str; 3] = [PROTECTION, "deletionPolicy", "suspend"];

/// Builds a resource from `metadata` and the JSON `stored` in the API server. Each field of the spec has the value in `stored` if this
/// version of the operator can read it, otherwise the value in the pin. Status is kept if it is readable. `None` if not even a minimal spec
/// parses.
pub fn parse_leniently(
    metadata: ObjectMeta,
    stored: &Value,
    pin: Option<&Pin>,
) -> Option<Terraform> {
    let pinned = pin.and_then(|pin| pin.spec.as_object()).cloned();
    let mut spec = pinned.filter(is_readable).unwrap_or_else(minimal_spec);
    let live = stored.get("spec").and_then(Value::as_object);
    let empty = Map::new();
    let live = live.unwrap_or(&empty);
    let mut fields: Vec<String> = spec.keys().chain(live.keys()).cloned().collect();
    fields.sort();
    fields.dedup();
    for field in fields {
        let mut candidate = spec.clone();
        match live.get(&field) {
            Some(value) => drop(candidate.insert(field, value.clone())),
            None => drop(candidate.remove(&field)),
        }
        if is_readable(&candidate) {
            spec = candidate;
        }
    }
    if let Some(approval) = live
        .get(APPROVAL)
        .filter(|approval| spec.get(APPROVAL) != Some(approval))
    {
        let destroy = approval.get(DESTROY).filter(|mode| *mode != "Auto");
        spec = with_destroy_approval(spec.clone(), destroy.is_some()).unwrap_or(spec);
    }
    let is_live = |field: &&str| {
        live.get(*field)
            .is_none_or(|value| spec.get(*field) == Some(value))
    };
    if !HOLD_FIELDS.iter().all(is_live) {
        spec.insert(PROTECTION.to_owned(), true.into());
    }
    let status = stored.get("status").cloned();
    Some(Terraform {
        metadata,
        spec: parse_spec(&spec)?,
        status: status.and_then(|status| serde_json::from_value(status).ok()),
    })
}

/// Returns `spec`, with `approval.destroy: Manual` if `requires_approval`. `None` if the result is unreadable.
fn with_destroy_approval(
    mut spec: Map<String, Value>,
    requires_approval: bool,
) -> Option<Map<String, Value>> {
    let approval = spec.entry(APPROVAL).or_insert_with(|| json!({}));
    if requires_approval {
        let approval = approval.as_object_mut()?;
        approval.insert(DESTROY.to_owned(), "Manual".into());
    }
    is_readable(&spec).then_some(spec)
}

fn parse_spec(spec: &Map<String, Value>) -> Option<TerraformSpec> {
    serde_json::from_value(Value::Object(spec.clone())).ok()
}

fn is_readable(spec: &Map<String, Value>) -> bool {
    parse_spec(spec).is_some()
}

/// Returns a valid spec with placeholders for the required fields.
fn minimal_spec() -> Map<String, Value> {
    let spec = json!({
        "gitRepo": {"url": "https://unknown.invalid/"},
        "containerRegistry": {"imageName": "unknown.invalid/unknown"},
    });
    spec.as_object().cloned().unwrap_or_default()
}
