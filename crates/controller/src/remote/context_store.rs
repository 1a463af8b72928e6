//! Keeps packed contexts in files, by digest, between fetch and push. If the context of a push is missing, the push fetches and stores it again.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alustan_source::{FairSemaphore, Permit, TempPath};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum age of a stored context.
const MAX_AGE: Duration = Duration::from_hours(1);

/// Maximum total size of stored contexts, in bytes. Enforced before a context is stored: with the new context, the total may be larger. The files of
/// at most `2 * MAX_PUSHES` discarded contexts are kept in addition, until their pushes end: pushes, and contexts that were fetched again.
const MAX_TOTAL_BYTES: u64 = 1 << 30;

/// Maximum number of concurrent pushes of contexts, at most half of them for one tenant. A push reads its context from disk as a stream.
pub(crate) const MAX_PUSHES: usize = 8;

/// Packed contexts.
pub(crate) struct ContextStore {
    folder: PathBuf,
    limit: u64,
    stored: Mutex<StoredContexts>,
    pushes: Arc<FairSemaphore>,
    /// Contexts that are fetched again, until their pushes end.
    refetches: Arc<FairSemaphore>,
}

#[derive(Default)]
struct StoredContexts {
    by_digest: HashMap<String, Arc<StoredContext>>,
    /// Digests and times at which the contexts were stored, the oldest first.
    order: VecDeque<(Instant, String)>,
    /// Size of all contexts, in bytes.
    bytes: u64,
}

/// A packed context. Its file is deleted after the store has discarded the context and its last push has ended.
pub(crate) struct StoredContext {
    pub(crate) file: TempPath,
    /// Size of the file, in bytes.
    size: u64,
}

/// A context during its push to a registry.
pub(crate) struct HeldContext {
    pub(crate) context: Arc<StoredContext>,
    /// Permit of the push, and that of [`ContextStore::refetch`] if the context was fetched again.
    _permits: [Option<Permit>; 2],
}

impl ContextStore {
    /// Returns an empty store. Contexts are packed into files in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            limit: MAX_TOTAL_BYTES,
            stored: Mutex::default(),
            pushes: FairSemaphore::half_per_tenant(MAX_PUSHES),
            refetches: FairSemaphore::half_per_tenant(MAX_PUSHES),
        }
    }

    /// Returns the folder into which contexts are packed.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for the permit of a push, with fairness between tenants, and returns the stored context `digest` of `tenant`. Returns `None` if the
    /// context is not stored, or is discarded during the wait: a waiting push keeps no file, because the number of waiting pushes has no limit.
    pub(crate) async fn hold(&self, tenant: &str, digest: &str) -> Option<HeldContext> {
        self.get(digest)?;
        let permit = self.pushes.acquire(&Arc::from(tenant)).await;
        let context = self.get(digest)?;
        Some(HeldContext {
            context,
            _permits: [permit, None],
        })
    }

    /// Waits for the permit to fetch a context again and to hold its file until its push, with fairness between tenants. A fetch needs no permit of
    /// a push, so that a git server that does not answer delays no push of a stored context.
    pub(crate) async fn refetch(&self, tenant: &str) -> Option<Permit> {
        self.refetches.acquire(&Arc::from(tenant)).await
    }

    /// Stores a context until its push, and waits for the permit of the push. `refetch`: permit of [`Self::refetch`].
    pub(crate) async fn put_and_hold(
        &self,
        refetch: Option<Permit>,
        tenant: &str,
        digest: &str,
        file: TempPath,
        size: u64,
    ) -> HeldContext {
        let context = self.put(digest, file, size);
        let permit = self.pushes.acquire(&Arc::from(tenant)).await;
        HeldContext {
            context,
            _permits: [permit, refetch],
        }
    }

    fn get(&self, digest: &str) -> Option<Arc<StoredContext>> {
        self.stored.lock().by_digest.get(digest).cloned()
    }

    /// Discards the stored context `digest`, whose file is damaged. The next push fetches the context again.
    pub(crate) fn discard(&self, digest: &str) {
        let mut stored = self.stored.lock();
        stored.discard(digest);
        stored.order.retain(|(_, kept)| kept != digest);
    }

    /// Stores a context of `size` bytes until its push. Discards old contexts first.
    pub(crate) fn put(&self, digest: &str, file: TempPath, size: u64) -> Arc<StoredContext> {
        let now = Instant::now();
        let mut stored = self.stored.lock();
        stored.discard_old(now, self.limit);
        if let Some(context) = stored.by_digest.get(digest) {
            return context.clone();
        }
        let context = Arc::new(StoredContext { file, size });
        stored.bytes += size;
        stored.order.push_back((now, digest.to_owned()));
        stored.by_digest.insert(digest.to_owned(), context.clone());
        context
    }
}

impl StoredContexts {
    /// Discards contexts that are older than [`MAX_AGE`], and the oldest ones beyond the maximum total size `limit`.
    fn discard_old(&mut self, now: Instant, limit: u64) {
        while let Some((_, digest)) = self
            .order
            .pop_front_if(|(stored_at, _)| self.bytes > limit || now - *stored_at > MAX_AGE)
        {
            self.discard(&digest);
        }
    }

    fn discard(&mut self, digest: &str) {
        if let Some(context) = self.by_digest.remove(digest) {
            self.bytes -= context.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use futures::{FutureExt as _, poll};
    use tempfile::{NamedTempFile, TempDir};

    use super::*;

    fn store() -> (ContextStore, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (ContextStore::new(folder.path()), folder)
    }

    impl ContextStore {
        fn put_empty(&self, digest: &str, size: u64) {
            let file = NamedTempFile::new_in(self.folder()).unwrap();
            self.put(digest, file.into_temp_path(), size);
        }

        fn has(&self, digest: &str) -> bool {
            self.stored.lock().by_digest.contains_key(digest)
        }
    }

    #[tokio::test]
    async fn pushes_of_one_namespace_leave_half_to_others() {
        let (contexts, _folder) = store();
        contexts.put_empty("sha256:a", 64 << 20);
        assert!(contexts.hold("team", "sha256:gone").await.is_none());
        let mut held = Vec::new();
        for _ in 0..MAX_PUSHES / 2 {
            held.push(contexts.hold("busy", "sha256:a").await);
        }
        let mut next = pin!(contexts.hold("busy", "sha256:a"));
        assert!(poll!(&mut next).is_pending());
        for _ in 0..MAX_PUSHES / 2 {
            held.push(contexts.hold("team", "sha256:a").now_or_never().unwrap());
        }
        let mut other = pin!(contexts.hold("other", "sha256:a"));
        assert!(poll!(&mut other).is_pending());
        held.pop();
        assert!(poll!(&mut other).is_ready() && poll!(&mut next).is_pending());
    }

    #[tokio::test]
    async fn waiting_pushes_keep_no_discarded_contexts() {
        let (mut contexts, folder) = store();
        contexts.limit = 250;
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for number in 0..100 {
            let digest = format!("sha256:{number}");
            contexts.put_empty(&digest, 100);
            let contexts = &contexts;
            let mut push = Box::pin(async move { contexts.hold("team", &digest).await });
            match poll!(&mut push) {
                Poll::Ready(push) => held.push(push.unwrap()),
                Poll::Pending => waiting.push(push),
            }
        }
        assert_eq!((held.len(), waiting.len()), (MAX_PUSHES / 2, 96));
        assert_eq!(files(), 3 + held.len());
        held.clear();
        assert_eq!(files(), 3);
        let (stored, discarded) = (waiting.pop().unwrap(), waiting.swap_remove(0));
        drop(waiting);
        assert!(stored.await.is_some() && discarded.await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn old_contexts_and_the_oldest_over_the_limit_are_deleted() {
        let (mut contexts, folder) = store();
        contexts.limit = 250;
        contexts.put_empty("sha256:a", 100);
        tokio::time::advance(Duration::from_mins(59)).await;
        contexts.put_empty("sha256:b", 100);
        tokio::time::advance(Duration::from_mins(2)).await;
        contexts.put_empty("sha256:c", 100);
        assert!(!contexts.has("sha256:a") && contexts.has("sha256:b"));
        contexts.put_empty("sha256:d", 100);
        assert!(contexts.has("sha256:b") && contexts.has("sha256:d"));
        contexts.put_empty("sha256:e", 100);
        assert!(!contexts.has("sha256:b") && contexts.has("sha256:c"));
        contexts.put_empty("sha256:e", 100);
        assert_eq!(contexts.stored.lock().bytes, 200);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        contexts.discard("sha256:e");
        assert!(contexts.has("sha256:d") && !contexts.has("sha256:e"));
        assert_eq!(contexts.stored.lock().bytes, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn context_that_is_stored_again_lasts_as_long_as_any_other() {
        let (contexts, _folder) = store();
        contexts.put_empty("sha256:a", 1);
        tokio::time::advance(MAX_AGE / 2).await;
        contexts.discard("sha256:a");
        contexts.put_empty("sha256:a", 1);
        tokio::time::advance(MAX_AGE * 3 / 4).await;
        contexts.put_empty("sha256:b", 1);
        assert!(contexts.has("sha256:a"));
    }

    #[tokio::test(start_paused = true)]
    async fn file_of_a_discarded_context_is_kept_until_its_push_ends() {
        let (contexts, _folder) = store();
        contexts.put_empty("sha256:a", 1);
        let held = contexts.hold("team", "sha256:a").await.unwrap();
        tokio::time::advance(2 * MAX_AGE).await;
        contexts.put_empty("sha256:b", 1);
        let path = held.context.file.to_path_buf();
        assert!(!contexts.has("sha256:a") && path.exists());
        drop(held);
        assert!(!path.exists());
    }
}
