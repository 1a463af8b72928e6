//! Caches of the watched objects.

use std::collections::HashMap;
use std::sync::Arc;

use alustan_api::names;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, PartialObjectMeta};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;

use crate::call::call;
use crate::error::Error;
use crate::resource::Ref;
use crate::watch::cached::{CachedClaim, CachedJob, CachedPod};
use crate::watch::mapping::LISTS;
use crate::watch::trim::is_content_removed;
use crate::write_through_cache::WriteThroughCache;

/// Watch caches of the objects that the operator manages for resources.
pub(crate) struct Mirrors {
    /// Run records, run reports, pins, outputs and build Secrets.
    pub(crate) secrets: WriteThroughCache<Secret>,
    /// Metadata of outputs `ConfigMap`s.
    pub(crate) config_maps: WriteThroughCache<PartialObjectMeta<ConfigMap>>,
    /// `PersistentVolumeClaim`s of cache volumes.
    pub(crate) claims: WriteThroughCache<CachedClaim>,
    pub(crate) jobs: WriteThroughCache<CachedJob>,
    pub(crate) pods: WriteThroughCache<CachedPod>,
    /// Secrets that the watch cache holds without content ([`is_content_removed`]), as last read from the API server.
    pub(crate) read: Mutex<HashMap<Ref, Arc<Secret>>>,
    /// Number of kinds whose first list is complete in all watched namespaces.
    pub(crate) listed: tokio::sync::watch::Receiver<usize>,
}

impl Mirrors {
    /// Waits for the first lists: an object that is missing in an incomplete watch cache may exist.
    pub(crate) async fn until_listed(&self) {
        // `wait_for` fails only after the watches have ended.
        let _ = self.listed.clone().wait_for(|lists| *lists >= LISTS).await;
    }

    /// Returns a Secret of an existing resource from the caches, without a call of the API server. The watch cache may hold a Secret without content
    /// ([`is_content_removed`]). Then returns the Secret with the content that an earlier reconcile read from the API server. If no reconcile has
    /// read the current resource version of the Secret, returns the Secret without content.
    pub(crate) fn known_secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        let known = self.secrets.get(namespace, name)?;
        if !is_content_removed(&*known) {
            return Some(known);
        }
        let key = Ref::new(name).within(namespace);
        let read = self.read.lock().get(&key).cloned();
        let current = read.filter(|read| read.resource_version() == known.resource_version());
        Some(current.unwrap_or(known))
    }

    /// Returns a Secret of an existing resource. Reads the Secret from the API server if the caches have only the Secret without content
    /// ([`is_content_removed`]).
    ///
    /// # Errors
    /// If the call of the API server fails.
    pub(crate) async fn secret(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Secret>>, Error> {
        let known = self.known_secret(namespace, name);
        if !known.as_deref().is_some_and(is_content_removed) {
            return Ok(known);
        }
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let operation = format!("read Secret {name}");
        let read = Box::pin(call(&operation, api.get_opt(name)))
            .await?
            .map(Arc::new);
        if let Some(secret) = &read {
            let key = Ref::new(name).within(namespace);
            self.read.lock().insert(key, secret.clone());
        }
        Ok(read)
    }

    /// Drops from the caches what the operator itself wrote or read for the deleted resource `name`: run record, run report, pin, outputs Secret, and
    /// `PersistentVolumeClaim` of the cache volume. Does not change what the watches reported.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        let secrets = [names::record, names::report, names::pin, names::outputs];
        for secret in secrets {
            let secret = secret(name);
            self.secrets.forget(namespace, &secret);
            self.read
                .lock()
                .remove(&Ref::new(&secret).within(namespace));
        }
        self.claims.forget(namespace, &names::cache(name));
    }
}

#[cfg(test)]
impl Mirrors {
    /// Returns caches without objects.
    pub(crate) fn empty() -> Self {
        use crate::indexed_store::indexed_store;
        Self {
            secrets: WriteThroughCache::new(indexed_store().0),
            config_maps: WriteThroughCache::new(indexed_store().0),
            claims: WriteThroughCache::new(indexed_store().0),
            jobs: WriteThroughCache::new(indexed_store().0),
            pods: WriteThroughCache::new(indexed_store().0),
            read: Mutex::default(),
            listed: tokio::sync::watch::channel(0).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::fake_api;
    use crate::indexed_store::indexed_store;
    use crate::watch::trim::remove_content;

    fn secret(version: &str) -> Secret {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "data": {"record": "e30="},
            "metadata": {"name": "web-run", "namespace": "team", "resourceVersion": version},
        });
        serde_json::from_value(secret).unwrap()
    }

    #[tokio::test]
    async fn secret_cached_without_data_is_read_once_per_version() {
        let (version, mut versions) = watch::channel("7");
        let answer = move |_: &_| (200, json!(secret(&versions.borrow_and_update())));
        let (client, requests) = fake_api::serve(answer).await;
        let (secrets, mut writer) = indexed_store();
        let mirrors = Mirrors {
            secrets: WriteThroughCache::new(secrets),
            ..Mirrors::empty()
        };
        let read = async || {
            let secret = mirrors.secret(&client, "team", "web-run").await.unwrap();
            secret.map(|secret| (secret.resource_version(), secret.data.is_some()))
        };
        let whole = |version: &str| Some((Some(version.to_owned()), true));
        assert_eq!(read().await, None);
        for (times, next) in [(1, "7"), (2, "8")] {
            version.send_replace(next);
            let mut without_content = secret(next);
            remove_content(&mut without_content);
            writer.apply(watcher::Event::Apply(without_content));
            for _ in 0..2 {
                assert_eq!(read().await, whole(next));
                assert_eq!(requests.lock().len(), times);
            }
        }
        writer.apply(watcher::Event::Apply(secret("9")));
        assert_eq!(read().await, whole("9"));
        assert_eq!(requests.lock().len(), 2);
    }
}
