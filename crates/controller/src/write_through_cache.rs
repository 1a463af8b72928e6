//! Watch caches, overlaid with recent writes of this process: a lookup by name never returns a version of an object that is older than the
//! last write of this process to the object.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;

/// Time after which a written object that the watch has not delivered is handled as deleted.
const WRITE_TTL: Duration = Duration::from_secs(10);

/// Watch cache with an overlay of the objects that this process wrote.
pub(crate) struct WriteThroughCache<K>
where
    K: Resource<DynamicType = ()> + 'static,
{
    store: Store<K>,
    written: Mutex<HashMap<ObjectRef<K>, Written<K>>>,
}

/// Written object as the API server returned it, and the time of the write.
type Written<K> = (Arc<K>, Instant);

impl<K> WriteThroughCache<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
    ObjectRef<K>: Hash + Eq,
{
    /// Creates an empty overlay of `store`.
    pub(crate) fn new(store: Store<K>) -> Self {
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
    pub(crate) fn record_write(&self, object: K) {
        let key = ObjectRef::from_obj(&object);
        self.written
            .lock()
            .insert(key, (Arc::new(object), Instant::now()));
    }

    /// Removes `object`, which the watch has delivered, from the overlay if its resource version is the written version or a later one. The
    /// event of a deletion has a later version than the write.
    pub(crate) fn record_event(&self, object: &K) {
        let key = ObjectRef::from_obj(object);
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

    /// Returns the objects of the watch cache that match `wanted`. Ignores the overlay: an object that this process wrote is missing until
    /// the watch delivers it.
    pub(crate) fn filter(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.store.state_filter(|object| wanted(object))
    }
}

/// Returns the resource version as an integer. Resource versions of one kind of object are increasing integers
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
fn version(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::runtime::{reflector, watcher};

    use super::*;

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

    #[test]
    fn own_write_is_returned_until_the_watch_delivers_it() {
        let (store, mut writer) = reflector::store::<Secret>();
        let cache = WriteThroughCache::new(store);
        let get = || {
            cache
                .get("team", "web-outputs")
                .and_then(|secret| secret.metadata.resource_version.clone())
        };
        cache.record_write(secret("7"));
        assert_eq!(get().as_deref(), Some("7"));
        cache.record_event(&secret("5"));
        assert_eq!(get().as_deref(), Some("7"));
        writer.apply_watcher_event(&watcher::Event::Apply(secret("8")));
        cache.record_event(&secret("8"));
        assert_eq!(get().as_deref(), Some("8"));
    }

    #[test]
    fn object_deleted_after_own_write_is_absent_at_once() {
        let (store, mut writer) = reflector::store::<Secret>();
        let cache = WriteThroughCache::new(store);
        cache.record_write(secret("7"));
        for event in [
            watcher::Event::Apply(secret("7")),
            watcher::Event::Delete(secret("8")),
        ] {
            writer.apply_watcher_event(&event);
        }
        cache.record_event(&secret("8"));
        assert!(cache.get("team", "web-outputs").is_none());
    }
}
