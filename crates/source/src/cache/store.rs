//! Folders of the cache on disk, and their locks.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{
    Mutex as AsyncMutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock,
};

use crate::{
    credentials::Credentials,
    error::{Error, GitFailure},
    git::session::cache_error,
    reference::CommitId,
    url::RepositoryUrl,
};

/// Maximum number of pack files of a repository. Each fetch adds a pack file, and git never merges them. A repository with more pack files
/// is removed and fetched again.
const PACKS: usize = 50;
/// File in each repository of the cache. Its modification time is the time of the last use.
const USED: &str = "alustan-used";

/// Locks of a repository.
#[derive(Clone, Default)]
struct Lock {
    /// Held by the call that fetches into the repository.
    fetch: Arc<AsyncMutex<()>>,
    /// Held shared by calls that read the repository, and exclusively by a call that removes its files.
    files: Arc<RwLock<()>>,
}

impl Lock {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.fetch) > 1 || Arc::strong_count(&self.files) > 1
    }

    /// Acquires `fetch` and, exclusively, `files` without waiting. Returns `None` if the repository is in use.
    fn try_all(&self) -> Option<(OwnedMutexGuard<()>, OwnedRwLockWriteGuard<()>)> {
        let fetch = self.fetch.clone().try_lock_owned().ok()?;
        let files = self.files.clone().try_write_owned().ok()?;
        Some((fetch, files))
    }
}

/// Folders of the cache. `<root>/calls`: private folders of git sessions. `<root>/repositories/<digest>`: bare repositories. `<root>/salt`:
/// salt of the digests.
pub(super) struct Store {
    calls: PathBuf,
    repositories: PathBuf,
    salt: Vec<u8>,
    locks: Mutex<HashMap<PathBuf, Lock>>,
}

/// A repository of the cache, with a lock that prevents other calls from fetching into the repository.
pub(super) struct Repository {
    path: PathBuf,
    files: Arc<RwLock<()>>,
    _fetch: OwnedMutexGuard<()>,
}

/// Shared lock that prevents the removal of the files of a repository.
pub(super) struct Reading {
    _files: OwnedRwLockReadGuard<()>,
}

impl Store {
    pub(super) fn open(root: PathBuf) -> Result<Self, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if !root.to_str().is_some_and(|root| root.chars().all(plain)) {
            return Err(Error::CacheRoot { path: root });
        }
        let make = |path: &Path| {
            fs::create_dir_all(path).map_err(|source| cache_error("create", path, source))
        };
        make(&root)?;
        let root = root
            .canonicalize()
            .map_err(|source| cache_error("find", &root, source))?;
        let (calls, repositories) = (root.join("calls"), root.join("repositories"));
        remove(&calls)?;
        make(&calls)?;
        make(&repositories)?;
        let path = root.join("salt");
        let salt = salt(&path).map_err(|source| cache_error("read or write", &path, source))?;
        Ok(Self {
            calls,
            repositories,
            salt,
            locks: Mutex::default(),
        })
    }

    pub(super) fn calls(&self) -> &Path {
        &self.calls
    }

    /// Returns the folder of a repository.
    ///
    /// The folder depends on the credentials: a tenant must not read content that another tenant has fetched with other credentials.
    pub(super) fn path(
        &self,
        url: &RepositoryUrl,
        credentials: &Credentials,
        commit: &CommitId,
    ) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(credentials.fingerprint(&self.salt));
        hash.update([u8::from(commit.as_str().len() == 64)]);
        hash.update(url.cache_key());
        let name: String = hex::encode(hash.finalize()).chars().take(32).collect();
        self.repositories.join(name)
    }

    /// Locks the repository at `path` for a fetch. Waits until no other call fetches into the repository.
    pub(super) async fn lock(&self, path: &Path) -> Repository {
        let Lock { fetch, files } = self.lock_of(path);
        Repository {
            path: path.to_owned(),
            files,
            _fetch: fetch.lock_owned().await,
        }
    }

    /// Locks the files of the repository at `path` for reading, and records its use. Calls may read during a fetch.
    pub(super) async fn read(&self, path: &Path) -> Reading {
        let reading = Reading {
            _files: self.lock_of(path).files.read_owned().await,
        };
        // Ignores an error: if the repository does not exist, the next read of the repository fails.
        let _ =
            fs::File::open(path.join(USED)).and_then(|used| used.set_modified(SystemTime::now()));
        reading
    }

    fn lock_of(&self, path: &Path) -> Lock {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| lock.is_used());
        locks.entry(path.to_owned()).or_default().clone()
    }

    /// Removes the least recently used repositories until the total size is at most `limit` bytes. Keeps repositories that are in use.
    /// Returns whether the total size is within the limit.
    pub(super) fn make_room(&self, limit: u64) -> Result<bool, Error> {
        let read = |source| cache_error("read", &self.repositories, source);
        let mut repositories = Vec::new();
        for entry in fs::read_dir(&self.repositories).map_err(read)? {
            let path = entry.map_err(read)?.path();
            repositories.push((idle_for(&path), size_of(&path), path));
        }
        let mut size: u64 = repositories.iter().map(|(_, size, _)| size).sum();
        repositories.sort();
        for (_, freed, path) in repositories.iter().rev() {
            if size <= limit {
                return Ok(true);
            }
            let Some(_alone) = self.lock_of(path).try_all() else {
                continue;
            };
            tracing::info!(bytes = freed, "evicted a repository from the git cache");
            remove(path)?;
            size = size.saturating_sub(*freed);
        }
        Ok(size <= limit)
    }

    pub(super) fn sweep(&self, idle: Duration) -> Result<usize, Error> {
        let read = |source| cache_error("read", &self.repositories, source);
        let mut removed = 0;
        for entry in fs::read_dir(&self.repositories).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let Some(_alone) = self.lock_of(&path).try_all() else {
                continue;
            };
            if idle_for(&path) >= idle {
                remove(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl Repository {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn exists(&self) -> bool {
        exists(&self.path)
    }

    /// Waits until no call reads the repository, then removes the files of the repository.
    pub(super) async fn clear(&self) -> Result<(), Error> {
        let _alone = self.files.write().await;
        remove(&self.path)
    }

    /// Sets the time of the last use, and removes lock files and incomplete pack files of a killed git process.
    pub(super) fn tidy(&self) -> Result<(), Error> {
        let used = self.path.join(USED);
        fs::write(&used, "").map_err(|source| cache_error("write", &used, source))?;
        for folder in ["", "refs/alustan", "objects/pack"] {
            let Ok(entries) = fs::read_dir(self.path.join(folder)) else {
                continue;
            };
            for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.ends_with(".lock") || name.starts_with("tmp_") {
                    remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the repository has more than [`PACKS`] pack files.
    pub(super) fn is_worn(&self) -> bool {
        let packs = self.packs();
        packs
            .filter(|(name, _)| name.strip_suffix(".pack").is_some())
            .count()
            > PACKS
    }

    /// Returns the size of the pack files, in bytes, including a pack file that git is receiving.
    pub(super) fn size(&self) -> u64 {
        size_of(&self.path)
    }

    fn packs(&self) -> impl Iterator<Item = (String, u64)> {
        packs_of(&self.path)
    }
}

/// Whether a repository exists at `path`.
pub(super) fn exists(path: &Path) -> bool {
    path.join("HEAD").exists()
}

fn size_of(repository: &Path) -> u64 {
    packs_of(repository).map(|(_, size)| size).sum()
}

fn packs_of(repository: &Path) -> impl Iterator<Item = (String, u64)> + use<> {
    fs::read_dir(repository.join("objects/pack"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((
                entry.file_name().to_string_lossy().into_owned(),
                entry.metadata().ok()?.len(),
            ))
        })
}

/// Whether a damaged repository of the cache is the probable cause of `error`, so that a fetch into a new repository may succeed.
pub(super) fn is_own_fault(error: &Error) -> bool {
    matches!(
        error,
        Error::Git {
            failure: GitFailure::Other,
            ..
        }
    )
}

fn idle_for(path: &Path) -> Duration {
    let used = fs::metadata(path.join(USED))
        .or_else(|_| fs::metadata(path))
        .and_then(|metadata| metadata.modified())
        .unwrap_or_else(|_| SystemTime::now());
    used.elapsed().unwrap_or_default()
}

fn remove(path: &Path) -> Result<(), Error> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(cache_error("remove", path, source))
        }
        _ => Ok(()),
    }
}

/// Returns the random salt in the file at `path`; creates the file if necessary. With a salt, the names of folders reveal nothing about
/// credentials.
fn salt(path: &Path) -> io::Result<Vec<u8>> {
    if let Ok(salt) = fs::read(path)
        && salt.len() == 32
    {
        return Ok(salt);
    }
    let mut salt = vec![0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&salt)?;
    Ok(salt)
}

#[cfg(test)]
mod tests;
