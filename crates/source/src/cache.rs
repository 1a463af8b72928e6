//! One bare shallow repository per address and credentials, and what is read from it. Called by the controller.

mod collect;
mod commits;
mod facts;
mod fetch;
mod known;
mod options;
mod pack;
mod refs;
mod repositories;
mod store;
mod submodules;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use self::collect::{Call, WantedModule};
use self::commits::Commit;
use self::facts::KnownFacts;
use self::fetch::KEPT;
use self::known::{KnownContext, KnownContexts, SelectionId};
pub use self::options::CacheOptions;
use self::options::LISTING;
pub use self::refs::Listing;
pub use self::repositories::GitCache;
use self::repositories::Question;
use self::store::Store;
use self::submodules::Selected;
use crate::{
    context::{Allows, Context, ContextDigest, ContextSpec, Newest},
    credentials::Credentials,
    error::Error,
    git::Bounds,
    reference::{Reference, Revision},
    turns::{Turn, Turns},
    url::RepositoryUrl,
};

impl GitCache {
    /// A cache below `root`, with default limits. One process per root: what an earlier one left of its calls
    /// (credentials of a killed call too) is removed.
    ///
    /// # Errors
    /// When the folder cannot be made, or its name holds more than letters, digits and `/._-`.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::with_options(root, CacheOptions::default())
    }

    /// A cache below `root` with limits of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_options(root: impl Into<PathBuf>, options: CacheOptions) -> Result<Self, Error> {
        Ok(Self {
            store: Arc::new(Store::open(root.into())?),
            commits: Arc::default(),
            facts: KnownFacts::default(),
            known: Arc::default(),
            turns: Turns::new(options.at_once),
            reading: Turns::new(options.at_once),
            options: Arc::new(options),
            tenant: Arc::default(),
        })
    }

    /// The same cache for the calls of `tenant`: tenants take turns.
    #[must_use]
    pub fn of_tenant(&self, tenant: &str) -> Self {
        Self {
            tenant: tenant.into(),
            ..self.clone()
        }
    }

    /// Asks the remote for the commit that `reference` is at now. A commit is what it is, and nobody is asked.
    ///
    /// # Errors
    /// As [`references`](Self::references), and what the remote does not have.
    pub async fn resolve(
        &self,
        url: &RepositoryUrl,
        reference: &Reference,
        credentials: &Credentials,
    ) -> Result<Revision, Error> {
        let wanted = BTreeSet::from([reference.clone()]);
        self.references(url, &wanted, credentials)
            .await?
            .find(reference)
    }

    /// Asks the remote once for the commits that `wanted` are at now (`git ls-remote`); not at all if all of them
    /// are commits.
    ///
    /// # Errors
    /// What the remote refuses, and everything that can happen on the way.
    pub async fn references(
        &self,
        url: &RepositoryUrl,
        wanted: &BTreeSet<Reference>,
        credentials: &Credentials,
    ) -> Result<Listing, Error> {
        let names: BTreeSet<String> = wanted.iter().flat_map(refs::names).collect();
        if names.is_empty() {
            return Ok(Listing::new(url.remote(), String::new()));
        }
        let _turn = self.turns.take(&self.tenant).await;
        let session = self.session(url, credentials)?;
        let bounds = Bounds {
            time: self.options.resolve_timeout,
            stdout: LISTING,
        };
        let mut arguments = vec!["ls-remote", "--symref", "--", url.remote()];
        arguments.extend(names.iter().map(String::as_str));
        let action = "read the references of";
        let listing = session
            .git(self.store.calls(), action, &arguments, Vec::new(), bounds)
            .await?;
        let listing = String::from_utf8_lossy(&listing).into_owned();
        Ok(Listing::new(url.remote(), listing))
    }

    /// Fetches `revision` unless it is there, and packs what the module needs.
    ///
    /// Fetches into one repository queue. A cache that cannot be used is removed once. Submodules are fetched only from
    /// repositories that `allows` accepts.
    ///
    /// # Errors
    /// What the remote refuses, what is wrong in the module, and everything that can happen on the way.
    pub async fn fetch_context(
        &self,
        url: &RepositoryUrl,
        revision: &Revision,
        spec: &ContextSpec,
        credentials: &Credentials,
        allows: Allows<'_>,
    ) -> Result<Context, Error> {
        let question = Question {
            url,
            spec,
            credentials,
            allows,
        };
        let nothing = KnownContexts::default();
        let newest = || revision.clone();
        self.context(&question, &mut revision.clone(), &newest, &nothing)
            .await
    }

    /// Like [`fetch_context`](Self::fetch_context), but does not pack the same files a second time. Also returns the revision that was
    /// read.
    ///
    /// A question waits for a fetch and then for its turn to read. At its turn, the `newest` revision is read if it is fetched already.
    pub async fn find_context(
        &self,
        url: &RepositoryUrl,
        newest: Newest<'_>,
        spec: &ContextSpec,
        credentials: &Credentials,
        allows: Allows<'_>,
    ) -> (Revision, Result<Context, Error>) {
        let question = Question {
            url,
            spec,
            credentials,
            allows,
        };
        let mut revision = newest();
        let found = self
            .context(&question, &mut revision, newest, &self.known)
            .await;
        (revision, found)
    }

    /// Returns the context at `revision`. Sets `revision` to the `newest` one if that is fetched at the turn of the question.
    async fn context(
        &self,
        question: &Question<'_>,
        revision: &mut Revision,
        newest: Newest<'_>,
        known: &KnownContexts,
    ) -> Result<Context, Error> {
        let wanted = WantedModule {
            path: &question.spec.module_path(question.url)?,
            include: &question.spec.includes()?,
            submodules: question.spec.submodules,
            allows: question.allows,
        };
        let commit = self.fetched(question, revision).await?;
        let turn = self.reading.take(&self.tenant).await;
        let newer = newest();
        let newer = self.commits.get(&self.folder(question, &newer), &newer);
        let commit = newer.unwrap_or(commit);
        revision.clone_from(&commit.revision);
        match self.read(question, &wanted, &commit, turn, known).await {
            Err(error) if store::is_own_fault(&error) => {
                tracing::warn!(%error, remote = question.url.remote(), "git cache made anew");
                self.clear(&commit).await?;
                let commit = self.fetched(question, revision).await?;
                let turn = self.reading.take(&self.tenant).await;
                self.read(question, &wanted, &commit, turn, known).await
            }
            other => other,
        }
    }

    fn folder(&self, question: &Question<'_>, revision: &Revision) -> PathBuf {
        let Question {
            url, credentials, ..
        } = question;
        self.store.path(url, credentials, &revision.commit)
    }

    async fn fetched(&self, question: &Question<'_>, revision: &Revision) -> Result<Commit, Error> {
        let folder = self.folder(question, revision);
        let (url, credentials) = (question.url, question.credentials);
        self.commit(&folder, url, credentials, revision, KEPT).await
    }

    /// Removes the repository of `commit`, unless that was done since `commit` was found.
    async fn clear(&self, commit: &Commit) -> Result<(), Error> {
        let repository = self.store.lock(&commit.repository).await;
        if self.commits.holds(commit) {
            self.commits.forget(&commit.repository);
            repository.clear().await?;
        }
        Ok(())
    }

    async fn read(
        &self,
        question: &Question<'_>,
        wanted: &WantedModule<'_>,
        commit: &Commit,
        turn: Option<Turn>,
        known: &KnownContexts,
    ) -> Result<Context, Error> {
        let session = self.session(question.url, question.credentials)?;
        let call = Call {
            session: &session,
            repository: &commit.repository,
            options: &self.options,
            url: question.url,
        };
        let Selected {
            selection,
            snapshot,
            files,
            turn: _turn,
        } = self.select(&call, question, wanted, commit, turn).await?;
        if let Some(why) = &selection.whole {
            tracing::info!(
                remote = question.url.remote(),
                path = wanted.path,
                why,
                "the whole repository is the context"
            );
        }
        let repository = commit.repository.clone();
        let identified = move || (SelectionId::of(&repository, &selection), selection);
        let (id, selection) = call.unblocked(identified).await?;
        let (selection, packed, bytes) = if let Some(packed) = known.get(&id) {
            (selection, packed, None)
        } else {
            let objects = selection.entries.values();
            let objects = objects.map(|entry| entry.object.as_str());
            let contents = call.contents(objects, self.options.context_bytes).await?;
            drop(files);
            let (selection, bytes) = pack::pack(selection, contents).await?;
            let packed = KnownContext {
                digest: ContextDigest::of(&bytes),
                size: bytes.len(),
            };
            known.put(id, packed.clone());
            (selection, packed, Some(bytes))
        };
        Ok(Context {
            digest: packed.digest,
            size: packed.size,
            bytes,
            module_path: wanted.path.to_owned(),
            module_backend: selection.backend,
            committed_at: snapshot.committed_at,
            files: selection.entries.len(),
            uncompressed: selection.entries.values().map(|entry| entry.size).sum(),
            submodules: selection.submodules,
        })
    }

    /// Removes repositories that were not used for `idle`, and tells how many.
    ///
    /// # Errors
    /// When the cache's folder cannot be read.
    pub fn sweep(&self, idle: Duration) -> Result<usize, Error> {
        self.store.sweep(idle)
    }
}
