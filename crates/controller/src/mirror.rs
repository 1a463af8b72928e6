//! What the watches brought, overlaid with what this process wrote a moment ago: a reconcile
//! never acts on an object that is older than its own last write.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};

/// A store with our own writes in front of it.
pub(crate) struct Mirror<K>
where
    K: Resource<DynamicType = ()> + 'static,
{
    store: Store<K>,
    written: Mutex<HashMap<ObjectRef<K>, Arc<K>>>,
}

impl<K> Mirror<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + 'static,
    ObjectRef<K>: Hash + Eq,
{
    /// In front of `store`.
    pub(crate) fn new(store: Store<K>) -> Self {
        Self {
            store,
            written: Mutex::default(),
        }
    }

    /// The newest known version of an object.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = ObjectRef::new(name).within(namespace);
        let watched = self.store.get(&key);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = written.get(&key) else {
            return watched;
        };
        match &watched {
            Some(watched) if version(&**watched) >= version(&**own) => written.remove(&key),
            _ => return Some(own.clone()),
        };
        watched
    }

    /// An object as the API server answered our write.
    pub(crate) fn wrote(&self, object: K) {
        let key = ObjectRef::from_obj(&object);
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, Arc::new(object));
    }

    /// An object that we deleted, or that somebody else changed under us: the watch knows better.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        let key = ObjectRef::new(name).within(namespace);
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
    }

    /// Watched objects for which `wanted` holds.
    pub(crate) fn filter(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.store.state_filter(|object| wanted(object))
    }
}

/// Resource versions of one kind of object are numbers that grow
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
fn version(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}
