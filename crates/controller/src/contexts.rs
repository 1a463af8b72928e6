//! Contexts on disk, by digest, from the fetch until the push. Losing one costs a fetch.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::warn;

/// How long a context waits for its push.
const KEEP: Duration = Duration::from_hours(1);

/// A folder of contexts.
pub(crate) struct Contexts {
    folder: PathBuf,
}

impl Contexts {
    /// In `folder`, which is made if need be.
    pub(crate) fn open(folder: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
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

    fn sweep(&self) {
        let entries = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten();
        let old = entries
            .map(|entry| entry.path())
            .filter(|path| is_old(path));
        for path in old {
            if let Err(error) = std::fs::remove_file(&path) {
                warn!(%error, file = %path.display(), "could not remove an old context");
            }
        }
    }
}

fn is_old(path: &Path) -> bool {
    let changed = path.metadata().and_then(|meta| meta.modified());
    changed.is_ok_and(|at| {
        SystemTime::now()
            .duration_since(at)
            .is_ok_and(|age| age > KEEP)
    })
}
