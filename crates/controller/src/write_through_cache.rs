//! Watch caches, overlaid with recent writes of this process: a lookup by name never returns a version of an object that is older than the
//! last write of this process to the object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;

use crate::indexed_store::{Indexed, IndexedStore};

/// Time after which a written object that the watch has not delivered is handled as deleted.
const WRITE_TTL: Duration = Duration::from_secs(10);

/// Watch cache with an overlay of the objects that this process wrote.
pub(crate) struct WriteThroughCache<K: Indexed> {
    store: IndexedStore<K>,
    written: Mutex<HashMap<ObjectRef<K>, Written<K>>>,
}

/// Written object as the API server returned it, and the time of the write.
type Written<K> = (Arc<K>, Instant);

impl<K: Indexed> WriteThroughCache<K> {
    /// Creates an empty overlay of `store`.
    pub(crate) fn new(store: IndexedStore<K>) -> Self {
        Self {
            store,
            written: Mutex::default(),
        }
    }

    /// Returns the newest known version of an object.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = ObjectRef::new(name).within(namespace);
        let watched = self.store.get(&key);
        let mut written = self.written.lock();
        let Some((own, since)) = written.get(&key) else {
            return watched;
        };
        let caught_up = match &watched {
            Some(watched) => version(&**watched) >= version(&**own),
            None => since.elapsed() > WRITE_TTL,
        };
        if !caught_up {
            return Some(own.clone());
        }
        written.remove(&key);
        watched
    }

    /// Stores an object as the API server returned it for a write.
    pub(crate) fn record_write(&self, object: impl Into<K>) {
        let object = object.into();
        let key = ObjectRef::from_obj(&object);
        self.written
            .lock()
            .insert(key, (Arc::new(object), Instant::now()));
    }

    /// Removes `object`, which the watch has delivered, from the overlay if its resource version is the written version or a later one. The
    /// event of a deletion has a later version than the write.
    pub(crate) fn record_event(&self, object: &PartialObjectMeta<K>) {
        let name = ObjectRef::new(&object.name_any());
        let key = match &object.metadata.namespace {
            Some(namespace) => name.within(namespace),
            None => name,
        };
        let mut written = self.written.lock();
        let older = |(own, _): &Written<K>| version(&**own) <= version(object);
        if written.get(&key).is_some_and(older) {
            written.remove(&key);
        }
    }

    /// Removes an object from the overlay, because the object was deleted, or because a write of another client caused a conflict and the
    /// written version is outdated.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        let key = ObjectRef::new(name).within(namespace);
        self.written.lock().remove(&key);
    }

    /// Returns the objects of the watch cache with `key`. Ignores the overlay: an object that this process wrote is missing until the watch
    /// delivers it.
    pub(crate) fn with(&self, key: &K::Key) -> Vec<Arc<K>> {
        self.store.with(key)
    }

    /// Returns the summaries of all objects of the watch cache.
    pub(crate) fn summaries(&self) -> Vec<K::Summary> {
        self.store.summaries()
    }

    /// Like [`Self::with`], for all objects that match `wanted`. The cost grows with the cache: not for reconciles and watch events.
    pub(crate) fn filter(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.store.all().filter(|object| wanted(object)).collect()
    }
}

/// Returns the resource version as an integer. Resource versions of one kind of object are increasing integers
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
pub(crate) fn version(object: &impl Resource) -> u64 {
    parse_version(object.meta().resource_version.as_deref())
}

/// Like [`version`], for the resource version `text`. 0 if it is missing or not an integer.
pub(crate) fn parse_version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::api::PartialObjectMetaExt as _;
    use kube::runtime::watcher;

    use super::*;
    use crate::indexed_store::indexed_store;

    fn secret(version: &str) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some("web-outputs".to_owned()),
                namespace: Some("team".to_owned()),
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        }
    }

    fn event(version: &str) -> PartialObjectMeta<Secret> {
        secret(version).metadata.into_response_partial()
    }

    #[test]
    fn own_write_is_returned_until_the_watch_delivers_it() {
        let (store, mut writer) = indexed_store::<Secret>();
        let cache = WriteThroughCache::new(store);
        let get = || {
            cache
                .get("team", "web-outputs")
                .and_then(|secret| secret.metadata.resource_version.clone())
        };
        cache.record_write(secret("7"));
        assert_eq!(get().as_deref(), Some("7"));
        cache.record_event(&event("5"));
        assert_eq!(get().as_deref(), Some("7"));
        writer.apply(watcher::Event::Apply(secret("8")));
        cache.record_event(&event("8"));
        assert_eq!(get().as_deref(), Some("8"));
    }

    #[test]
    fn object_deleted_after_own_write_is_absent_at_once() {
        let (store, mut writer) = indexed_store::<Secret>();
        let cache = WriteThroughCache::new(store);
        cache.record_write(secret("7"));
        for event in [
            watcher::Event::Apply(secret("7")),
            watcher::Event::Delete(secret("8")),
        ] {
            writer.apply(event);
        }
        cache.record_event(&event("8"));
        assert!(cache.get("team", "web-outputs").is_none());
    }
}
