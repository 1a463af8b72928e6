//! Objects that reconciles have read in the last seconds. The events of a run cause about ten reconciles, which reuse these objects instead
//! of reading them again. Reconciles that need the same object at the same time share one request: after a start of the operator, an object
//! is read once, and not once per resource that refers to it. A watch event of a watched object ends its reuse. A reconcile that starts a run or a
//! build reads all objects from the API server.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use alustan_core::observed::{AccountSeen, SharedClaimSeen};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;

use crate::error::Error;
use crate::resource::Ref;

/// Maximum age of a reused object that the operator watches.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Maximum age of a reused object that the operator does not watch. Only first reconciles of resources reuse such objects.
const MAX_UNWATCHED_AGE: Duration = Duration::from_secs(5);

/// Maximum number of kept objects of one kind. Each reconcile reads all further objects from the API server.
const MAX_OBJECTS: usize = 4_096;

/// Maximum size of the values of a kept object, in bytes. Each reconcile reads larger objects from the API server.
const MAX_OBJECT_BYTES: usize = 64 << 10;

/// Maximum size of the values of all kept objects of one kind, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Recently read objects that resources refer to.
pub(crate) struct RecentInputs {
    pub(crate) secrets: RecentReads<Option<Secret>>,
    pub(crate) config_maps: RecentReads<Option<ConfigMap>>,
    pub(crate) accounts: RecentReads<Option<AccountSeen>>,
    pub(crate) shared_claims: RecentReads<Option<SharedClaimSeen>>,
}

impl RecentInputs {
    /// Returns no objects.
    pub(crate) fn new() -> Self {
        Self {
            secrets: RecentReads::watched(),
            config_maps: RecentReads::watched(),
            accounts: RecentReads::unwatched(),
            shared_claims: RecentReads::unwatched(),
        }
    }

    /// Drops the objects that are too old to be reused.
    pub(crate) fn expire(&self) {
        self.secrets.expire();
        self.config_maps.expire();
        self.accounts.expire();
        self.shared_claims.expire();
    }
}

/// Active or finished read of an object. All clones share one request and its result.
#[derive(Clone)]
struct Read<V: Clone> {
    number: u64,
    result: Shared<BoxFuture<'static, Result<V, Error>>>,
}

/// Objects of one kind, shared by all resources that refer to them. A watched object is dropped when the watch reports a change of it.
/// `K` identifies an object.
pub(crate) struct RecentReads<V: Clone, K = Ref> {
    /// Whether the operator watches the objects.
    pub(crate) is_watched: bool,
    max_age: Duration,
    entries: Mutex<Entries<V, K>>,
}

struct Entries<V: Clone, K> {
    reads: HashMap<K, RecentRead<V>>,
    /// Size of the values of all finished reads, in bytes.
    bytes: usize,
    /// Number of the next read.
    next: u64,
}

struct RecentRead<V: Clone> {
    since: Instant,
    read: Read<V>,
    /// Size of the values, in bytes. 0 until the read has finished.
    bytes: usize,
}

impl<V: Clone, K: Eq + Hash> Entries<V, K> {
    fn remove(&mut self, key: &K) {
        if let Some(removed) = self.reads.remove(key) {
            self.bytes -= removed.bytes;
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&K, &RecentRead<V>) -> bool) {
        let Self { reads, bytes, .. } = self;
        reads.retain(|key, entry| {
            let is_kept = is_kept(key, entry);
            if !is_kept {
                *bytes -= entry.bytes;
            }
            is_kept
        });
    }
}

impl<V: Values + Clone, K: Eq + Hash + Clone> RecentReads<V, K> {
    pub(crate) fn watched() -> Self {
        Self::new(true, MAX_AGE)
    }

    fn unwatched() -> Self {
        Self::new(false, MAX_UNWATCHED_AGE)
    }

    /// Returns no objects. Finished reads are kept until [`Self::forget`].
    pub(crate) fn lasting() -> Self {
        Self::new(true, Duration::MAX)
    }

    fn new(is_watched: bool, max_age: Duration) -> Self {
        let entries = Entries {
            reads: HashMap::new(),
            bytes: 0,
            next: 0,
        };
        Self {
            is_watched,
            max_age,
            entries: Mutex::new(entries),
        }
    }

    /// Returns the object `key`, and whether it is the result of an earlier read, which `may_reuse` allows. Otherwise sends `request`.
    pub(crate) async fn read<R>(
        &self,
        key: &K,
        may_reuse: bool,
        request: impl FnOnce() -> R,
    ) -> (Result<V, Error>, bool)
    where
        R: Future<Output = Result<V, Error>> + Send + 'static,
    {
        let reused = may_reuse.then(|| self.get(key)).flatten();
        let is_reused = reused.is_some();
        let read = reused.unwrap_or_else(|| self.begin(key, request()));
        (self.finish(key, read).await, is_reused)
    }

    /// Returns the read of the object `key`, if it began recently and no watch has reported a change since.
    fn get(&self, key: &K) -> Option<Read<V>> {
        let entries = self.entries.lock();
        let entry = entries.reads.get(key)?;
        (entry.since.elapsed() < self.max_age).then(|| entry.read.clone())
    }

    /// Begins a read of the object `key` with `request`, instead of an earlier read. Later calls of [`Self::get`] return the same read.
    fn begin(
        &self,
        key: &K,
        request: impl Future<Output = Result<V, Error>> + Send + 'static,
    ) -> Read<V> {
        let mut entries = self.entries.lock();
        let read = Read {
            number: entries.next,
            result: request.boxed().shared(),
        };
        entries.next += 1;
        entries.remove(key);
        if entries.reads.len() < MAX_OBJECTS {
            let entry = RecentRead {
                since: Instant::now(),
                read: read.clone(),
                bytes: 0,
            };
            entries.reads.insert(key.clone(), entry);
        }
        read
    }

    /// Waits for the result of `read`, a read of the object `key`. Keeps the object, unless it may have changed during the read or exceeds
    /// [`MAX_OBJECT_BYTES`] or [`MAX_BYTES`]. Keeps no error.
    async fn finish(&self, key: &K, read: Read<V>) -> Result<V, Error> {
        let result = read.result.await;
        let mut entries = self.entries.lock();
        let total = entries.bytes;
        // [`Self::forget`] removes the entry when the watch reports a change. A later read may have added another one.
        let entry = entries.reads.get_mut(key);
        let Some(entry) = entry.filter(|entry| entry.read.number == read.number) else {
            return result;
        };
        let size = match &result {
            Ok(object) => object.size(),
            Err(_) => usize::MAX,
        };
        if size > MAX_OBJECT_BYTES || total - entry.bytes + size > MAX_BYTES {
            entries.remove(key);
        } else {
            let before = std::mem::replace(&mut entry.bytes, size);
            entries.bytes = total - before + size;
        }
        result
    }

    /// Returns the object `key`, if its read has finished.
    pub(crate) fn finished(&self, key: &K) -> Option<V> {
        self.get(key)?.result.peek()?.as_ref().ok().cloned()
    }

    /// Drops the object `key`, because it has changed.
    pub(crate) fn forget(&self, key: &K) {
        self.entries.lock().remove(key);
    }

    /// Drops the objects of which `may_have_changed` is true.
    pub(crate) fn forget_all(&self, may_have_changed: impl Fn(&K) -> bool) {
        self.entries.lock().retain(|key, _| !may_have_changed(key));
    }

    /// Drops the objects that are too old to be reused.
    pub(crate) fn expire(&self) {
        let is_kept = |entry: &RecentRead<V>| entry.since.elapsed() < self.max_age;
        self.entries.lock().retain(|_, entry| is_kept(entry));
    }
}

/// Value that [`RecentReads`] keeps.
pub(crate) trait Values {
    /// Returns the size of all values, in bytes.
    fn size(&self) -> usize;
}

impl<V: Values> Values for Option<V> {
    fn size(&self) -> usize {
        self.as_ref().map_or(0, Values::size)
    }
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

impl Values for AccountSeen {
    fn size(&self) -> usize {
        size_of::<Self>()
    }
}

impl Values for SharedClaimSeen {
    fn size(&self) -> usize {
        size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    fn key(name: &str) -> Ref {
        Ref::new(name).within("team")
    }

    fn map(bytes: usize) -> ConfigMap {
        ConfigMap {
            data: Some([("a".to_owned(), "x".repeat(bytes))].into()),
            ..ConfigMap::default()
        }
    }

    fn reads(max_age: Duration) -> RecentReads<Option<ConfigMap>> {
        RecentReads::new(true, max_age)
    }

    fn answer(
        result: Result<Option<ConfigMap>, Error>,
    ) -> impl Future<Output = Result<Option<ConfigMap>, Error>> + Send + 'static {
        futures::future::ready(result)
    }

    /// Reads the object `name`, whose request has this `result`.
    async fn read(
        reads: &RecentReads<Option<ConfigMap>>,
        name: &str,
        result: Result<Option<ConfigMap>, Error>,
    ) {
        let read = reads.begin(&key(name), answer(result));
        let _ = reads.finish(&key(name), read).await;
    }

    /// Returns the result of the reused read of `name`. `None` if no read is reused.
    async fn reused(
        reads: &RecentReads<Option<ConfigMap>>,
        name: &str,
    ) -> Option<Result<Option<ConfigMap>, String>> {
        let read = reads.get(&key(name))?;
        let result = reads.finish(&key(name), read).await;
        Some(result.map_err(|error| error.to_string()))
    }

    #[tokio::test]
    async fn object_is_reused_within_its_maximum_age() {
        let young = reads(Duration::MAX);
        read(&young, "web", Ok(Some(map(1)))).await;
        assert_eq!(reused(&young, "web").await, Some(Ok(Some(map(1)))));
        assert_eq!(reused(&young, "other").await, None);
        let elsewhere = Ref::new("web").within("other");
        assert!(young.get(&elsewhere).is_none());
        let old = reads(Duration::ZERO);
        read(&old, "web", Ok(Some(map(1)))).await;
        assert_eq!(reused(&old, "web").await, None);
    }

    #[tokio::test]
    async fn missing_object_is_read_again_once_it_may_exist() {
        let reads = reads(Duration::MAX);
        read(&reads, "web", Ok(None)).await;
        assert_eq!(reused(&reads, "web").await, Some(Ok(None)));
        reads.forget(&key("web"));
        assert_eq!(reused(&reads, "web").await, None);
    }

    #[tokio::test]
    async fn failed_read_is_shared_but_not_reused() {
        let reads = reads(Duration::MAX);
        let first = reads.begin(&key("web"), answer(Err(Error::Gone)));
        let second = reads.get(&key("web")).unwrap();
        for read in [first, second] {
            let result = reads.finish(&key("web"), read).await;
            assert!(matches!(result, Err(Error::Gone)));
        }
        assert_eq!(reused(&reads, "web").await, None);
    }

    #[tokio::test]
    async fn object_that_changes_during_its_read_is_not_kept() {
        let reads = reads(Duration::MAX);
        let first = reads.begin(&key("web"), answer(Ok(Some(map(1)))));
        reads.forget(&key("web"));
        assert!(reads.get(&key("web")).is_none());
        // A second read begins after the change, and before the first read ends.
        let second = reads.begin(&key("web"), answer(Ok(Some(map(2)))));
        let result = reads.finish(&key("web"), first).await;
        assert_eq!(result.unwrap(), Some(map(1)));
        assert_eq!(reused(&reads, "web").await, Some(Ok(Some(map(2)))));
        let _ = reads.finish(&key("web"), second).await;
        assert_eq!(reused(&reads, "web").await, Some(Ok(Some(map(2)))));
    }

    #[tokio::test]
    async fn concurrent_reads_of_one_object_send_one_request() {
        for readers in [100, 200] {
            let (reads, requests) = (reads(Duration::MAX), Arc::new(AtomicUsize::new(0)));
            let web = key("web");
            let results = (0..readers).map(|_| {
                let read = reads.get(&web).unwrap_or_else(|| {
                    let requests = requests.clone();
                    let request = async move {
                        requests.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        // Too large to be kept. Readers that wait for the request receive it.
                        Ok(Some(map(MAX_OBJECT_BYTES + 1)))
                    };
                    reads.begin(&web, request)
                });
                reads.finish(&web, read)
            });
            let results = join_all(results.collect::<Vec<_>>()).await;
            assert!(results.iter().all(|result| matches!(result, Ok(Some(_)))));
            assert_eq!(requests.load(Ordering::SeqCst), 1);
        }
    }

    #[tokio::test]
    async fn read_survives_the_reconcile_that_began_it() {
        let (reads, web) = (reads(Duration::MAX), key("web"));
        let request = async {
            tokio::task::yield_now().await;
            Ok(Some(map(1)))
        };
        let first = reads.begin(&web, request.boxed());
        let mut first = Box::pin(reads.finish(&web, first));
        assert!(first.as_mut().now_or_never().is_none());
        let second = reads.get(&web).unwrap();
        drop(first);
        let result = reads.finish(&web, second).await;
        assert_eq!(result.unwrap(), Some(map(1)));
    }

    #[tokio::test]
    async fn expired_objects_leave_the_memory() {
        let young = reads(Duration::MAX);
        read(&young, "web", Ok(Some(map(1)))).await;
        young.expire();
        assert_eq!(young.entries.lock().bytes, 1);
        let old = reads(Duration::ZERO);
        read(&old, "web", Ok(Some(map(1)))).await;
        old.expire();
        let entries = old.entries.lock();
        assert_eq!((entries.reads.len(), entries.bytes), (0, 0));
    }

    #[tokio::test]
    async fn selected_objects_are_forgotten() {
        let reads = reads(Duration::MAX);
        for name in ["web", "other"] {
            read(&reads, name, Ok(Some(map(1)))).await;
        }
        reads.forget_all(|key| key.name == "web");
        assert_eq!(reused(&reads, "web").await, None);
        assert_eq!(reads.finished(&key("other")), Some(Some(map(1))));
        assert_eq!(reads.entries.lock().bytes, 1);
    }

    #[tokio::test]
    async fn number_and_size_of_objects_in_memory_are_limited() {
        let reads = reads(Duration::MAX);
        for number in 0..=MAX_OBJECTS {
            read(&reads, &number.to_string(), Ok(Some(map(1)))).await;
        }
        let kept = |reads: &RecentReads<Option<ConfigMap>>| {
            let entries = reads.entries.lock();
            (entries.reads.len(), entries.bytes)
        };
        assert_eq!(kept(&reads), (MAX_OBJECTS, MAX_OBJECTS));
        read(&reads, "0", Ok(Some(map(MAX_OBJECT_BYTES + 1)))).await;
        assert_eq!(kept(&reads), (MAX_OBJECTS - 1, MAX_OBJECTS - 1));
        for number in 0..MAX_OBJECTS {
            read(&reads, &number.to_string(), Ok(Some(map(MAX_OBJECT_BYTES)))).await;
        }
        let (objects, bytes) = kept(&reads);
        assert!(bytes <= MAX_BYTES && objects < MAX_OBJECTS, "{bytes}");
        assert!(bytes > MAX_BYTES - MAX_OBJECT_BYTES, "{bytes}");
    }
}
