//! Label of a namespace that contains Terraform state. An admission policy refuses the deletion of a namespace with this label.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::labels::HOLDS_STATE;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Returns the namespace of `tf` with label [`HOLDS_STATE`], for server-side apply.
pub fn marked(tf: &Terraform) -> Namespace {
    let label = (HOLDS_STATE.to_owned(), "true".to_owned());
    Namespace {
        metadata: ObjectMeta {
            name: tf.metadata.namespace.clone(),
            labels: Some(BTreeMap::from([label])),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}
