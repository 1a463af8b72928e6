//! Secrets and `ConfigMap`s that reconciles have read in the last seconds. The events of a run cause about ten reconciles, which reuse
//! these objects instead of reading them again. A watch event of an object ends its reuse. A reconcile that starts a run or a build reads
//! all objects from the API server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;

use crate::resource::Ref;

/// Maximum age of a reused object.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(10);

/// Maximum number of kept objects of one kind. Each reconcile reads all further objects from the API server.
const MAX_OBJECTS: usize = 256;

/// Maximum size of the values of a kept object, in bytes. Each reconcile reads larger objects from the API server.
const MAX_OBJECT_BYTES: usize = 64 << 10;

/// Recently read Secrets and `ConfigMap`s that resources refer to.
#[derive(Default)]
pub(crate) struct RecentInputs {
    pub(crate) secrets: RecentReads<Secret>,
    pub(crate) config_maps: RecentReads<ConfigMap>,
}

impl RecentInputs {
    /// Drops the objects that are older than [`MAX_AGE`].
    pub(crate) fn expire(&self) {
        self.secrets.expire(MAX_AGE);
        self.config_maps.expire(MAX_AGE);
    }
}

/// Objects of one kind, shared by all resources that refer to them. An object is dropped when the watch reports a change of it.
#[derive(Default)]
pub(crate) struct RecentReads<K> {
    entries: Mutex<HashMap<Ref, RecentRead<K>>>,
}

struct RecentRead<K> {
    /// Start of the read.
    since: Instant,
    /// The object; `None` during its first read.
    object: Option<K>,
}

impl<K: Values + Clone> RecentReads<K> {
    /// Returns the object `key` if it was read within `max_age`, and the watch has reported no change since.
    pub(crate) fn get(&self, key: &Ref, max_age: Duration) -> Option<K> {
        let entries = self.entries.lock();
        let entry = entries.get(key)?;
        if entry.since.elapsed() >= max_age {
            return None;
        }
        entry.object.clone()
    }

    /// Begins a read of the object `key`. Returns the start time, which [`Self::end`] requires.
    pub(crate) fn begin(&self, key: &Ref) -> Instant {
        let since = Instant::now();
        let mut entries = self.entries.lock();
        if entries.len() < MAX_OBJECTS {
            let entry = RecentRead {
                since,
                object: None,
            };
            entries.entry(key.clone()).or_insert(entry);
        }
        since
    }

    /// Ends the read of the object `key` that began at `since` and returned `result`. Does not keep an object that may have changed during
    /// the read, or that exceeds [`MAX_OBJECT_BYTES`].
    pub(crate) fn end(&self, key: &Ref, since: Instant, result: Option<&K>) {
        let mut entries = self.entries.lock();
        // [`Self::forget`] removes the entry when the watch reports a change. A later read may have added it again.
        let is_unchanged = entries.get(key).is_some_and(|entry| entry.since <= since);
        if !is_unchanged {
            return;
        }
        match result.filter(|object| object.size() <= MAX_OBJECT_BYTES) {
            Some(object) => {
                let entry = RecentRead {
                    since,
                    object: Some(object.clone()),
                };
                entries.insert(key.clone(), entry);
            }
            None => {
                entries.remove(key);
            }
        }
    }

    /// Drops the object `key`, because it has changed.
    pub(crate) fn forget(&self, key: &Ref) {
        self.entries.lock().remove(key);
    }

    /// Drops the objects that were not read within `max_age`.
    fn expire(&self, max_age: Duration) {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| entry.since.elapsed() < max_age);
    }
}

/// Kind of object that [`RecentReads`] keeps.
pub(crate) trait Values {
    /// Returns the size of all values, in bytes.
    fn size(&self) -> usize;
}

impl Values for Secret {
    fn size(&self) -> usize {
        let data = self.data.iter().flatten();
        data.map(|(_, value)| value.0.len()).sum()
    }
}

impl Values for ConfigMap {
    fn size(&self) -> usize {
        let texts = self.data.iter().flatten().map(|(_, text)| text.len());
        let values = self.binary_data.iter().flatten();
        texts.chain(values.map(|(_, value)| value.0.len())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Duration = Duration::MAX;

    fn key(name: &str) -> Ref {
        Ref::new(name).within("team")
    }

    fn map(bytes: usize) -> ConfigMap {
        ConfigMap {
            data: Some([("a".to_owned(), "x".repeat(bytes))].into()),
            ..ConfigMap::default()
        }
    }

    /// Returns the kept objects after a read of `web`.
    fn read() -> RecentReads<ConfigMap> {
        let reads = RecentReads::default();
        let since = reads.begin(&key("web"));
        reads.end(&key("web"), since, Some(&map(1)));
        reads
    }

    #[test]
    fn object_is_reused_within_its_maximum_age() {
        let reads = read();
        assert_eq!(reads.get(&key("web"), FOREVER), Some(map(1)));
        assert_eq!(reads.get(&key("web"), Duration::ZERO), None);
        assert_eq!(reads.get(&key("other"), FOREVER), None);
        let elsewhere = Ref::new("web").within("other");
        assert_eq!(reads.get(&elsewhere, FOREVER), None);
    }

    #[test]
    fn object_is_read_again_after_a_change_or_deletion() {
        let reads = read();
        reads.forget(&key("web"));
        assert_eq!(reads.get(&key("web"), FOREVER), None);
        let reads = read();
        let since = reads.begin(&key("web"));
        reads.end(&key("web"), since, None);
        assert_eq!(reads.get(&key("web"), FOREVER), None);
    }

    #[test]
    fn object_that_changes_during_its_read_is_not_kept() {
        let reads = RecentReads::default();
        let first = reads.begin(&key("web"));
        reads.forget(&key("web"));
        reads.end(&key("web"), first, Some(&map(1)));
        assert_eq!(reads.get(&key("web"), FOREVER), None);
        // A second read begins after the change, and before the first read ends.
        let second = first + Duration::from_millis(1);
        let later = RecentRead {
            since: second,
            object: None,
        };
        reads.entries.lock().insert(key("web"), later);
        reads.end(&key("web"), first, Some(&map(1)));
        assert_eq!(reads.get(&key("web"), FOREVER), None);
        reads.end(&key("web"), second, Some(&map(2)));
        assert_eq!(reads.get(&key("web"), FOREVER), Some(map(2)));
    }

    #[test]
    fn expired_objects_leave_the_memory() {
        let reads = read();
        reads.expire(FOREVER);
        assert_eq!(reads.entries.lock().len(), 1);
        reads.expire(Duration::ZERO);
        assert!(reads.entries.lock().is_empty());
    }

    #[test]
    fn number_and_size_of_objects_in_memory_are_limited() {
        let reads = RecentReads::default();
        for number in 0..=MAX_OBJECTS {
            let key = key(&number.to_string());
            let since = reads.begin(&key);
            reads.end(&key, since, Some(&map(MAX_OBJECT_BYTES)));
        }
        assert_eq!(reads.entries.lock().len(), MAX_OBJECTS);
        assert_eq!(reads.get(&key(&MAX_OBJECTS.to_string()), FOREVER), None);
        let since = reads.begin(&key("0"));
        reads.end(&key("0"), since, Some(&map(MAX_OBJECT_BYTES + 1)));
        assert_eq!(reads.get(&key("0"), FOREVER), None);
    }
}
