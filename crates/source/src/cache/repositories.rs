//! Fetches commits into the repositories of the git cache.

use std::{path::Path, sync::Arc, time::Instant};

use super::{
    collect::RepositoryCall,
    commits::{Commit, Commits},
    facts::KnownFacts,
    fetch::Fetch,
    known::KnownContexts,
    options::CacheOptions,
    size::{ConcurrencyLimits, Size},
    store::{self, Store},
};
use crate::{
    context::{Allows, ContextSpec},
    credentials::Credentials,
    error::{Error, GitFailure},
    git::Session,
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

impl GitCache {
    /// Opens a git session for `url`.
    pub(super) fn session(
        &self,
        url: &RepositoryUrl,
        credentials: &Credentials,
    ) -> Result<Session, Error> {
        Session::open(
            self.store.calls(),
            url,
            credentials,
            &self.options.environment,
        )
    }

    /// Returns the commit of `revision` in the repository at `folder`. Fetches the commit if necessary. If another caller is already fetching the
    /// same commit, waits for that fetch, and returns its error if it fails.
    pub(super) async fn commit(
        &self,
        folder: &Path,
        url: &RepositoryUrl,
        credentials: &Credentials,
        revision: &Revision,
        kept: &str,
    ) -> Result<Commit, Error> {
        let known = || {
            self.commits
                .get(folder, revision)
                .filter(|_| store::exists(folder))
        };
        if let Some(commit) = known() {
            return Ok(commit);
        }
        let requested_at = Instant::now();
        let repository = self.store.lock(folder).await;
        if let Some(commit) = known() {
            return Ok(commit);
        }
        if let Some(error) = self.commits.failure(folder, revision, requested_at) {
            return Err(error);
        }
        let session = self.session(url, credentials)?;
        let fetch = async |size| {
            let _permit = self.remotes.acquire(size, &self.tenant).await;
            let fetch = Fetch {
                call: RepositoryCall {
                    session: &session,
                    repository: folder,
                    options: &self.options,
                    url,
                    size,
                },
                repository: &repository,
                store: &self.store,
                commits: &self.commits,
                revision,
                kept,
            };
            fetch.run().await
        };
        let fetched = match fetch(Size::Small).await {
            Err(Error::Git {
                failure: GitFailure::OutOfMemory,
                ..
            }) => fetch(Size::Large).await,
            other => other,
        };
        match fetched {
            Ok(()) => Ok(self.commits.fetched(folder, revision)),
            Err(error) => {
                self.commits.failed(folder, revision, error.clone());
                Err(error)
            }
        }
    }
}
