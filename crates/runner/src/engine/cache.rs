//! Plugin cache of the engine on the cache volume. The engine does not lock the cache, so the runner locks it. A pod that does not get the
//! lock runs the engine without the cache.

use std::fs::{self, File};
use std::path::Path;

use crate::paths::Vars;

/// Exclusive lock of the plugin cache, released on drop.
pub struct Lock(#[expect(dead_code, reason = "the lock is released when the file is closed")] File);

impl Lock {
    /// Locks the plugin cache without waiting. Returns `None` if there is no cache volume or the lock is not available.
    pub fn try_take(cache: &Path) -> Option<Self> {
        if !cache.is_dir() {
            return None;
        }
        fs::create_dir_all(cache.join("plugins")).ok()?;
        let file = File::create(cache.join("plugins.lock")).ok()?;
        file.try_lock().ok()?;
        Some(Self(file))
    }
}

/// Returns the environment variables that enable the plugin cache. With these variables, the engine uses a cached provider even if the
/// dependency lock file contains no checksums of the provider. The engine may then write an incomplete dependency lock file, which is
/// deleted with the copy of the module.
pub fn environment(cache: &Path) -> Vars {
    let path = cache.join("plugins").to_string_lossy().into_owned();
    Vars::from([
        ("TF_PLUGIN_CACHE_DIR".to_owned(), path),
        (
            "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE".to_owned(),
            "1".to_owned(),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_cache_lock_is_exclusive() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::try_take(directory.path());
        assert!(first.is_some());
        assert!(Lock::try_take(directory.path()).is_none());
        drop(first);
        assert!(Lock::try_take(directory.path()).is_some());
        assert!(Lock::try_take(&directory.path().join("absent")).is_none());
    }
}
