//! One bare shallow repository per address and credentials, and what is read from it. Called by the controller.

mod collect;
mod facts;
mod fetch;
mod pack;
mod refs;
mod store;
mod submodules;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use self::facts::KnownFacts;
pub use self::refs::Listing;
use self::store::Store;
use crate::{
    context::{Allows, Context, ContextSpec},
    credentials::Credentials,
    error::Error,
    git::{self, Bounds, Session},
    reference::{Reference, Revision},
    turns::{Turn, Turns},
    url::RepositoryUrl,
};

/// Limits of a [`GitCache`].
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Time for one `ls-remote` [30 s].
    pub resolve_timeout: Duration,
    /// Time for one fetch [5 min].
    pub fetch_timeout: Duration,
    /// Time for one call of git that needs no network [1 min].
    pub local_timeout: Duration,
    /// Bytes of a context's files before packing [64 MiB].
    pub context_bytes: u64,
    /// Files in a context [20 000].
    pub context_files: u64,
    /// Bytes that one fetch may bring [2 GiB].
    pub repository_bytes: u64,
    /// Bytes of all repositories together; those that were not used for longest go first [3 GiB].
    pub cache_bytes: u64,
    /// Repositories that are asked or fetched at once; others queue, tenant by tenant [8].
    pub at_once: usize,
    /// What git may know of the machine: search path, proxies, trusted certificates [those of this process].
    pub environment: BTreeMap<String, OsString>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            resolve_timeout: Duration::from_secs(30),
            fetch_timeout: Duration::from_mins(5),
            local_timeout: Duration::from_mins(1),
            context_bytes: 64 << 20,
            context_files: 20_000,
            repository_bytes: 2 << 30,
            cache_bytes: 3 << 30,
            at_once: 8,
            environment: git::environment(),
        }
    }
}

/// Bytes that a list of references or of files may have.
const LISTING: u64 = 64 << 20;

/// The repositories that the operator has seen. Cheap to clone; every method may run many times at once.
#[derive(Clone)]
pub struct GitCache {
    store: Arc<Store>,
    facts: KnownFacts,
    options: Arc<CacheOptions>,
    turns: Arc<Turns>,
    tenant: Arc<str>,
}

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
            facts: KnownFacts::default(),
            turns: Turns::new(options.at_once),
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
        let _turn = self.turn().await;
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

    fn session(&self, url: &RepositoryUrl, credentials: &Credentials) -> Result<Session, Error> {
        Session::open(
            self.store.calls(),
            url,
            credentials,
            &self.options.environment,
        )
    }

    /// Fetches `revision` unless it is there, and packs what the module needs.
    ///
    /// Concurrent calls about one repository queue. A cache that cannot be used is thrown away once. Submodules are fetched only
    /// from repositories that `allows` accepts.
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
        let module_path = spec.module_path(url)?;
        let include = spec.includes()?;
        let repository = self.store.lock(url, credentials, &revision.commit).await;
        let _turn = self.turn().await;
        let session = self.session(url, credentials)?;
        let call = collect::Call {
            session: &session,
            repository: &repository,
            store: &self.store,
            options: &self.options,
            facts: &self.facts,
            credentials,
            url,
            revision,
            kept: fetch::KEPT.to_owned(),
        };
        let wanted = collect::WantedModule {
            path: &module_path,
            include: &include,
            submodules: spec.submodules,
            allows,
        };
        let collected = match call.collect(&wanted).await {
            Err(error) if store::is_own_fault(&error) => {
                tracing::warn!(%error, remote = url.remote(), "git cache made anew");
                repository.clear()?;
                call.collect(&wanted).await?
            }
            other => other?,
        };
        drop(repository);
        collected.pack(module_path).await
    }

    /// A place among those who may call git.
    async fn turn(&self) -> Option<Turn> {
        self.turns.take(&self.tenant).await
    }

    /// Removes repositories that were not used for `idle`, and tells how many.
    ///
    /// # Errors
    /// When the cache's folder cannot be read.
    pub fn sweep(&self, idle: Duration) -> Result<usize, Error> {
        self.store.sweep(idle)
    }
}
