//! Fetched commits and their trees. All modules of a commit share one tree.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::{
    commit_info::CommitInfo,
    error::Error,
    reference::{CommitId, Revision},
    tree::Tree,
};

/// Maximum total size of the `git ls-tree` listings whose trees are cached, in bytes. A tree takes about twice as much memory as its
/// listing.
const BYTES: usize = 32 << 20;
/// Maximum number of commits recorded as fetched. At the maximum, all records are removed. The next use of a commit without a record costs one
/// additional git call.
const COMMITS: usize = 10_000;
/// Time for which the error of a failed fetch is kept, for callers that waited for the same fetch.
const FAILURES: Duration = Duration::from_mins(10);

/// Tree and header of a commit.
pub(super) struct Snapshot {
    pub(super) tree: Arc<Tree>,
    pub(super) commit: CommitInfo,
    /// Size of the `git ls-tree` listing, in bytes.
    pub(super) bytes: usize,
}

/// Weak reference to the files of a commit. Empty if the files are not in memory. The mutex permits only one caller at a time to read the files
/// from git.
type Files = Arc<tokio::sync::Mutex<Weak<Snapshot>>>;

/// A commit that was fetched into a repository of the cache.
#[derive(Clone)]
pub(super) struct Commit {
    pub(super) repository: PathBuf,
    pub(super) revision: Revision,
    files: Files,
}

/// Fetched commits of all repositories.
#[derive(Default)]
pub(super) struct Commits(Mutex<CachedCommits>);

#[derive(Default)]
struct CachedCommits {
    fetched: HashMap<PathBuf, FetchedCommits>,
    /// Last failed fetch per repository: commit, time and error.
    failed: HashMap<PathBuf, (CommitId, Instant, Error)>,
    /// Cached trees, the oldest first.
    kept: VecDeque<Arc<Snapshot>>,
}

/// Fetched commits of a repository.
#[derive(Default)]
struct FetchedCommits {
    files: HashMap<CommitId, Files>,
    /// Last fetched commit by reference, and the time at which it was the newest commit of the reference.
    newest: HashMap<String, (Commit, Instant)>,
}

impl Commits {
    fn known(&self) -> MutexGuard<'_, CachedCommits> {
        self.0.lock()
    }

    /// Returns the commit of `revision` if it was fetched into `repository`.
    pub(super) fn get(&self, repository: &Path, revision: &Revision) -> Option<Commit> {
        let known = self.known();
        let files = known.fetched.get(repository)?.files.get(&revision.commit)?;
        Some(Commit {
            repository: repository.to_owned(),
            revision: revision.clone(),
            files: files.clone(),
        })
    }

    /// Returns the fetched commit that was the newest one of `reference` at `time` or later.
    pub(super) fn fetched_since(
        &self,
        repository: &Path,
        reference: &str,
        time: Instant,
    ) -> Option<Commit> {
        let known = self.known();
        let (commit, at) = known.fetched.get(repository)?.newest.get(reference)?;
        (*at >= time).then(|| commit.clone())
    }

    /// Returns the error of a fetch of `revision` that failed at `requested_at` or later.
    pub(super) fn failure(
        &self,
        repository: &Path,
        revision: &Revision,
        requested_at: Instant,
    ) -> Option<Error> {
        let known = self.known();
        let (commit, at, error) = known.failed.get(repository)?;
        (*commit == revision.commit && *at >= requested_at).then(|| error.clone())
    }

    /// Records that `revision` was fetched into `repository`. At the time `newest_at`, it was the newest revision of its reference.
    pub(super) fn fetched(
        &self,
        repository: &Path,
        revision: &Revision,
        newest_at: Instant,
    ) -> Commit {
        let mut known = self.known();
        known.failed.remove(repository);
        let commits = known.fetched.values().map(|commits| commits.files.len());
        if commits.sum::<usize>() >= COMMITS {
            known.fetched.clear();
        }
        let commits = known.fetched.entry(repository.to_owned()).or_default();
        let files = commits.files.entry(revision.commit.clone()).or_default();
        let commit = Commit {
            repository: repository.to_owned(),
            revision: revision.clone(),
            files: files.clone(),
        };
        if !revision.is_fixed() {
            let newest = (commit.clone(), newest_at);
            commits.newest.insert(revision.reference.clone(), newest);
        }
        commit
    }

    /// Records that `revision` could not be fetched.
    pub(super) fn failed(&self, repository: &Path, revision: &Revision, error: Error) {
        let mut known = self.known();
        let now = Instant::now();
        known
            .failed
            .retain(|_, (_, at, _)| now.duration_since(*at) < FAILURES);
        let failure = (revision.commit.clone(), now, error);
        known.failed.insert(repository.to_owned(), failure);
    }

    /// Whether `commit` is still recorded as fetched. Returns false if the repository was removed after [`Self::get`] or [`Self::fetched`] returned
    /// `commit`, even if the commit was fetched again.
    pub(super) fn holds(&self, commit: &Commit) -> bool {
        let now = self.get(&commit.repository, &commit.revision);
        now.is_some_and(|now| Arc::ptr_eq(&now.files, &commit.files))
    }

    /// Removes the entries of all commits of `repository`.
    pub(super) fn forget(&self, repository: &Path) {
        self.known().fetched.remove(repository);
    }

    /// Returns the files of `commit`. Awaits `read` only if the files are not in memory.
    pub(super) async fn files(
        &self,
        commit: &Commit,
        read: impl Future<Output = Result<Snapshot, Error>>,
    ) -> Result<Arc<Snapshot>, Error> {
        let mut files = commit.files.lock().await;
        if let Some(snapshot) = files.upgrade() {
            return Ok(snapshot);
        }
        let snapshot = Arc::new(read.await?);
        *files = Arc::downgrade(&snapshot);
        self.known().keep(snapshot.clone());
        Ok(snapshot)
    }
}

impl CachedCommits {
    fn keep(&mut self, snapshot: Arc<Snapshot>) {
        self.kept.push_back(snapshot);
        let mut bytes: usize = self.kept.iter().map(|snapshot| snapshot.bytes).sum();
        while bytes > BYTES {
            let Some(oldest) = self.kept.pop_front() else {
                return;
            };
            bytes -= oldest.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(digit: char) -> Revision {
        Revision::of_commit(&CommitId::parse(&digit.to_string().repeat(40)).unwrap())
    }

    fn snapshot(bytes: usize) -> Snapshot {
        Snapshot {
            tree: Arc::default(),
            commit: CommitInfo::default(),
            bytes,
        }
    }

    #[tokio::test]
    async fn tree_is_read_once_and_trees_in_memory_have_a_bound() {
        let commits = Commits::default();
        let repository = Path::new("/r");
        let [first, second, large] = ['a', 'b', 'c'].map(|digit| {
            let revision = revision(digit);
            commits.fetched(repository, &revision, Instant::now())
        });
        let never = async { unreachable!("it is in memory") };
        commits
            .files(&first, async { Ok(snapshot(BYTES)) })
            .await
            .unwrap();
        commits.files(&first, never).await.unwrap();
        commits
            .files(&second, async { Ok(snapshot(1)) })
            .await
            .unwrap();
        let again = commits.files(&first, async { Ok(snapshot(2)) });
        assert_eq!(again.await.unwrap().bytes, 2, "the oldest made room");
        let read = async { Ok(snapshot(BYTES + 1)) };
        let shared = commits.files(&large, read).await.unwrap();
        let never = async { unreachable!("another caller holds it") };
        let also = commits.files(&large, never).await.unwrap();
        assert!(Arc::ptr_eq(&shared, &also) && commits.known().kept.is_empty());
    }

    #[test]
    fn removed_repository_has_no_commits() {
        let commits = Commits::default();
        let (one, other) = (Path::new("/one"), Path::new("/other"));
        let of_one = commits.fetched(one, &revision('a'), Instant::now());
        commits.fetched(other, &revision('a'), Instant::now());
        assert!(commits.holds(&of_one));
        commits.forget(one);
        assert!(commits.get(one, &revision('a')).is_none() && !commits.holds(&of_one));
        commits.fetched(one, &revision('a'), Instant::now());
        assert!(!commits.holds(&of_one), "it was fetched anew");
        assert!(commits.get(other, &revision('a')).is_some());
    }

    #[test]
    fn commit_fetched_after_a_request_answers_its_reference() {
        let (commits, repository) = (Commits::default(), Path::new("/r"));
        let at = |reference: &str| Revision {
            reference: reference.to_owned(),
            ..revision('a')
        };
        let (before, after) = (Instant::now(), Instant::now() + Duration::from_nanos(1));
        commits.fetched(repository, &at("refs/heads/main"), before);
        commits.fetched(repository, &revision('b'), before);
        let since = |reference, time| commits.fetched_since(repository, reference, time);
        let found = since("refs/heads/main", before).unwrap();
        assert_eq!(found.revision, at("refs/heads/main"));
        assert!(since("refs/heads/main", after).is_none());
        assert!(since("refs/heads/other", before).is_none());
        commits.forget(repository);
        assert!(since("refs/heads/main", before).is_none());
    }

    #[test]
    fn fetch_failure_is_shared_only_with_waiting_callers() {
        let commits = Commits::default();
        let repository = Path::new("/r");
        let requested_at = Instant::now();
        commits.failed(repository, &revision('a'), Error::SshKeyEncrypted);
        let failure =
            |digit, requested_at| commits.failure(repository, &revision(digit), requested_at);
        assert!(failure('a', requested_at).is_some() && failure('b', requested_at).is_none());
        assert!(failure('a', Instant::now() + Duration::from_nanos(1)).is_none());
        commits.fetched(repository, &revision('a'), Instant::now());
        assert!(failure('a', requested_at).is_none());
    }
}
