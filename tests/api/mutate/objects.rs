//! Objects of the operator in a namespace, without values that differ between two namespaces or two runs with the same spec.

use std::collections::BTreeMap;

use alustan_api::labels::{COMPONENT, Component, MANAGED_BY, MANAGER, ORPHANED, UID};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::core::NamespaceResourceScope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::space::Space;

/// Objects by kind and name.
pub(crate) type Objects = BTreeMap<String, Value>;

/// Minimum length of a text that is a digest, a revision or a uid if it consists of hexadecimal digits.
const MIN_DIGEST: usize = 8;

/// Returns the objects of the operator in the namespace: of Jobs the newest one of a run, of Secrets the keys. A cache volume is not
/// included, because it keeps its size and class, and remains if the resource does not use it any more.
pub(crate) async fn of(space: &Space) -> Objects {
    let mut all = except_jobs_and_claims(space).await;
    // The texts of plans are those of earlier runs.
    all.retain(|object| object["metadata"]["labels"][COMPONENT] != Component::Plan.as_str());
    let mut jobs = of_kind::<Job>(space).await;
    jobs.retain(|job| job["metadata"]["labels"][COMPONENT] == Component::Run.as_str());
    let created = |job: &Value| run_number(job["metadata"]["name"].as_str().unwrap());
    all.extend(jobs.into_iter().max_by_key(created));
    all.into_iter()
        .map(|object| comparable(object, &space.namespace))
        .collect()
}

/// Returns the names of the objects that are left of a deleted resource, without those that the documentation lists.
pub(crate) async fn left(space: &Space) -> Vec<String> {
    let mut all = except_jobs_and_claims(space).await;
    all.extend(of_kind::<PersistentVolumeClaim>(space).await);
    all.extend(of_kind::<Job>(space).await);
    all.retain(|object| {
        let metadata = &object["metadata"];
        // Without a controller manager, no controller removes the finalizer of a claim.
        metadata.get("deletionTimestamp").is_none()
            && metadata["labels"].get(ORPHANED).is_none()
            // Resources with the same content share a build. A Job that empties a directory runs after the deletion. A TTL deletes both.
            && ![Component::Build, Component::EmptyCache]
                .map(Component::as_str)
                .contains(&metadata["labels"][COMPONENT].as_str().unwrap_or_default())
    });
    all.iter()
        .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]))
        .collect()
}

async fn except_jobs_and_claims(space: &Space) -> Vec<Value> {
    let mut all = Vec::new();
    all.extend(of_kind::<Secret>(space).await);
    all.extend(of_kind::<ConfigMap>(space).await);
    all.extend(of_kind::<ServiceAccount>(space).await);
    all.extend(of_kind::<Role>(space).await);
    all.extend(of_kind::<RoleBinding>(space).await);
    all.extend(of_kind::<PodDisruptionBudget>(space).await);
    all
}

async fn of_kind<K>(space: &Space) -> Vec<Value>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Serialize,
{
    let objects = space.list::<K>().await;
    let ours = objects
        .into_iter()
        .filter(|object| object.labels().get(MANAGED_BY).map(String::as_str) == Some(MANAGER));
    ours.map(|object| {
        let mut object = serde_json::to_value(object).unwrap();
        object["kind"] = K::kind(&()).into();
        object
    })
    .collect()
}

fn run_number(job: &str) -> i64 {
    job.rsplit('-').next().unwrap().parse().unwrap_or_default()
}

fn comparable(mut object: Value, namespace: &str) -> (String, Value) {
    let kind = object["kind"].as_str().unwrap().to_owned();
    let uid = object["metadata"]["labels"][UID]
        .as_str()
        .unwrap()
        .to_owned();
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| {
        ["name", "labels", "annotations", "finalizers"].contains(&field.as_str())
    });
    let name = metadata["name"].as_str().unwrap().to_owned();
    let fields = object.as_object_mut().unwrap();
    fields.remove("status");
    if kind == "Secret" {
        let data = fields.get("data").and_then(Value::as_object);
        let keys: Vec<_> = data
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect();
        fields.insert("data".to_owned(), json!(keys));
    }
    let number = (kind == "Job").then(|| run_number(&name));
    if number.is_some() {
        fields["spec"]["template"]["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("creationTimestamp");
    }
    let mut texts = vec![(namespace.to_owned(), "NAMESPACE"), (uid, "UID")];
    if let Some(number) = number {
        for kind in ["plan", "apply", "drift", "destroy"] {
            texts.push((format!("-{kind}-{number}"), "-RUN"));
        }
    }
    let hide = |text: &str| {
        let replaced = texts
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        without_digests(&replaced)
    };
    hide_in(&mut object, &hide);
    (format!("{kind} {}", hide(&name)), object)
}

/// Replaces texts in all strings, and removes uids and the number of a run.
fn hide_in(value: &mut Value, hide: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = hide(text),
        Value::Array(items) => items.iter_mut().for_each(|item| hide_in(item, hide)),
        Value::Object(fields) => {
            for name in [UID, "controller-uid", "batch.kubernetes.io/controller-uid"] {
                fields.remove(name);
            }
            if fields.get("name").and_then(Value::as_str) == Some("ALUSTAN_RUN") {
                fields.remove("value");
            }
            fields.values_mut().for_each(|field| hide_in(field, hide));
        }
        _ => {}
    }
}

/// Replaces each run of at least [`MIN_DIGEST`] hexadecimal digits and hyphens between them.
fn without_digests(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|character: char| !character.is_ascii_hexdigit())
            .unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        result.push_str(if digits.len() >= MIN_DIGEST {
            "DIGEST"
        } else {
            digits
        });
        let mut characters = after.chars();
        result.extend(characters.next());
        rest = characters.as_str();
    }
    result
}

/// Returns the differences between two sets of objects.
pub(crate) fn differences(one: &Objects, other: &Objects) -> Vec<String> {
    let mut differences = Vec::new();
    let names = one.keys().chain(other.keys());
    let names: std::collections::BTreeSet<_> = names.collect();
    for name in names {
        match (one.get(name), other.get(name)) {
            (Some(one), Some(other)) => compare(name, one, other, &mut differences),
            (one, _) => differences.push(format!(
                "{name}: exists only {}",
                if one.is_some() { "first" } else { "second" }
            )),
        }
    }
    differences
}

fn compare(path: &str, one: &Value, other: &Value, differences: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(first), Value::Object(second)) => {
            let names: std::collections::BTreeSet<_> = first.keys().chain(second.keys()).collect();
            for name in names {
                compare(
                    &format!("{path}.{name}"),
                    &one[name],
                    &other[name],
                    differences,
                );
            }
        }
        (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
            for (index, (one, other)) in first.iter().zip(second).enumerate() {
                compare(&format!("{path}[{index}]"), one, other, differences);
            }
        }
        _ if one == other => {}
        _ => differences.push(format!("{path}: {one} / {other}")),
    }
}
