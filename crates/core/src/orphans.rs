//! Adoption of orphaned state: state objects of a deleted resource with the same name.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::labels::{self, Component};
use kube::ResourceExt;
use serde_json::json;

use crate::status::patch;

/// Components of objects that may contain state.
const STATES: [Component; 2] = [Component::State, Component::Cache];

/// Whether the labels `found` of an object in the namespace of `tf` mark state of a deleted resource with the same name. Names are
/// unique, so a different uid belongs to a deleted resource.
pub fn is_orphaned(tf: &Terraform, found: &BTreeMap<String, String>) -> bool {
    let is = |label, value: &str| found.get(label).is_some_and(|it| it == value);
    is(labels::MANAGED_BY, labels::MANAGER)
        && is(labels::NAME, &tf.name_any())
        && STATES.iter().any(|it| is(labels::COMPONENT, it.as_str()))
        && found.get(labels::UID) != tf.metadata.uid.as_ref()
}

/// Returns the kubectl command that enables adoption.
pub fn how_to_adopt(tf: &Terraform) -> String {
    patch(tf, &json!({ "backend": { "adopt": true } }))
}

/// Whether `tf` adopts orphaned and foreign state (`spec.backend.adopt`).
pub fn adopts(tf: &Terraform) -> bool {
    tf.spec.backend.as_ref().is_some_and(|it| it.adopt)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

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
        let mut tf: Terraform = serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "uid": "u2"},
            "spec": {
                "gitRepo": {"url": "https://git.test/web"},
                "containerRegistry": {"imageName": "registry.test/web"},
            },
        }))
        .unwrap();
        assert_eq!(is_orphaned(&tf, &labels.into()), orphaned);
        assert!(!adopts(&tf));
        tf.spec.backend = serde_json::from_value(json!({"adopt": true})).unwrap();
        assert!(adopts(&tf));
    }
}
