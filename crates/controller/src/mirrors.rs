//! Caches of the watched objects.

use alustan_api::names;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::PartialObjectMeta;

use crate::write_through_cache::WriteThroughCache;

/// Caches of the operator's own objects, filled by the watches.
pub(crate) struct Mirrors {
    /// Run records, pins and outputs.
    pub(crate) secrets: WriteThroughCache<Secret>,
    /// Those of outputs, without what they hold.
    pub(crate) config_maps: WriteThroughCache<PartialObjectMeta<ConfigMap>>,
    /// Claims of cache volumes.
    pub(crate) claims: WriteThroughCache<PersistentVolumeClaim>,
    pub(crate) jobs: WriteThroughCache<Job>,
    pub(crate) pods: WriteThroughCache<Pod>,
    /// How many mirrors have listed everything once.
    pub(crate) listed: tokio::sync::watch::Receiver<usize>,
}

impl Mirrors {
    /// Everything that belongs to the resource `name` was deleted.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        for secret in [names::record(name), names::pin(name), names::outputs(name)] {
            self.secrets.forget(namespace, &secret);
        }
        self.claims.forget(namespace, &names::cache(name));
    }
}
