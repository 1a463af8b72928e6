//! Builders of the Kubernetes objects that belong to a resource.

pub mod build_job;
pub mod cache_pvc;
pub mod empty_cache;
pub mod namespace;
pub mod outputs;
pub mod pod;
pub mod pod_disruption_budget;
mod pod_options;
pub mod prepare;
pub mod rbac;
pub mod run_job;
pub mod secrets;
pub mod terraform_run;

use alustan_api::{Terraform, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use crate::settings::Settings;

/// Returns metadata of an object that belongs to `tf`. The metadata has no owner reference, because foreground deletion of `tf` would
/// delete objects that destroy needs (rule 13). Instead, the operator deletes the objects.
pub(crate) fn meta(tf: &Terraform, name: String, component: labels::Component) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: tf.namespace(),
        labels: Some(labels::of(
            &tf.name_any(),
            &tf.uid().unwrap_or_default(),
            component,
        )),
        ..ObjectMeta::default()
    }
}

/// Returns metadata of an object that belongs to a build of `tf`. If the build runs in another namespace, a label contains the namespace of
/// `tf`.
pub(crate) fn meta_of_build(
    tf: &Terraform,
    name: String,
    component: labels::Component,
    settings: &Settings,
) -> ObjectMeta {
    let mut metadata = meta(tf, name, component);
    if settings.builds_elsewhere(tf) {
        let labels = metadata.labels.get_or_insert_default();
        labels.extend(
            tf.namespace()
                .map(|namespace| (labels::NAMESPACE.to_owned(), namespace)),
        );
        metadata.namespace = Some(settings.build_namespace_of(tf).to_owned());
    }
    metadata
}
