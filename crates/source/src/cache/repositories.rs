//! Fetches commits into the repositories of the git cache.

use std::{path::Path, sync::Arc, time::Instant};

use tokio::sync::OnceCell;

use super::{
    collect::RepositoryCall,
    commits::{Commit, Commits},
    facts::KnownFacts,
    fetch::Fetch,
    known::KnownContexts,
    lazy_session::LazySession,
    options::CacheOptions,
    size::{ConcurrencyLimits, Size},
    store::{self, Repository, Store},
};
use crate::{
    context::{Allows, ContextSpec, Newest},
    credentials::Credentials,
    error::{Error, GitFailure},
    reference::Revision,
    url::RepositoryUrl,
};

/// Cache of git repositories. Clones are cheap and share the cache. Methods may run concurrently.
#[derive(Clone)]
pub struct GitCache {
    pub(super) store: Arc<Store>,
    pub(super) commits: Arc<Commits>,
    pub(super) facts: KnownFacts,
    pub(super) known: Arc<KnownContexts>,
    pub(super) options: Arc<CacheOptions>,
    /// Limits concurrent git calls to remotes. A fetch that runs out of memory as [`Size::Small`] is repeated as [`Size::Large`].
    pub(super) remotes: Arc<ConcurrencyLimits>,
    /// Limits how many modules are read from the cache and packed concurrently.
    pub(super) reading: Arc<ConcurrencyLimits>,
    pub(super) tenant: Arc<str>,
}

/// A request for a context.
pub(super) struct Question<'a> {
    pub(super) url: &'a RepositoryUrl,
    pub(super) spec: &'a ContextSpec,
    pub(super) credentials: &'a Credentials,
    pub(super) allows: Allows<'a>,
}

/// A repository of the cache, and the remote from which it is fetched.
pub(super) struct RemoteRepository<'a> {
    pub(super) folder: &'a Path,
    pub(super) url: &'a RepositoryUrl,
    pub(super) credentials: &'a Credentials,
    /// Reference to create in the repository of the cache for the fetched commit.
    pub(super) kept: &'a str,
}

impl GitCache {
    /// Returns a git session for `url` that is opened by its first call.
    pub(super) fn session<'a>(
        &'a self,
        url: &'a RepositoryUrl,
        credentials: &'a Credentials,
    ) -> LazySession<'a> {
        LazySession {
            root: self.store.calls(),
            url,
            credentials,
            environment: &self.options.environment,
            opened: OnceCell::new(),
        }
    }

    /// Returns the commit of `revision`, or a newer commit of the same reference. Fetches a commit if necessary.
    ///
    /// Fetches into one repository run one after the other. After the wait, uses a commit of the reference that another caller has fetched in
    /// the meantime, or returns its error. Otherwise fetches the revision that `newest` returns. A caller therefore waits for at most two fetches of
    /// its reference, however often the reference moves. Sets `revision` to the revision of the commit or of the error.
    pub(super) async fn commit(
        &self,
        remote: &RemoteRepository<'_>,
        revision: &mut Revision,
        newest: Newest<'_>,
    ) -> Result<Commit, Error> {
        let folder = remote.folder;
        let known = |revision: &Revision| {
            self.commits
                .get(folder, revision)
                .filter(|_| store::exists(folder))
        };
        if let Some(commit) = known(revision) {
            return Ok(commit);
        }
        let requested_at = Instant::now();
        let repository = self.store.lock(folder).await;
        let fetched = || {
            self.commits
                .fetched_since(folder, &revision.reference, requested_at)
        };
        if let Some(commit) = known(revision).or_else(fetched) {
            revision.clone_from(&commit.revision);
            return Ok(commit);
        }
        let newest_at = Instant::now();
        *revision = newest();
        if let Some(commit) = known(revision) {
            return Ok(commit);
        }
        if let Some(error) = self.commits.failure(folder, revision, requested_at) {
            return Err(error);
        }
        match self.fetch(remote, &repository, revision).await {
            Ok(()) => Ok(self.commits.fetched(folder, revision, newest_at)),
            Err(error) => {
                self.commits.failed(folder, revision, error.clone());
                Err(error)
            }
        }
    }

    async fn fetch(
        &self,
        remote: &RemoteRepository<'_>,
        repository: &Repository,
        revision: &Revision,
    ) -> Result<(), Error> {
        let session = self.session(remote.url, remote.credentials);
        let fetch = async |size| {
            let _permit = self.remotes.acquire(size, &self.tenant).await;
            let fetch = Fetch {
                call: RepositoryCall {
                    session: &session,
                    repository: remote.folder,
                    options: &self.options,
                    url: remote.url,
                    size,
                },
                repository,
                store: &self.store,
                commits: &self.commits,
                revision,
                kept: remote.kept,
            };
            fetch.run().await
        };
        match fetch(Size::Small).await {
            Err(Error::Git {
                failure: GitFailure::OutOfMemory,
                ..
            }) => fetch(Size::Large).await,
            other => other,
        }
    }
}
