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

    /// Drops the own writes of run record, run report, pin, outputs and cache claim of the deleted resource `name`.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        let secrets = [names::record, names::report, names::pin, names::outputs];
        for secret in secrets {
            self.secrets.forget(namespace, &secret(name));
        }
        self.claims.forget(namespace, &names::cache(name));
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::{reflector, watcher};
    use serde_json::{Value, json};
    use tokio::sync::watch;

    use super::*;
    use crate::fake_api;

    fn secret(version: &Value, data: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "data": data,
            "metadata": {"name": "web-run", "namespace": "team", "resourceVersion": version},
        })
    }

    #[tokio::test]
    async fn a_secret_that_was_left_out_is_read_once() {
        let data = json!({"record": "e30="});
        let answer = secret(&json!("7"), &data);
        let (client, asked) = fake_api::serve(move |_| (200, answer.clone())).await;
        let (secrets, mut writer) = reflector::store();
        let mirrors = Mirrors {
            secrets: WriteThroughCache::new(secrets),
            config_maps: WriteThroughCache::new(reflector::store().0),
            claims: WriteThroughCache::new(reflector::store().0),
            jobs: WriteThroughCache::new(reflector::store().0),
            pods: WriteThroughCache::new(reflector::store().0),
            listed: watch::channel(0).1,
        };
        let mut apply = |version: &Value, data: &Value| {
            let event = serde_json::from_value(secret(version, data)).unwrap();
            writer.apply_watcher_event(&watcher::Event::Apply(event));
        };
        let read = async || {
            let found = mirrors.secret(&client, "team", "web-run").await.unwrap();
            found.and_then(|secret| secret.metadata.resource_version.clone())
        };
        assert_eq!(read().await, None);
        assert!(asked.lock().is_empty());
        apply(&Value::Null, &Value::Null);
        for _ in 0..2 {
            assert_eq!(read().await.as_deref(), Some("7"));
            assert_eq!(asked.lock().len(), 1);
        }
        apply(&json!("8"), &data);
        assert_eq!(read().await.as_deref(), Some("8"));
        assert_eq!(asked.lock().len(), 1);
    }
}
