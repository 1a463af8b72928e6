//! Contexts on disk, by digest, from the fetch until the push. Losing one costs a fetch.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alustan_source::{Turn, Turns};
use tracing::warn;

/// How long a context waits for its push.
const KEEP: Duration = Duration::from_hours(1);

/// Bytes of those that wait, before another comes.
const LIMIT: u64 = 1 << 30;

/// Maximum number of contexts that are in memory for a push, each of up to 64 MiB.
const AT_ONCE: usize = 2;

/// A folder of contexts.
pub(crate) struct Contexts {
    folder: PathBuf,
    limit: u64,
    /// Limits contexts in memory.
    turns: Arc<Turns>,
}

impl Contexts {
    /// In `folder`, which is made if need be.
    pub(crate) fn open(folder: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            limit: LIMIT,
            turns: Turns::new(AT_ONCE),
        })
    }

    /// Waits until a context of `tenant` may be held in memory; tenants take turns.
    pub(crate) async fn turn(&self, tenant: &str) -> Option<Turn> {
        self.turns.take(&Arc::from(tenant)).await
    }

    /// Keeps a context, and removes those that nobody pushed for long. Nothing depends on it.
    pub(crate) fn put(&self, digest: &str, bytes: &[u8]) {
        self.sweep();
        let file = self.file(digest);
        let unfinished = file.with_extension("new");
        let written =
            std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, &file));
        if let Err(error) = written {
            warn!(%error, file = %file.display(), "could not keep a context");
        }
    }

    /// A context that was kept.
    pub(crate) fn get(&self, digest: &str) -> Option<Vec<u8>> {
        std::fs::read(self.file(digest)).ok()
    }

    fn file(&self, digest: &str) -> PathBuf {
        self.folder.join(digest.replace(':', "-"))
    }

    /// What is old goes, and the oldest of what is too much.
    fn sweep(&self) {
        let entries = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten();
        let mut found: Vec<_> = entries.map(|entry| age_of(entry.path())).collect();
        found.sort();
        let mut size = 0;
        let gone = found.into_iter().filter(|(age, bytes, _)| {
            size += bytes;
            *age > KEEP || size > self.limit
        });
        for (_, _, path) in gone {
            if let Err(error) = std::fs::remove_file(&path) {
                warn!(%error, file = %path.display(), "could not remove an old context");
            }
        }
    }
}

/// Age and size of a file; one that cannot be looked at is as good as new and empty.
fn age_of(path: PathBuf) -> (Duration, u64, PathBuf) {
    let meta = path.metadata().ok();
    let written = meta.as_ref().and_then(|meta| meta.modified().ok());
    let age = written.and_then(|at| SystemTime::now().duration_since(at).ok());
    let bytes = meta.map_or(0, |meta| meta.len());
    (age.unwrap_or_default(), bytes, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_contexts_go_and_the_oldest_of_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let mut contexts = Contexts::open(folder.path().to_owned()).unwrap();
        contexts.limit = 250;
        for (digest, age) in [("sha256:a", 7200), ("sha256:b", 60), ("sha256:c", 30)] {
            contexts.put(digest, &[0; 100]);
            let file = std::fs::File::options()
                .write(true)
                .open(contexts.file(digest));
            let written = SystemTime::now() - Duration::from_secs(age);
            file.unwrap().set_modified(written).unwrap();
        }
        contexts.put("sha256:d", &[0; 100]);
        let kept = |digest: &str| contexts.get(digest).is_some();
        assert!(!kept("sha256:a") && kept("sha256:b") && kept("sha256:c") && kept("sha256:d"));
        contexts.put("sha256:e", &[0; 100]);
        assert!(!kept("sha256:b") && kept("sha256:c") && kept("sha256:d") && kept("sha256:e"));
    }
}
