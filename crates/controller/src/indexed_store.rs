//! Watch caches with secondary keys. A lookup by a key visits only the objects that have this key, regardless of the size of the cache.

use std::collections::{HashMap, HashSet, hash_map};
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::sync::Arc;

use kube::Resource;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use parking_lot::RwLock;

/// Kind of object with secondary keys, for example the uid of the owner. Several objects may have one key.
pub(crate) trait Indexed: Resource<DynamicType = ()> + Clone + 'static {
    /// Secondary key.
    type Key: Hash;

    /// Returns the keys of this version of the object. They must depend on the object alone.
    fn keys(&self) -> Vec<Self::Key>;
}

/// Creates an empty watch cache, and its writer.
pub(crate) fn indexed_store<K: Indexed>() -> (IndexedStore<K>, IndexedWriter<K>) {
    let (store, writer) = reflector::store();
    let reader = IndexedStore {
        store,
        index: Arc::default(),
    };
    let writer = IndexedWriter {
        writer,
        reader: reader.clone(),
        has_listed: false,
    };
    (reader, writer)
}

/// Watch cache of one kind. Clones share the objects.
pub(crate) struct IndexedStore<K: Indexed> {
    store: Store<K>,
    index: Arc<RwLock<Index<K>>>,
}

impl<K: Indexed> Clone for IndexedStore<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            index: self.index.clone(),
        }
    }
}

impl<K: Indexed> IndexedStore<K> {
    /// Returns an object by namespace and name.
    pub(crate) fn get(&self, reference: &ObjectRef<K>) -> Option<Arc<K>> {
        self.store.get(reference)
    }

    /// Returns the objects with `key`: exactly those of the last event that the writer has applied.
    pub(crate) fn with(&self, key: &K::Key) -> Vec<Arc<K>> {
        self.index.read().with(key)
    }

    /// Whether an object has `key`.
    pub(crate) fn has(&self, key: &K::Key) -> bool {
        let index = self.index.read();
        index.by_hash.contains_key(&index.seed.hash_one(key))
    }

    /// Returns all objects. The cost grows with the cache: not for reconciles and watch events.
    pub(crate) fn state(&self) -> Vec<Arc<K>> {
        #[cfg(test)]
        crate::visits::count(self.store.len());
        self.store.state()
    }

    /// Returns the objects that match `wanted`. The cost grows with the cache: not for reconciles and watch events.
    pub(crate) fn filter(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        #[cfg(test)]
        crate::visits::count(self.store.len());
        self.store.state_filter(wanted)
    }

    /// Returns the cache without the secondary keys.
    pub(crate) fn store(&self) -> Store<K> {
        self.store.clone()
    }
}

/// Writer of an [`IndexedStore`].
pub(crate) struct IndexedWriter<K: Indexed> {
    writer: Writer<K>,
    reader: IndexedStore<K>,
    /// Whether the first list is complete.
    has_listed: bool,
}

/// Change of an object in an [`IndexedStore`].
pub(crate) enum Change<K> {
    /// The first list of the watch has the object.
    Listed(Arc<K>),
    /// The object was created or changed.
    Applied {
        /// Previous version; `None` if the object was created.
        before: Option<Arc<K>>,
        object: Arc<K>,
    },
    /// The object was deleted. Its last known version.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// Returns the newest known version of the object.
    pub(crate) fn object(&self) -> &Arc<K> {
        match self {
            Self::Listed(object) | Self::Applied { object, .. } | Self::Deleted(object) => object,
        }
    }
}

impl<K: Indexed> IndexedWriter<K> {
    /// Applies an event of the watch. Returns the objects that changed: after a repeated list, those with another resource version than before.
    /// Lookups return the objects of an incomplete list only after its end.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an event is not used after it is applied"
    )]
    pub(crate) fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        let IndexedStore { store, index } = &self.reader;
        match event {
            Event::Init | Event::InitApply(_) => {
                self.writer.apply_watcher_event(&event);
                Vec::new()
            }
            Event::InitDone => {
                let before = store.state();
                self.writer.apply_watcher_event(&event);
                let after = store.state();
                index.write().replace_all(&after);
                let is_first = !std::mem::replace(&mut self.has_listed, true);
                if is_first {
                    after.into_iter().map(Change::Listed).collect()
                } else {
                    differences(before, after)
                }
            }
            Event::Apply(ref object) => {
                let reference = ObjectRef::from_obj(object);
                let before = store.get(&reference);
                self.writer.apply_watcher_event(&event);
                let after = store.get(&reference);
                index.write().replace(before.as_ref(), after.as_ref());
                let change = after.map(|object| Change::Applied { before, object });
                change.into_iter().collect()
            }
            Event::Delete(ref object) => {
                let before = store.get(&ObjectRef::from_obj(object));
                self.writer.apply_watcher_event(&event);
                index.write().replace(before.as_ref(), None);
                vec![Change::Deleted(Arc::new(object.clone()))]
            }
        }
    }
}

#[cfg(test)]
impl<K: Indexed> IndexedWriter<K> {
    /// Applies a complete list, as a watch delivers it.
    pub(crate) fn list(&mut self, objects: impl IntoIterator<Item = K>) {
        self.apply(Event::Init);
        for object in objects {
            self.apply(Event::InitApply(object));
        }
        self.apply(Event::InitDone);
    }
}

/// Returns the differences between the objects of two lists.
fn differences<K: Indexed>(before: Vec<Arc<K>>, after: Vec<Arc<K>>) -> Vec<Change<K>> {
    let reference = |object: &Arc<K>| ObjectRef::from_obj(&**object);
    let mut before: HashMap<_, _> = before
        .into_iter()
        .map(|object| (reference(&object), object))
        .collect();
    let mut changes = Vec::new();
    for object in after {
        let before = before.remove(&reference(&object));
        let version = |object: &Arc<K>| object.meta().resource_version.clone();
        if before.as_ref().map(version) != Some(version(&object)) {
            changes.push(Change::Applied { before, object });
        }
    }
    changes.extend(before.into_values().map(Change::Deleted));
    changes
}

/// Objects by the hash of a secondary key: 10,000 resources have about 100,000 keys in all caches, and a hash needs a tenth of the memory of a
/// key. The hash has 64 bits and a random seed, so the objects of two keys are never mixed in practice.
struct Index<K> {
    seed: RandomState,
    by_hash: HashMap<u64, Objects<K>>,
}

/// Objects with one key.
#[expect(
    clippy::box_collection,
    reason = "most keys have one object; an unboxed set would triple the size of all entries"
)]
enum Objects<K> {
    One(Arc<K>),
    Many(Box<HashSet<Entry<K>>>),
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self {
            seed: RandomState::new(),
            by_hash: HashMap::new(),
        }
    }
}

impl<K: Indexed> Index<K> {
    fn with(&self, key: &K::Key) -> Vec<Arc<K>> {
        let objects = match self.by_hash.get(&self.seed.hash_one(key)) {
            None => Vec::new(),
            Some(Objects::One(object)) => vec![object.clone()],
            Some(Objects::Many(objects)) => objects.iter().map(|entry| entry.0.clone()).collect(),
        };
        #[cfg(test)]
        crate::visits::count(objects.len());
        objects
    }

    fn replace_all(&mut self, objects: &[Arc<K>]) {
        self.by_hash = HashMap::new();
        for object in objects {
            self.insert(object);
        }
    }

    fn replace(&mut self, before: Option<&Arc<K>>, after: Option<&Arc<K>>) {
        if let Some(before) = before {
            self.remove(before);
        }
        if let Some(after) = after {
            self.insert(after);
        }
    }

    fn insert(&mut self, object: &Arc<K>) {
        for key in object.keys() {
            let hash = self.seed.hash_one(key);
            match self.by_hash.entry(hash) {
                hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(Objects::One(object.clone()));
                }
                hash_map::Entry::Occupied(mut occupied) => occupied.get_mut().insert(object),
            }
        }
    }

    fn remove(&mut self, object: &Arc<K>) {
        for key in object.keys() {
            let hash = self.seed.hash_one(key);
            let objects = self.by_hash.get_mut(&hash);
            if objects.is_some_and(|objects| objects.remove(object)) {
                self.by_hash.remove(&hash);
            }
        }
    }
}

impl<K> Objects<K> {
    fn insert(&mut self, object: &Arc<K>) {
        match self {
            Self::One(only) if Arc::ptr_eq(only, object) => {}
            Self::One(only) => {
                let both = [only.clone(), object.clone()].map(Entry);
                *self = Self::Many(Box::new(both.into()));
            }
            Self::Many(objects) => {
                objects.insert(Entry(object.clone()));
            }
        }
    }

    /// Removes `object`. Returns whether no object is left.
    fn remove(&mut self, object: &Arc<K>) -> bool {
        match self {
            Self::One(only) => Arc::ptr_eq(only, object),
            Self::Many(objects) => {
                objects.remove(&Entry(object.clone()));
                objects.is_empty()
            }
        }
    }
}

/// Object in a set. Two entries are equal if they are the same allocation.
struct Entry<K>(Arc<K>);

impl<K> PartialEq for Entry<K> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<K> Eq for Entry<K> {}

impl<K> Hash for Entry<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::ResourceExt;
    use proptest::prelude::*;

    use super::*;
    use crate::visits;

    /// The keys of a volume are the names of its labels.
    impl Indexed for PersistentVolume {
        type Key = String;

        fn keys(&self) -> Vec<String> {
            self.labels().keys().cloned().collect()
        }
    }

    /// Returns an object with the labels in the bits of `labels`.
    fn object(name: u8, labels: u8) -> PersistentVolume {
        let mut object = PersistentVolume::default();
        object.metadata.name = Some(format!("v{name}"));
        let labels = (0..4).filter(|label| labels & (1 << label) != 0);
        object.metadata.labels = Some(labels.map(|label| (key(label), String::new())).collect());
        object
    }

    fn key(label: u8) -> String {
        label.to_string()
    }

    fn names(objects: &[Arc<PersistentVolume>]) -> Vec<String> {
        let mut names: Vec<_> = objects.iter().map(|object| object.name_any()).collect();
        names.sort_unstable();
        names
    }

    fn event() -> impl Strategy<Value = Vec<Event<PersistentVolume>>> {
        let object = || (0..5_u8, 0..16_u8).prop_map(|(name, labels)| object(name, labels));
        prop_oneof![
            4 => object().prop_map(|object| vec![Event::Apply(object)]),
            2 => object().prop_map(|object| vec![Event::Delete(object)]),
            // A list, which may be interrupted by a list that begins again.
            1 => (prop::collection::vec(object(), 0..6), any::<bool>()).prop_map(|(objects, ends)| {
                let objects = objects.into_iter().map(Event::InitApply);
                let end = ends.then_some(Event::InitDone);
                std::iter::once(Event::Init).chain(objects).chain(end).collect()
            }),
        ]
    }

    proptest! {
        #[test]
        fn lookup_by_key_equals_a_filter_of_all_objects(events in prop::collection::vec(event(), 0..20)) {
            let (store, mut writer) = indexed_store();
            for event in events.into_iter().flatten() {
                writer.apply(event);
                for label in 0..4 {
                    let all = store.filter(|object| object.labels().contains_key(&key(label)));
                    prop_assert_eq!(names(&store.with(&key(label))), names(&all));
                }
            }
            let keys = store.state().iter().map(|object| object.labels().len()).sum::<usize>();
            let index = store.index.read();
            let entries: Vec<_> = index.by_hash.values().map(|objects| match objects {
                Objects::One(_) => 1,
                Objects::Many(objects) => objects.len(),
            }).collect();
            prop_assert!(!entries.contains(&0), "a key without objects is dropped");
            prop_assert_eq!(entries.iter().sum::<usize>(), keys);
        }
    }

    #[test]
    fn lookup_by_key_visits_only_the_objects_with_the_key() {
        let visited_with = |others: u8| {
            let (store, mut writer) = indexed_store();
            for name in 0..others {
                writer.apply(Event::Apply(object(name, 1)));
            }
            writer.apply(Event::Apply(object(255, 2)));
            let before = visits::so_far();
            assert_eq!(names(&store.with(&key(1))), ["v255"]);
            visits::so_far() - before
        };
        assert_eq!((visited_with(10), visited_with(200)), (1, 1));
    }

    #[test]
    fn repeated_list_returns_only_the_objects_that_changed() {
        let (_, mut writer) = indexed_store();
        let mut list = |objects: [(u8, &str); 3]| -> Vec<String> {
            writer.apply(Event::Init);
            for (name, version) in objects {
                let mut object = object(name, 1);
                object.metadata.resource_version = Some(version.to_owned());
                assert!(writer.apply(Event::InitApply(object)).is_empty());
            }
            let changes = writer.apply(Event::InitDone);
            let mut texts: Vec<_> = changes.iter().map(text).collect();
            texts.sort_unstable();
            texts
        };
        let first = list([(0, "1"), (1, "2"), (2, "3")]);
        assert_eq!(first, ["listed v0", "listed v1", "listed v2"]);
        let second = list([(0, "1"), (2, "4"), (3, "5")]);
        assert_eq!(second, ["changed v2", "created v3", "deleted v1"]);
    }

    fn text(change: &Change<PersistentVolume>) -> String {
        let kind = match change {
            Change::Listed(_) => "listed",
            Change::Applied { before: None, .. } => "created",
            Change::Applied { .. } => "changed",
            Change::Deleted(_) => "deleted",
        };
        format!("{kind} {}", change.object().name_any())
    }
}
