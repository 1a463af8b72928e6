//! Watch caches with secondary keys. A lookup by a key visits only the objects that have this key, regardless of the size of the cache. The
//! objects are compressed: 10,000 resources with their Secrets would otherwise take several hundred megabytes.

use std::collections::{HashMap, HashSet, hash_map};
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;

use alustan_api::ObjectKey;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use parking_lot::RwLock;
use tracing::error;

/// Dictionary of LZ4: names of fields and common values of pins, resources, run records and run reports. Without it, the first occurrence in each
/// object would be stored uncompressed.
const DICTIONARY: &[u8] = include_bytes!("indexed_store/dictionary.txt");

/// Kind of object with secondary keys, for example the uid of the owner. Several objects may have one key.
pub(crate) trait Indexed: Resource<DynamicType = ()> + Clone + 'static {
    /// Secondary key.
    type Key: Hash;
    /// Part of the object that [`IndexedStore::summaries`] returns for all objects.
    type Summary: Copy + Send + Sync;

    /// Returns the keys of this version of the object. They must depend on the object alone.
    fn keys(&self) -> Vec<Self::Key>;

    /// Returns the summary of this version of the object.
    fn summary(&self) -> Self::Summary;

    /// Serializes the object for the cache.
    fn to_bytes(&self) -> Vec<u8>;

    /// Returns the object that [`Self::to_bytes`] serialized; `None` for other bytes.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// Serializes the objects of a kind as JSON.
macro_rules! json_bytes {
    () => {
        fn to_bytes(&self) -> Vec<u8> {
            // Does not fail: all keys of maps are strings.
            serde_json::to_vec(self).unwrap_or_default()
        }

        fn from_bytes(bytes: &[u8]) -> Option<Self> {
            serde_json::from_slice(bytes).ok()
        }
    };
}

pub(crate) use json_bytes;

/// Creates an empty watch cache, and its writer.
#[cfg(test)]
pub(crate) fn indexed_store<K: Indexed>() -> (IndexedStore<K>, IndexedWriter<K>) {
    let store = IndexedStore::default();
    let writer = store.writer(None);
    (store, writer)
}

/// Watch cache of one kind. Clones share the objects.
pub(crate) struct IndexedStore<K: Indexed> {
    seed: RandomState,
    objects: Arc<RwLock<Objects<K>>>,
}

impl<K: Indexed> Clone for IndexedStore<K> {
    fn clone(&self) -> Self {
        Self {
            seed: self.seed.clone(),
            objects: self.objects.clone(),
        }
    }
}

impl<K: Indexed> Default for IndexedStore<K> {
    fn default() -> Self {
        Self {
            seed: RandomState::new(),
            objects: Arc::default(),
        }
    }
}

impl<K: Indexed> IndexedStore<K> {
    /// Returns a writer of the events of a watch in `namespace`; `None`: in all namespaces.
    pub(crate) fn writer(&self, namespace: Option<String>) -> IndexedWriter<K> {
        IndexedWriter {
            store: self.clone(),
            namespace,
            list: HashMap::new(),
            has_listed: false,
        }
    }

    /// Returns an object by namespace and name.
    pub(crate) fn get<R: Resource<DynamicType = ()>>(
        &self,
        reference: &ObjectRef<R>,
    ) -> Option<Arc<K>> {
        self.find(reference)?.get()
    }

    /// Whether the cache has an object with this namespace and name.
    pub(crate) fn contains<R: Resource<DynamicType = ()>>(&self, reference: &ObjectRef<R>) -> bool {
        self.find(reference).is_some()
    }

    /// Returns the summary of an object by namespace and name.
    pub(crate) fn summary<R>(&self, reference: &ObjectRef<R>) -> Option<K::Summary>
    where
        R: Resource<DynamicType = ()>,
    {
        self.find(reference).map(|object| object.0.summary)
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.objects.read().by_name.len()
    }

    fn find<R: Resource<DynamicType = ()>>(
        &self,
        reference: &ObjectRef<R>,
    ) -> Option<CachedObject<K>> {
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = self.seed.hash_one((namespace, reference.name.as_str()));
        self.objects.read().by_name.get(&name).cloned()
    }

    /// Returns the objects with `key`: exactly those of the last event that the writer has applied.
    pub(crate) fn with(&self, key: &K::Key) -> Vec<Arc<K>> {
        let objects = self.cached_with(key);
        objects.iter().filter_map(CachedObject::get).collect()
    }

    /// Returns the references of the objects with `key`, like [`Self::with`].
    pub(crate) fn references_with<R>(&self, key: &K::Key) -> Vec<ObjectRef<R>>
    where
        R: Resource<DynamicType = ()>,
    {
        let objects = self.cached_with(key);
        objects.iter().map(CachedObject::reference).collect()
    }

    fn cached_with(&self, key: &K::Key) -> Vec<CachedObject<K>> {
        let objects = self.objects.read().with(self.seed.hash_one(key));
        #[cfg(test)]
        crate::visits::count(objects.len());
        objects
    }

    /// Whether an object has `key`.
    pub(crate) fn has(&self, key: &K::Key) -> bool {
        let key = self.seed.hash_one(key);
        self.objects.read().by_key.contains_key(&key)
    }

    /// Returns all objects. Decompresses one at a time. The cost grows with the cache: not for reconciles and watch events.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<K>> {
        self.cached().into_iter().filter_map(|object| object.get())
    }

    /// Returns namespaces and names of all objects. The cost grows with the cache: not for reconciles and watch events.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.cached().into_iter().map(|object| object.key())
    }

    /// Returns the summaries of all objects. The cost grows with the cache: not for reconciles and watch events.
    pub(crate) fn summaries(&self) -> Vec<K::Summary> {
        let objects = self.cached();
        objects.iter().map(CachedObject::summary).collect()
    }

    fn cached(&self) -> Vec<CachedObject<K>> {
        let objects: Vec<_> = self.objects.read().by_name.values().cloned().collect();
        #[cfg(test)]
        crate::visits::count(objects.len());
        objects
    }

    /// Compresses `object`.
    fn compress(&self, object: &K) -> CachedObject<K> {
        let keys = object.keys().into_iter();
        CachedObject(Arc::new(Content {
            namespace: object.namespace().unwrap_or_default().into(),
            name: object.name_any().into(),
            keys: keys.map(|key| self.seed.hash_one(key)).collect(),
            summary: object.summary(),
            compressed: compress_prepend_size_with_dict(&object.to_bytes(), DICTIONARY).into(),
            kind: PhantomData,
        }))
    }
}

/// Compressed object in an [`IndexedStore`]. Two are equal if they are the same allocation.
pub(crate) struct CachedObject<K: Indexed>(Arc<Content<K>>);

struct Content<K: Indexed> {
    namespace: Box<str>,
    name: Box<str>,
    /// Hashes of the keys.
    keys: Box<[u64]>,
    summary: K::Summary,
    /// Compressed [`Indexed::to_bytes`].
    compressed: Box<[u8]>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Indexed> CachedObject<K> {
    /// Returns the object. `None`, with an error in the log, never occurs: the cache serialized and compressed the object.
    pub(crate) fn get(&self) -> Option<Arc<K>> {
        let bytes = decompress_size_prepended_with_dict(&self.0.compressed, DICTIONARY);
        let object = bytes.ok().and_then(|bytes| K::from_bytes(&bytes));
        if object.is_none() {
            error!(kind = %K::kind(&()), object = %self.key(), "cannot read a cached object");
        }
        object.map(Arc::new)
    }

    /// Returns the summary of the object.
    pub(crate) fn summary(&self) -> K::Summary {
        self.0.summary
    }

    /// Returns namespace and name of the object.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&*self.0.namespace, &*self.0.name)
    }

    /// Returns the reference to the object.
    pub(crate) fn reference<R: Resource<DynamicType = ()>>(&self) -> ObjectRef<R> {
        ObjectRef::new(&self.0.name).within(&self.0.namespace)
    }
}

impl<K: Indexed> Clone for CachedObject<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Indexed> PartialEq for CachedObject<K> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<K: Indexed> Eq for CachedObject<K> {}

impl<K: Indexed> Hash for CachedObject<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// Writer of the objects of one namespace, or of all, in an [`IndexedStore`].
pub(crate) struct IndexedWriter<K: Indexed> {
    store: IndexedStore<K>,
    namespace: Option<String>,
    /// Objects of the current, incomplete list, by the hash of their names.
    list: HashMap<u64, CachedObject<K>>,
    /// Whether the first list is complete.
    has_listed: bool,
}

/// Change of an object in an [`IndexedStore`].
pub(crate) enum Change<K: Indexed> {
    /// The first list of the watch has the object.
    Listed(CachedObject<K>),
    /// The object was created or changed.
    Applied {
        /// Previous version; `None` if the object was created.
        before: Option<CachedObject<K>>,
        object: CachedObject<K>,
    },
    /// The object was deleted. Its last known version.
    Deleted(CachedObject<K>),
}

impl<K: Indexed> Change<K> {
    /// Returns the newest known version of the object.
    pub(crate) fn object(&self) -> &CachedObject<K> {
        match self {
            Self::Listed(object) | Self::Applied { object, .. } | Self::Deleted(object) => object,
        }
    }
}

impl<K: Indexed> IndexedWriter<K> {
    /// Applies an event of the watch. Returns the objects that changed: after a repeated list, those that differ from before. Lookups return the
    /// objects of an incomplete list only after its end.
    pub(crate) fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.list = HashMap::new();
                Vec::new()
            }
            Event::InitApply(object) => {
                let (name, object) = self.compress(&object);
                self.list.insert(name, object);
                Vec::new()
            }
            Event::InitDone => self.replace_all(),
            Event::Apply(object) => {
                let (name, object) = self.compress(&object);
                let mut objects = self.store.objects.write();
                let before = objects.replace(name, Some(object.clone()));
                vec![Change::Applied { before, object }]
            }
            Event::Delete(object) => {
                let (name, object) = self.compress(&object);
                self.store.objects.write().replace(name, None);
                vec![Change::Deleted(object)]
            }
        }
    }

    /// Replaces the objects by those of the complete list. Returns the differences.
    fn replace_all(&mut self) -> Vec<Change<K>> {
        let list = std::mem::take(&mut self.list);
        let is_first = !std::mem::replace(&mut self.has_listed, true);
        let mut objects = self.store.objects.write();
        let is_deleted = |(name, object): &(&u64, &CachedObject<K>)| {
            let namespace = self.namespace.as_deref();
            namespace.is_none_or(|namespace| *object.0.namespace == *namespace)
                && !list.contains_key(name)
        };
        let known = objects.by_name.iter();
        let deleted: Vec<_> = known.filter(is_deleted).map(|(name, _)| *name).collect();
        let deleted = deleted
            .into_iter()
            .filter_map(|name| objects.replace(name, None));
        let mut changes: Vec<_> = deleted.map(Change::Deleted).collect();
        for (name, object) in list {
            let before = objects.replace(name, Some(object.clone()));
            // The content includes the resource version.
            let content = before.as_ref().map(|before| &before.0.compressed);
            if is_first {
                changes.push(Change::Listed(object));
            } else if content != Some(&object.0.compressed) {
                changes.push(Change::Applied { before, object });
            }
        }
        changes
    }

    /// Returns the hash of the name of `object`, and the compressed object.
    fn compress(&self, object: &K) -> (u64, CachedObject<K>) {
        let object = self.store.compress(object);
        let name = (&*object.0.namespace, &*object.0.name);
        (self.store.seed.hash_one(name), object)
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

/// Objects by the hashes of their names and of their secondary keys: 10,000 resources have about 100,000 keys in all caches, and a hash needs a
/// tenth of the memory of a key. The hash has 64 bits and a random seed, so the objects of two keys are never mixed in practice.
struct Objects<K: Indexed> {
    by_name: HashMap<u64, CachedObject<K>>,
    by_key: HashMap<u64, WithKey<K>>,
}

/// Objects with one key.
#[expect(
    clippy::box_collection,
    reason = "most keys have one object; an unboxed set would triple the size of all entries"
)]
enum WithKey<K: Indexed> {
    One(CachedObject<K>),
    Many(Box<HashSet<CachedObject<K>>>),
}

impl<K: Indexed> Default for Objects<K> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Indexed> Objects<K> {
    fn with(&self, key: u64) -> Vec<CachedObject<K>> {
        match self.by_key.get(&key) {
            None => Vec::new(),
            Some(WithKey::One(object)) => vec![object.clone()],
            Some(WithKey::Many(objects)) => objects.iter().cloned().collect(),
        }
    }

    /// Replaces the object `name`. Returns its previous version.
    fn replace(&mut self, name: u64, after: Option<CachedObject<K>>) -> Option<CachedObject<K>> {
        let before = match &after {
            Some(object) => self.by_name.insert(name, object.clone()),
            None => self.by_name.remove(&name),
        };
        if let Some(object) = &before {
            for key in &object.0.keys {
                let objects = self.by_key.get_mut(key);
                if objects.is_some_and(|objects| objects.remove(object)) {
                    self.by_key.remove(key);
                }
            }
        }
        if let Some(object) = after {
            for key in &object.0.keys {
                match self.by_key.entry(*key) {
                    hash_map::Entry::Vacant(vacant) => {
                        vacant.insert(WithKey::One(object.clone()));
                    }
                    hash_map::Entry::Occupied(mut occupied) => occupied.get_mut().insert(&object),
                }
            }
        }
        before
    }
}

impl<K: Indexed> WithKey<K> {
    fn insert(&mut self, object: &CachedObject<K>) {
        match self {
            Self::One(only) if only == object => {}
            Self::One(only) => {
                let both = [only.clone(), object.clone()];
                *self = Self::Many(Box::new(both.into()));
            }
            Self::Many(objects) => {
                objects.insert(object.clone());
            }
        }
    }

    /// Removes `object`. Returns whether no object is left.
    fn remove(&mut self, object: &CachedObject<K>) -> bool {
        match self {
            Self::One(only) => only == object,
            Self::Many(objects) => {
                objects.remove(object);
                objects.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::ResourceExt;
    use proptest::prelude::*;

    use super::*;
    use crate::visits;

    /// The keys of a volume are the names of its labels.
    impl Indexed for PersistentVolume {
        type Key = String;
        type Summary = ();

        json_bytes!();

        fn summary(&self) {}

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

    /// Applies `event` to `objects`, which are the expected objects of a store. `list`: objects of the current, incomplete list.
    fn expect(
        event: &Event<PersistentVolume>,
        objects: &mut BTreeMap<String, PersistentVolume>,
        list: &mut BTreeMap<String, PersistentVolume>,
    ) {
        match event {
            Event::Init => list.clear(),
            Event::InitApply(object) => drop(list.insert(object.name_any(), object.clone())),
            Event::InitDone => *objects = std::mem::take(list),
            Event::Apply(object) => drop(objects.insert(object.name_any(), object.clone())),
            Event::Delete(object) => drop(objects.remove(&object.name_any())),
        }
    }

    proptest! {
        #[test]
        fn lookup_by_key_equals_a_filter_of_all_objects(events in prop::collection::vec(event(), 0..20)) {
            let (store, mut writer) = indexed_store();
            let (mut expected, mut list) = (BTreeMap::new(), BTreeMap::new());
            for event in events.into_iter().flatten() {
                expect(&event, &mut expected, &mut list);
                writer.apply(event);
                let all: BTreeMap<_, _> = store.all().map(|object| (object.name_any(), (*object).clone())).collect();
                prop_assert_eq!(&all, &expected);
                for label in 0..4 {
                    let has_key = |object: &Arc<PersistentVolume>| object.labels().contains_key(&key(label));
                    let all: Vec<_> = store.all().filter(has_key).collect();
                    prop_assert_eq!(names(&store.with(&key(label))), names(&all));
                }
            }
            let keys = store.all().map(|object| object.labels().len()).sum::<usize>();
            let objects = store.objects.read();
            let entries: Vec<_> = objects.by_key.values().map(|objects| match objects {
                WithKey::One(_) => 1,
                WithKey::Many(objects) => objects.len(),
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
    fn list_of_a_namespace_leaves_the_objects_of_others() {
        let store = IndexedStore::default();
        let listed = |namespace: &str, names: &[u8]| {
            let mut writer = store.writer(Some(namespace.to_owned()));
            writer.list(names.iter().map(|name| {
                let mut object = object(*name, 1);
                object.metadata.namespace = Some(namespace.to_owned());
                object
            }));
        };
        listed("a", &[0, 1]);
        listed("b", &[1, 2]);
        listed("a", &[1]);
        assert_eq!(names(&store.with(&key(0))), ["v1", "v1", "v2"]);
        listed("b", &[]);
        assert_eq!(names(&store.with(&key(0))), ["v1"]);
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
        format!("{kind} {}", change.object().key().name)
    }
}
