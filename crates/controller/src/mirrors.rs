//! Caches of the watched objects.

use alustan_api::names;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::PartialObjectMeta;

use crate::write_through_cache::WriteThroughCache;

/// Watch caches of the objects of resources.
pub(crate) struct Mirrors {
    /// Run records, run reports, pins, outputs and build Secrets.
    pub(crate) secrets: WriteThroughCache<Secret>,
    /// Metadata of outputs `ConfigMap`s.
    pub(crate) config_maps: WriteThroughCache<PartialObjectMeta<ConfigMap>>,
    /// Claims of cache volumes.
    pub(crate) claims: WriteThroughCache<PersistentVolumeClaim>,
    pub(crate) jobs: WriteThroughCache<Job>,
    pub(crate) pods: WriteThroughCache<Pod>,
    /// Number of watches that have completed their first list.
    pub(crate) listed: tokio::sync::watch::Receiver<usize>,
}

impl Mirrors {
    /// Drops the own writes of run record, pin, outputs and cache claim of the deleted resource `name`.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        for secret in [names::record(name), names::pin(name), names::outputs(name)] {
            self.secrets.forget(namespace, &secret);
        }
        self.claims.forget(namespace, &names::cache(name));
    }
}
