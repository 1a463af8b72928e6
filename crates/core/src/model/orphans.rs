//! Adoption of orphaned state: state objects of an earlier resource with the same name.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::labels::{self, Component};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;
use serde_json::json;

use crate::model::summary::patch;

/// Values of the component label of objects that may contain state.
const STATES: [Component; 2] = [Component::State, Component::Cache];

/// Whether `labels`, of an object in the namespace of `tf`, mark the object as state of an earlier resource with the name of `tf`.
pub fn is_orphaned(tf: &Terraform, labels: &BTreeMap<String, String>) -> bool {
    STATES
        .iter()
        .any(|component| is_left_behind(tf, labels, *component))
}

/// Whether `labels`, of an object in the namespace of `tf`, name this `component` and an earlier resource. The earlier resource has the
/// name of `tf` and another uid.
pub fn is_left_behind(
    tf: &Terraform,
    labels: &BTreeMap<String, String>,
    component: Component,
) -> bool {
    let has_label = |label, value: &str| labels.get(label).is_some_and(|actual| actual == value);
    has_label(labels::MANAGED_BY, labels::MANAGER)
        && has_label(labels::NAME, &tf.name_any())
        && has_label(labels::COMPONENT, component.as_str())
        && labels.get(labels::UID) != tf.metadata.uid.as_ref()
}

/// Returns the name of the resource `owner` for a message about `tf`.
pub fn owner_name(tf: &Terraform, owner: &ObjectMeta) -> String {
    // Messages do not name resources of other namespaces (rule 17).
    if owner.namespace == tf.metadata.namespace {
        format!("Terraform {}", owner.name.as_deref().unwrap_or_default())
    } else {
        "a Terraform resource in another namespace".to_owned()
    }
}

/// Returns the kubectl command that enables adoption.
pub fn how_to_adopt(tf: &Terraform) -> String {
    patch(tf, &json!({ "backend": { "adopt": true } }))
}

/// Whether `tf` adopts orphaned state objects and a state with an unknown lineage (`spec.backend.adopt`).
pub fn adopts(tf: &Terraform) -> bool {
    tf.spec
        .backend
        .as_ref()
        .is_some_and(|backend| backend.adopt)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn terraform() -> Terraform {
        serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "u2"},
            "spec": {
                "gitRepo": {"url": "https://git.test/web"},
                "containerRegistry": {"imageName": "registry.test/web"},
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case::same_namespace("team", "Terraform db")]
    #[case::other_namespace("secret", "a Terraform resource in another namespace")]
    fn owner_is_named_within_its_namespace(#[case] namespace: &str, #[case] expected: &str) {
        let db = ObjectMeta {
            name: Some("db".to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        assert_eq!(owner_name(&terraform(), &db), expected);
    }

    #[rstest]
    #[case::deleted_resource("alustan", "web", "state", "u1", true)]
    #[case::cache_volume("alustan", "web", "cache", "u1", true)]
    #[case::same_resource("alustan", "web", "state", "u2", false)]
    #[case::other_name("alustan", "db", "state", "u1", false)]
    #[case::other_manager("helm", "web", "state", "u1", false)]
    #[case::other_component("alustan", "web", "run", "u1", false)]
    fn orphaned_state_is_recognised_by_labels(
        #[case] manager: &str,
        #[case] name: &str,
        #[case] component: &str,
        #[case] uid: &str,
        #[case] orphaned: bool,
    ) {
        let labels = [
            (labels::MANAGED_BY, manager),
            (labels::NAME, name),
            (labels::COMPONENT, component),
            (labels::UID, uid),
        ];
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
        let mut tf = terraform();
        assert_eq!(is_orphaned(&tf, &labels.into()), orphaned);
        assert!(!adopts(&tf));
        tf.spec.backend = serde_json::from_value(json!({"adopt": true})).unwrap();
        assert!(adopts(&tf));
    }
}
