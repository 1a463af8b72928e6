//! What the watches brought, overlaid with what this process wrote a moment ago: a reconcile
//! never acts on an object that is older than its own last write.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};

/// A watch that has not brought our write after this long never will: the object is gone.
const BELIEVED: Duration = Duration::from_secs(10);

/// A store with our own writes in front of it.
pub(crate) struct Mirror<K>
where
    K: Resource<DynamicType = ()> + 'static,
{
    store: Store<K>,
    written: Mutex<HashMap<ObjectRef<K>, Written<K>>>,
}

/// An object as the API server answered, and when.
type Written<K> = (Arc<K>, Instant);

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
        let Some((own, since)) = written.get(&key) else {
            return watched;
        };
        let caught_up = match &watched {
            Some(watched) => version(&**watched) >= version(&**own),
            None => since.elapsed() > BELIEVED,
        };
        if !caught_up {
            return Some(own.clone());
        }
        written.remove(&key);
        watched
    }

    /// An object as the API server answered our write.
    pub(crate) fn wrote(&self, object: K) {
        let key = ObjectRef::from_obj(&object);
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, (Arc::new(object), Instant::now()));
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
