//! Reads the allow lists from the mounted files of `ConfigMap` `alustan-allowed`. Mounted files require no permission to read ConfigMaps.
//! [`alustan_core::model::allow_lists`] defines the meaning of the lists.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alustan_core::observed::allow_list::{Allowed, KEYS};
use anyhow::{Context as _, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tracing::{error, info};

use crate::indexed_store::IndexedStore;
use crate::resource::{Guarded, Ref};
use crate::watch::mapping::wake_all;

/// Read interval of the files. Kubelet updates a mounted `ConfigMap` within about a minute.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Allow lists in the files of a directory. The name of a file is its key in the `ConfigMap`.
pub(crate) struct AllowLists {
    folder: Option<PathBuf>,
    /// Allow lists of the last successful read.
    last: Mutex<Arc<Allowed>>,
}

impl AllowLists {
    /// Reads the files in the directory `folder`. If `folder` is `None`, no allow list applies.
    ///
    /// # Errors
    /// If a file exists and cannot be read.
    pub(crate) fn open(folder: Option<PathBuf>) -> Result<Self> {
        let read = folder.as_deref().map(read).transpose()?;
        let last = Mutex::new(Arc::new(read.unwrap_or_default()));
        Ok(Self { folder, last })
    }

    /// Returns the allow lists of the last successful read.
    pub(crate) fn now(&self) -> Arc<Allowed> {
        self.last().clone()
    }

    fn last(&self) -> MutexGuard<'_, Arc<Allowed>> {
        self.last.lock()
    }

    /// Reads the files of `folder`. Returns whether the lists changed. While the files cannot be read, the previous lists apply.
    fn reload(&self, folder: &Path) -> bool {
        match read(folder) {
            Ok(read) if read != *self.now() => {
                *self.last() = Arc::new(read);
                true
            }
            Ok(_) => false,
            Err(error) => {
                let error = format!("{error:#}");
                error!(
                    error,
                    "failed to reload the files in --allowed; keeping the previous allow lists"
                );
                false
            }
        }
    }

    /// Reads the files periodically, and requeues all `resources` when the lists change.
    pub(crate) async fn follow(
        self: Arc<Self>,
        resources: IndexedStore<Guarded>,
        wake: mpsc::UnboundedSender<Ref>,
    ) {
        let Some(folder) = &self.folder else {
            return;
        };
        let mut ticks = tokio::time::interval(RELOAD_INTERVAL);
        loop {
            ticks.tick().await;
            if self.reload(folder) {
                info!("the allow lists changed");
                wake_all(&resources, &wake);
            }
        }
    }
}

fn read(folder: &Path) -> Result<Allowed> {
    let mut data = BTreeMap::new();
    for key in KEYS {
        let file = folder.join(key);
        match std::fs::read_to_string(&file) {
            Ok(text) => drop(data.insert(key.to_owned(), text)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("--allowed: failed to read {}", file.display()));
            }
        }
    }
    Ok(Allowed::read(&data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_allow_list_is_loaded_and_unreadable_one_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = folder.path().join("mounted");
        let lists = AllowLists::open(Some(mounted.clone())).unwrap();
        assert_eq!(*lists.now(), Allowed::default());
        std::fs::create_dir(&mounted).unwrap();
        let file = mounted.join("builders");
        std::fs::write(&file, "registry.test/builder:1\n").unwrap();
        assert!(lists.reload(&mounted) && !lists.reload(&mounted));
        let limited = lists.now();
        assert_ne!(*limited, Allowed::default());
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(!lists.reload(&mounted));
        assert_eq!(lists.now(), limited);
        assert!(AllowLists::open(Some(mounted.clone())).is_err());
        std::fs::remove_dir(&file).unwrap();
        assert!(lists.reload(&mounted));
        assert_eq!(*lists.now(), Allowed::default());
    }
}
