//! `PersistentVolumeClaim` of the cache volume, which contains plans, provider cache and engine data.

use std::collections::BTreeMap;

use alustan_api::labels::Component;
use alustan_api::{Terraform, names};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Volume,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ResourceExt;

use super::{meta, pod};

const VOLUME: &str = "cache";

/// Returns the `PersistentVolumeClaim` of the cache volume; `None` if `spec.cache.enabled` is false.
pub fn claim(tf: &Terraform) -> Option<PersistentVolumeClaim> {
    let cache = &tf.spec.cache;
    cache.enabled.then(|| PersistentVolumeClaim {
        metadata: meta(tf, names::cache(&tf.name_any()), Component::Cache),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([(
                    "storage".to_owned(),
                    Quantity(cache.size.clone()),
                )])),
                limits: None,
            }),
            storage_class_name: cache.storage_class_name.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

/// Returns the cache volume of a pod: the `PersistentVolumeClaim` if `is_persistent`, else an `emptyDir`.
pub(crate) fn volume(tf: &Terraform, is_persistent: bool) -> Volume {
    if !is_persistent {
        return pod::scratch(VOLUME);
    }
    Volume {
        name: VOLUME.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: names::cache(&tf.name_any()),
            read_only: None,
        }),
        ..Volume::default()
    }
}
