//! Caches of the watched objects.

use std::sync::Arc;

use alustan_api::names;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::Client;
use kube::api::{Api, PartialObjectMeta};

use crate::call::call;
use crate::error::Error;
use crate::watch::trim::is_left_out;
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
    /// Returns a Secret of an existing resource. One that the watch cache has left out is read from the API server.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn secret(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, Error> {
        let known = self.secrets.get(namespace, name);
        if !known.as_deref().is_some_and(is_left_out) {
            return Ok(known);
        }
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let what = format!("read Secret {name}");
        let read = Box::pin(call(&what, api.get_opt(name))).await?;
        if let Some(secret) = &read {
            self.secrets.wrote(secret.clone());
        }
        Ok(read.map(Arc::new))
    }

    /// Drops the own writes of run record, pin, outputs and cache claim of the deleted resource `name`.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        for secret in [names::record(name), names::pin(name), names::outputs(name)] {
            self.secrets.forget(namespace, &secret);
        }
        self.claims.forget(namespace, &names::cache(name));
    }
}
