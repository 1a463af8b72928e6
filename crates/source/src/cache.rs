//! Git cache of the controller: one bare shallow repository per URL and credentials.

mod collect;
mod commits;
mod facts;
mod fetch;
mod known;
mod lazy_session;
mod ls_refs;
mod options;
mod pack;
mod refs;
mod repositories;
mod size;
mod store;
mod submodules;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::collect::{RepositoryCall, WantedModule};
use self::commits::Commit;
use self::facts::KnownFacts;
use self::fetch::KEPT;
use self::known::{KnownContext, KnownContexts, SelectionId};
pub use self::ls_refs::LsRefs;
pub use self::options::CacheOptions;
use self::options::LISTING;
pub use self::refs::Listing;
pub use self::repositories::GitCache;
use self::repositories::{Question, RemoteRepository};
use self::size::{ConcurrencyLimits, Size, is_too_large};
use self::store::Store;
use self::submodules::Selected;
use crate::{
    context::{Allows, Context, ContextSpec, Newest},
    credentials::Credentials,
    error::Error,
    fair_semaphore::Permit,
    git::{self, Bounds},
    packed::PackedContext,
    reference::{Reference, Revision},
    url::{RepositoryUrl, Scheme},
};

impl GitCache {
    /// Opens a cache below `root` with default limits. Only one process may use `root`. Removes temporary files of an earlier process,
    /// including the credentials of killed git calls.
    ///
    /// # Errors
    /// If `root` cannot be created, or if its path contains characters other than letters, digits and `/._-`.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::with_options(root, CacheOptions::default())
    }

    /// Opens a cache below `root` with the given limits.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_options(root: impl Into<PathBuf>, options: CacheOptions) -> Result<Self, Error> {
        Ok(Self {
            store: Arc::new(Store::open(root.into())?),
            commits: Arc::default(),
            facts: KnownFacts::default(),
            known: Arc::default(),
            remotes: ConcurrencyLimits::of_remotes(options.at_once),
            reading: ConcurrencyLimits::of_reads(options.at_once.div_ceil(2)),
            options: Arc::new(options),
            tenant: Arc::default(),
        })
    }

    /// Returns a clone of the cache for calls of `tenant`, for example a namespace. The tenants get equal shares of the concurrency limits.
    #[must_use]
    pub fn of_tenant(&self, tenant: &str) -> Self {
        Self {
            tenant: tenant.into(),
            ..self.clone()
        }
    }

    /// Returns the current commit of `reference` at the remote. Sends no request if `reference` is a commit id.
    ///
    /// # Errors
    /// The errors of [`references`](Self::references), and an error if the remote does not have the reference.
    pub async fn resolve(
        &self,
        url: &RepositoryUrl,
        reference: &Reference,
        credentials: &Credentials,
    ) -> Result<Revision, Error> {
        let references = BTreeSet::from([reference.clone()]);
        self.references(url, &references, credentials)
            .await?
            .find(reference)
    }

    /// Requests the current commits of `references` with one `git ls-remote`. Sends no request if `references` contains only commit ids.
    ///
    /// # Errors
    /// If the remote refuses the request, or if git fails.
    pub async fn references(
        &self,
        url: &RepositoryUrl,
        references: &BTreeSet<Reference>,
        credentials: &Credentials,
    ) -> Result<Listing, Error> {
        let names: BTreeSet<String> = references.iter().flat_map(refs::names).collect();
        if names.is_empty() {
            return Ok(Listing::new(url.remote(), String::new()));
        }
        let _permit = self.remote_permit().await;
        let session = self.session(url, credentials);
        let bounds = Bounds {
            time: self.options.resolve_timeout,
            stdout: LISTING,
            memory: Size::Small.process(),
        };
        let mut arguments = vec!["ls-remote", "--symref", "--", url.remote()];
        arguments.extend(names.iter().map(String::as_str));
        let action = "read the references of";
        let listing = session
            .get()
            .await?
            .git(self.store.calls(), action, &arguments, Vec::new(), bounds)
            .await?;
        let listing = String::from_utf8_lossy(&listing).into_owned();
        Ok(Listing::new(url.remote(), listing))
    }

    /// Returns the query with which an HTTP client lists `references` like [`references`](Self::references). `None` if `url` is an ssh URL, if the
    /// environment of git has a proxy for `url`, if all references are commit ids, or if there are more than 4096 names.
    pub fn ls_refs(&self, url: &RepositoryUrl, references: &BTreeSet<Reference>) -> Option<LsRefs> {
        let is_http = url.scheme() != Scheme::Ssh;
        let is_direct = !git::has_proxy(&self.options.environment, url.scheme());
        (is_http && is_direct)
            .then(|| LsRefs::new(url, references))
            .flatten()
    }

    /// Returns the certificates in PEM format that git trusts for a repository with these CA certificates. `None` if a file that the environment
    /// of git names is unreadable.
    pub fn trusted_certificates(&self, ca_bundle: Option<&str>) -> Option<String> {
        git::trusted_certificates(&self.options.environment, ca_bundle)
    }

    /// Waits for a permit to send requests to a remote. Git calls to remotes have the same limit.
    pub async fn remote_permit(&self) -> Option<Permit> {
        self.remotes.acquire(Size::Small, &self.tenant).await
    }

    /// Fetches `revision` if necessary, and packs the files that the module needs. Reads a newer commit of the same reference if another caller has
    /// fetched one in the meantime.
    ///
    /// Concurrent fetches into one repository of the cache run one after the other. If a repository of the cache is damaged, removes it and fetches
    /// it once more. Submodules are fetched only from repositories that `allows` accepts.
    ///
    /// # Errors
    /// If the remote refuses the request, if the module is invalid, or if git or the cache fails.
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

    /// Fetches and packs like [`fetch_context`](Self::fetch_context). If this cache has already packed the same files, does not pack them again,
    /// and [`Context::archive`] is `None`. Also returns the revision that was read.
    ///
    /// Calls `newest`, and again after a wait for another fetch into the repository. Fetches the returned revision, unless another caller has fetched
    /// a commit of the reference in the meantime. Then waits for a read permit and calls `newest` again. If the cache already has this last
    /// revision, reads it, otherwise the fetched commit.
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
        let context = self
            .context(&question, &mut revision, newest, &self.known)
            .await;
        (revision, context)
    }

    /// Fetches `revision` or a newer commit of its reference ([`Self::commit`]), waits for a read permit, and then calls `newest`. If the cache already
    /// has the revision that `newest` returns, reads that revision, otherwise the fetched one. Sets `revision` to the revision that was read.
    async fn context(
        &self,
        question: &Question<'_>,
        revision: &mut Revision,
        newest: Newest<'_>,
        known: &KnownContexts,
    ) -> Result<Context, Error> {
        let module = WantedModule {
            path: &question.spec.module_path(question.url)?,
            include: &question.spec.includes()?,
            var_files: question.spec.valid_var_files()?,
            submodules: question.spec.submodules,
            wrapper: question.spec.wrapper,
            allows: question.allows,
        };
        let commit = self.fetched(question, revision, newest).await?;
        let permit = self.reading.acquire(Size::Small, &self.tenant).await;
        let newer = newest();
        let commit = self
            .commits
            .get(&self.folder(question, &newer), &newer)
            .unwrap_or(commit);
        revision.clone_from(&commit.revision);
        match self.read(question, &module, &commit, permit, known).await {
            Err(error) if store::is_own_fault(&error) => {
                tracing::warn!(
                    %error,
                    remote = question.url.remote(),
                    "the git cache is damaged; fetching the repository again"
                );
                self.clear(&commit).await?;
                let commit = self.fetched(question, revision, newest).await?;
                let permit = self.reading.acquire(Size::Small, &self.tenant).await;
                self.read(question, &module, &commit, permit, known).await
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

    /// Returns the commit of `revision`, or a newer commit of the same reference, like [`GitCache::commit`].
    async fn fetched(
        &self,
        question: &Question<'_>,
        revision: &mut Revision,
        newest: Newest<'_>,
    ) -> Result<Commit, Error> {
        let folder = self.folder(question, revision);
        let remote = RemoteRepository {
            folder: &folder,
            url: question.url,
            credentials: question.credentials,
            kept: KEPT,
        };
        let asked = revision.clone();
        // A commit id of another object format belongs to another repository of the cache.
        let newest = || {
            let newest = newest();
            if newest.commit.as_str().len() == asked.commit.as_str().len() {
                newest
            } else {
                asked.clone()
            }
        };
        self.commit(&remote, revision, &newest).await
    }

    /// Removes the repository of `commit` from the cache. Does nothing if another call has removed the repository since the caller got `commit`.
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
        module: &WantedModule<'_>,
        commit: &Commit,
        permit: Option<Permit>,
        known: &KnownContexts,
    ) -> Result<Context, Error> {
        let session = self.session(question.url, question.credentials);
        let read = async |size, permit| {
            let call = RepositoryCall {
                session: &session,
                repository: &commit.repository,
                options: &self.options,
                url: question.url,
                size,
            };
            self.read_with(&call, question, module, commit, permit, known)
                .await
        };
        match read(Size::Small, permit).await {
            Err(error) if is_too_large(&error) => {
                let permit = self.reading.acquire(Size::Large, &self.tenant).await;
                read(Size::Large, permit).await
            }
            other => other,
        }
    }

    async fn read_with(
        &self,
        call: &RepositoryCall<'_>,
        question: &Question<'_>,
        module: &WantedModule<'_>,
        commit: &Commit,
        permit: Option<Permit>,
        known: &KnownContexts,
    ) -> Result<Context, Error> {
        let Selected {
            selection,
            snapshot,
            files: _files,
            permit: _permit,
        } = self.select(call, question, module, commit, permit).await?;
        if let Some(why) = &selection.whole {
            tracing::info!(
                remote = question.url.remote(),
                path = module.path,
                why,
                "cannot determine the files that the module needs; the context contains the whole repository"
            );
        }
        let repository = commit.repository.clone();
        let identified = move || (SelectionId::of(&repository, &selection), selection);
        let (id, selection) = call.unblocked(identified).await?;
        let (selection, KnownContext { digest, size }, archive) =
            if let Some(known) = known.get(&id) {
                (selection, known, None)
            } else {
                let (selection, packed) = call.pack(selection, self.store.contexts()).await?;
                let PackedContext { digest, size, file } = packed;
                let packed = KnownContext { digest, size };
                known.put(id, packed.clone());
                (selection, packed, Some(file))
            };
        Ok(Context {
            digest,
            size,
            archive,
            module_path: module.path.to_owned(),
            module_backend: selection.backend,
            commit: snapshot.commit.clone(),
            files: selection.entries.len(),
            uncompressed: selection.entries.values().map(|entry| entry.size).sum(),
            submodules: selection.submodules,
        })
    }

    /// Returns the folder of packed contexts. Files of an earlier process are removed.
    pub fn contexts(&self) -> &Path {
        self.store.contexts()
    }

    /// Removes repositories that have not been used for `idle` or longer. Returns the number of removed repositories.
    ///
    /// # Errors
    /// If the folder of the cache cannot be read.
    pub fn sweep(&self, idle: Duration) -> Result<usize, Error> {
        self.store.sweep(idle)
    }
}
