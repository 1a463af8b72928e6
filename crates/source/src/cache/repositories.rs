//! Repositories of the cache. Fetches a commit into the repository from which it is read.

use std::{path::Path, sync::Arc, time::Instant};

use super::{
    collect::Call,
    commits::{Commit, Commits},
    facts::KnownFacts,
    fetch::Fetch,
    known::KnownContexts,
    options::CacheOptions,
    store::{self, Store},
};
use crate::{
    context::{Allows, ContextSpec},
    credentials::Credentials,
    error::Error,
    git::Session,
    reference::Revision,
    turns::Turns,
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
    /// Limits concurrent calls to remotes.
    pub(super) turns: Arc<Turns>,
    /// Limits modules that are read from the cache and packed concurrently.
    pub(super) reading: Arc<Turns>,
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

    /// Returns the commit of `revision` in the repository at `folder` and fetches it if necessary. Callers that waited for a fetch of
    /// the same commit share its failure.
    pub(super) async fn commit(
        &self,
        folder: &Path,
        url: &RepositoryUrl,
        credentials: &Credentials,
        revision: &Revision,
        kept: &str,
    ) -> Result<Commit, Error> {
        let known = || {
            let commit = self.commits.get(folder, revision);
            commit.filter(|_| store::exists(folder))
        };
        if let Some(commit) = known() {
            return Ok(commit);
        }
        let asked = Instant::now();
        let repository = self.store.lock(folder).await;
        if let Some(commit) = known() {
            return Ok(commit);
        }
        if let Some(error) = self.commits.failure(folder, revision, asked) {
            return Err(error);
        }
        let _turn = self.turns.take(&self.tenant).await;
        let session = self.session(url, credentials)?;
        let fetch = Fetch {
            call: Call {
                session: &session,
                repository: folder,
                options: &self.options,
                url,
            },
            repository: &repository,
            store: &self.store,
            commits: &self.commits,
            revision,
            kept,
        };
        match fetch.run().await {
            Ok(()) => Ok(self.commits.fetched(folder, revision)),
            Err(error) => {
                self.commits.failed(folder, revision, error.clone());
                Err(error)
            }
        }
    }
}
