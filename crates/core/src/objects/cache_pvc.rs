//! Cache volume, which contains plans and provider packages: volume and mount of pods, and the `PersistentVolumeClaim` of a resource.

use std::collections::BTreeMap;

use alustan_api::labels::Component;
use alustan_api::{Terraform, names, paths};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Volume,
    VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ResourceExt;

use super::{meta, pod};
use crate::model::cache_location::CacheMount;

const VOLUME: &str = "cache";

/// Returns the cache volume of a pod.
pub(crate) fn volume(tf: &Terraform, cache: &CacheMount) -> Volume {
    let claim_name = match cache {
        CacheMount::Scratch => return pod::scratch(VOLUME),
        CacheMount::Own => names::cache(&tf.name_any()),
        CacheMount::Shared(claim) => claim.clone(),
    };
    Volume {
        name: VOLUME.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name,
            read_only: None,
        }),
        ..Volume::default()
    }
}

/// Returns the mount of the cache volume. Of a shared claim, a container mounts only the directory of the resource. The kubelet creates the
/// directory with the mode of the root of the volume, including the setgid bit with which `fsGroup` gives new directories to the group of the
/// runner (`SafeMakeDir` in `pkg/volume/util/subpath`).
pub(crate) fn mount(tf: &Terraform, cache: &CacheMount) -> VolumeMount {
    let directory = || names::cache_directory(&tf.name_any(), &tf.uid().unwrap_or_default());
    VolumeMount {
        sub_path: cache.shared().map(|_| directory()),
        ..pod::mount(VOLUME, paths::CACHE)
    }
}

/// Returns the `PersistentVolumeClaim` of the cache volume that belongs to `tf` alone.
pub fn claim(tf: &Terraform) -> PersistentVolumeClaim {
    let cache = &tf.spec.cache;
    PersistentVolumeClaim {
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
    }
}
