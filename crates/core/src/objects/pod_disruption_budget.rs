//! `PodDisruptionBudget` of the pods that change real objects (rule 8).

use std::collections::BTreeMap;

use alustan_api::labels::{self, Component};
use alustan_api::{Terraform, names};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_core::ResourceExt;

use super::meta;

/// Returns the `PodDisruptionBudget` that makes a node drain wait for apply and destroy runs of `tf`. For pods of a Job, only an integer
/// `minAvailable` is allowed: <https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors>.
pub fn budget(tf: &Terraform) -> PodDisruptionBudget {
    let pods = [
        (labels::UID, tf.uid().unwrap_or_default()),
        (labels::CHANGES, "true".to_owned()),
    ];
    PodDisruptionBudget {
        metadata: meta(tf, names::runner(&tf.name_any()), Component::Run),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from(
                    pods.map(|(key, value)| (key.to_owned(), value)),
                )),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
