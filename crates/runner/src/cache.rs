//! The engine's plugin cache on the cache volume. The engine does not lock it, so we do: one user
//! at a time, others do without.

use std::fs::{self, File};
use std::path::Path;

use crate::layout::Vars;

/// Held while the plugin cache is in use.
pub struct Lock(#[expect(dead_code, reason = "holds the lock of the file")] File);

impl Lock {
    /// Takes the plugin cache, unless there is none or somebody else uses it.
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

/// The environment that makes the engine use the cache. It may take what the lock file of the
/// module does not know yet: the module's copy is ours, and its lock file goes nowhere.
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
    fn one_at_a_time_uses_the_plugin_cache() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::try_take(directory.path());
        assert!(first.is_some());
        assert!(Lock::try_take(directory.path()).is_none());
        drop(first);
        assert!(Lock::try_take(directory.path()).is_some());
        assert!(Lock::try_take(&directory.path().join("absent")).is_none());
    }
}
