//! Folders of the cache on disk, and their locks.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
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
/// File in each repository of the cache. Its modification time is the time of the last use, written by fetches and by [`Store::sweep`].
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

/// Folders of the cache. `<root>/calls`: private folders of git sessions. `<root>/contexts`: packed contexts. `<root>/repositories/<digest>`: bare
/// repositories. `<root>/salt`: salt of the digests.
pub(super) struct Store {
    calls: PathBuf,
    contexts: PathBuf,
    repositories: PathBuf,
    salt: Vec<u8>,
    /// Repositories that are on disk, or in use. Read from disk once, when the cache is opened.
    known: Mutex<HashMap<PathBuf, KnownRepository>>,
}

/// Lock, size and last use of a repository.
struct KnownRepository {
    lock: Lock,
    /// Size of the pack files when they were measured last, in bytes.
    size: Arc<AtomicU64>,
    used: SystemTime,
}

impl Default for KnownRepository {
    fn default() -> Self {
        Self {
            lock: Lock::default(),
            size: Arc::default(),
            used: SystemTime::now(),
        }
    }
}

impl KnownRepository {
    /// Returns the repository at `path` on disk.
    fn read(path: &Path) -> Self {
        Self {
            size: Arc::new(AtomicU64::new(size_of(path))),
            used: used_at(path),
            ..Self::default()
        }
    }
}

/// A repository of the cache, with a lock that prevents other calls from fetching into the repository.
pub(super) struct Repository {
    path: PathBuf,
    files: Arc<RwLock<()>>,
    /// Size of the pack files for [`Store::make_room`], in bytes.
    size: Arc<AtomicU64>,
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
        let (calls, contexts) = (root.join("calls"), root.join("contexts"));
        for folder in [&calls, &contexts] {
            remove(folder)?;
            make(folder)?;
        }
        let repositories = root.join("repositories");
        make(&repositories)?;
        let path = root.join("salt");
        let salt = salt(&path).map_err(|source| cache_error("read or write", &path, source))?;
        let read = |source| cache_error("read", &repositories, source);
        let mut known = HashMap::new();
        for entry in fs::read_dir(&repositories).map_err(read)? {
            let path = entry.map_err(read)?.path();
            known.insert(path.clone(), KnownRepository::read(&path));
        }
        Ok(Self {
            calls,
            contexts,
            repositories,
            salt,
            known: Mutex::new(known),
        })
    }

    pub(super) fn contexts(&self) -> &Path {
        &self.contexts
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
        let (Lock { fetch, files }, size) = self.used(path);
        Repository {
            path: path.to_owned(),
            files,
            size,
            _fetch: fetch.lock_owned().await,
        }
    }

    /// Locks the files of the repository at `path` for reading, and records its use. Calls may read during a fetch.
    pub(super) async fn read(&self, path: &Path) -> Reading {
        let (lock, _) = self.used(path);
        Reading {
            _files: lock.files.read_owned().await,
        }
    }

    /// Records the use of the repository at `path`. Returns its lock and its size.
    fn used(&self, path: &Path) -> (Lock, Arc<AtomicU64>) {
        let mut known = self.known.lock();
        let repository = known.entry(path.to_owned()).or_default();
        repository.used = SystemTime::now();
        (repository.lock.clone(), repository.size.clone())
    }

    /// Returns the total size of all repositories, in bytes.
    fn size(&self) -> u64 {
        let known = self.known.lock();
        let sizes = known.values().map(|repository| &repository.size);
        sizes.map(|size| size.load(Ordering::Relaxed)).sum()
    }

    /// Returns last use, path and lock of each repository.
    fn repositories(&self) -> Vec<(SystemTime, PathBuf, Lock)> {
        let known = self.known.lock();
        known
            .iter()
            .map(|(path, repository)| (repository.used, path.clone(), repository.lock.clone()))
            .collect()
    }

    /// Removes the least recently used repositories until the total size is at most `limit` bytes. Keeps repositories that are in use.
    /// Returns whether the total size is within the limit.
    pub(super) fn make_room(&self, limit: u64) -> Result<bool, Error> {
        let mut size = self.size();
        if size <= limit {
            return Ok(true);
        }
        let mut repositories = self.repositories();
        repositories.sort_by_key(|(used, ..)| *used);
        for (_, path, lock) in repositories {
            let Some(freed) = self.remove(&path, lock)? else {
                continue;
            };
            if freed > 0 {
                tracing::info!(bytes = freed, "evicted a repository from the git cache");
            }
            size = size.saturating_sub(freed);
            if size <= limit {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes repositories that have not been used for `idle` or longer. Writes the time of the last use of the others to disk.
    pub(super) fn sweep(&self, idle: Duration) -> Result<usize, Error> {
        let mut removed = 0;
        for (used, path, lock) in self.repositories() {
            if used.elapsed().unwrap_or_default() < idle {
                // Ignores an error: the time is only needed after a restart.
                let _ = fs::File::open(path.join(USED)).and_then(|file| file.set_modified(used));
                continue;
            }
            let existed = path.exists();
            if self.remove(&path, lock)?.is_some() && existed {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Removes the repository at `path`. Returns its size; `None` if it is in use.
    fn remove(&self, path: &Path, lock: Lock) -> Result<Option<u64>, Error> {
        let Some(alone) = lock.try_all() else {
            return Ok(None);
        };
        remove(path)?;
        let mut known = self.known.lock();
        drop((alone, lock));
        let Some(repository) = known.get(path) else {
            return Ok(Some(0));
        };
        let size = repository.size.swap(0, Ordering::Relaxed);
        if !repository.lock.is_used() {
            known.remove(path);
        }
        Ok(Some(size))
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
        self.size.store(0, Ordering::Relaxed);
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

    /// Measures the size of the pack files, in bytes, including a pack file that git is receiving. Updates the size for [`Store::make_room`].
    pub(super) fn size(&self) -> u64 {
        let size = size_of(&self.path);
        self.size.store(size, Ordering::Relaxed);
        size
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

/// Returns the time of the last use of the repository at `path` that is recorded on disk.
fn used_at(path: &Path) -> SystemTime {
    fs::metadata(path.join(USED))
        .or_else(|_| fs::metadata(path))
        .and_then(|metadata| metadata.modified())
        .unwrap_or_else(|_| SystemTime::now())
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
