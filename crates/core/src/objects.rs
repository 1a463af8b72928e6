//! Objects that belong to a resource, built from nothing.

pub mod budget;
pub mod build_job;
pub mod cache_pvc;
pub mod namespace;
pub mod outputs;
pub mod pod;
pub(crate) mod prepare;
pub mod rbac;
pub mod run_job;
pub mod secrets;

use alustan_api::{Terraform, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

/// Metadata of an object of `tf`. No ownerReference: foreground deletion would sweep away what
/// destroy needs; the controller removes these objects itself.
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
