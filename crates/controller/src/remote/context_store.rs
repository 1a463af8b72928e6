//! Stores contexts on disk, by digest, between fetch and push. If the context of a push is missing, the push fetches and stores it
//! again.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alustan_source::{FairSemaphore, Permit};
use tracing::warn;

/// Maximum age of a stored context.
const MAX_AGE: Duration = Duration::from_hours(1);

/// Maximum total size of stored contexts, in bytes. Enforced before a context is stored: with the new context, the total may be larger.
const MAX_TOTAL_BYTES: u64 = 1 << 30;

/// Maximum size of a small context, in bytes.
const MAX_SMALL_BYTES: u64 = 4 << 20;

/// Maximum number of concurrent pushes of small contexts.
pub(crate) const MAX_SMALL_PUSHES: usize = 8;

/// Maximum number of concurrent pushes of larger contexts. A context has at most 64 MiB, so all pushes together hold at most 160
/// MiB of contexts in memory.
const MAX_LARGE_PUSHES: usize = 2;

/// Directory of contexts.
pub(crate) struct ContextStore {
    folder: PathBuf,
    limit: u64,
    /// Limits pushes of small contexts.
    small: Arc<FairSemaphore>,
    /// Limits pushes of larger contexts.
    large: Arc<FairSemaphore>,
}

/// Context in memory during its push to a registry.
pub(crate) struct HeldContext {
    pub(crate) bytes: Vec<u8>,
    /// Permit of the push. Must be dropped after all copies of `bytes`, because permits limit the memory for contexts.
    pub(crate) permit: Option<Permit>,
}

impl ContextStore {
    /// Opens the store in `folder`. Creates the directory if it does not exist.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            limit: MAX_TOTAL_BYTES,
            small: FairSemaphore::new(MAX_SMALL_PUSHES),
            large: FairSemaphore::new(MAX_LARGE_PUSHES),
        })
    }

    /// Waits for the permit of a push, with fairness between tenants, and reads the stored context `digest` of `tenant` into memory. Fails
    /// immediately if the context is not stored.
    pub(crate) async fn hold(&self, tenant: &str, digest: &str) -> io::Result<HeldContext> {
        let size = self.file(digest).metadata()?.len();
        let permits = if size > MAX_SMALL_BYTES {
            &self.large
        } else {
            &self.small
        };
        let permit = permits.acquire(&Arc::from(tenant)).await;
        Ok(HeldContext {
            bytes: self.get(digest)?,
            permit,
        })
    }

    /// Stores a context until its push. Removes old contexts first.
    pub(crate) fn put(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        self.remove_expired();
        let file = self.file(digest);
        let unfinished = file.with_extension("new");
        std::fs::write(&unfinished, bytes)?;
        std::fs::rename(&unfinished, &file)
    }

    /// Reads a stored context.
    fn get(&self, digest: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.file(digest))
    }

    fn file(&self, digest: &str) -> PathBuf {
        self.folder.join(digest.replace(':', "-"))
    }

    /// Removes expired contexts, and the oldest ones beyond the maximum total size.
    fn remove_expired(&self) {
        let entries = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten();
        let mut files: Vec<_> = entries.map(|entry| age_of(entry.path())).collect();
        files.sort();
        let mut size = 0;
        let expired = files.into_iter().filter(|(age, bytes, _)| {
            size += bytes;
            *age > MAX_AGE || size > self.limit
        });
        for (_, _, path) in expired {
            if let Err(error) = std::fs::remove_file(&path) {
                warn!(%error, file = %path.display(), "failed to remove an old context");
            }
        }
    }
}

/// Returns age and size of a file. Both are zero if the metadata of the file cannot be read.
fn age_of(path: PathBuf) -> (Duration, u64, PathBuf) {
    let meta = path.metadata().ok();
    let written = meta.as_ref().and_then(|meta| meta.modified().ok());
    let age = written.and_then(|at| SystemTime::now().duration_since(at).ok());
    let bytes = meta.map_or(0, |meta| meta.len());
    (age.unwrap_or_default(), bytes, path)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::{FutureExt as _, poll};

    use super::*;

    #[tokio::test]
    async fn contexts_in_memory_for_pushes_have_160_mib_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = ContextStore::open(folder.path().to_owned()).unwrap();
        assert!(contexts.hold("team", "sha256:gone").await.is_err());
        let kinds = [("sha256:small", 4, 8), ("sha256:large", 64, 2)];
        let mut held = Vec::new();
        for (digest, mib, at_once) in kinds {
            contexts.put(digest, &vec![0; mib << 20]).unwrap();
            for _ in 0..at_once {
                held.push(contexts.hold("team", digest).await.unwrap());
            }
        }
        for (digest, ..) in kinds {
            let mut next = pin!(contexts.hold("team", digest));
            assert!(poll!(&mut next).is_pending());
        }
        let bytes: usize = held.iter().map(|held| held.bytes.len()).sum();
        assert_eq!(bytes, 160 << 20);
    }

    #[tokio::test]
    async fn pushes_of_one_namespace_delay_another_by_one_push() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = ContextStore::open(folder.path().to_owned()).unwrap();
        for (digest, size, at_once) in [
            ("sha256:small", 7, MAX_SMALL_PUSHES),
            ("sha256:large", 64 << 20, MAX_LARGE_PUSHES),
        ] {
            contexts.put(digest, &vec![0; size]).unwrap();
            let mut held = Vec::new();
            for _ in 0..at_once {
                held.push(contexts.hold("busy", digest).await.unwrap());
            }
            let mut busy = pin!(contexts.hold("busy", digest));
            let mut team = pin!(contexts.hold("team", digest));
            assert!(poll!(&mut busy).is_pending() && poll!(&mut team).is_pending());
            held.pop();
            let held = team.now_or_never();
            assert!(held.is_some_and(|held| held.is_ok()), "{digest}");
        }
    }

    #[tokio::test]
    async fn large_contexts_do_not_delay_pushes_of_small_ones() {
        let folder = tempfile::tempdir().unwrap();
        let contexts = ContextStore::open(folder.path().to_owned()).unwrap();
        contexts.put("sha256:large", &vec![0; 64 << 20]).unwrap();
        contexts.put("sha256:small", b"context").unwrap();
        let push = |_| Box::pin(contexts.hold("busy", "sha256:large"));
        let mut pushes: Vec<_> = (0..MAX_SMALL_PUSHES).map(push).collect();
        let mut held = Vec::new();
        for push in &mut pushes {
            held.push(poll!(push));
        }
        let begun = held.iter().filter(|held| held.is_ready()).count();
        assert_eq!(begun, MAX_LARGE_PUSHES);
        let small = contexts.hold("team", "sha256:small").now_or_never();
        assert!(small.is_some_and(|held| held.is_ok()));
    }

    #[test]
    fn old_contexts_and_the_oldest_over_the_limit_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let mut contexts = ContextStore::open(folder.path().to_owned()).unwrap();
        contexts.limit = 250;
        for (digest, age) in [("sha256:a", 7200), ("sha256:b", 60), ("sha256:c", 30)] {
            contexts.put(digest, &[0; 100]).unwrap();
            let file = std::fs::File::options()
                .write(true)
                .open(contexts.file(digest));
            let written = SystemTime::now() - Duration::from_secs(age);
            file.unwrap().set_modified(written).unwrap();
        }
        contexts.put("sha256:d", &[0; 100]).unwrap();
        let kept = |digest: &str| contexts.get(digest).is_ok();
        assert!(!kept("sha256:a") && kept("sha256:b") && kept("sha256:c") && kept("sha256:d"));
        contexts.put("sha256:e", &[0; 100]).unwrap();
        assert!(!kept("sha256:b") && kept("sha256:c") && kept("sha256:d") && kept("sha256:e"));
    }
}
