//! Queries of references. Concurrent queries to the same repository share one request.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_source::{Credentials, GitCache, Listing, Reference, RepositoryUrl};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;

/// Time during which queries to the same repository are collected.
const GATHER: Duration = Duration::from_millis(50);

/// Repository, by URL and credentials.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) url: RepositoryUrl,
    pub(crate) credentials: Credentials,
    /// Identity of URL and credentials, without secret values.
    pub(crate) identity: String,
    /// Namespace to which the concurrency limit counts the request.
    pub(crate) tenant: String,
}

/// Queries that are being collected.
pub(crate) struct References {
    git: Arc<GitCache>,
    gathering: Mutex<HashMap<String, Gathering>>,
}

struct Gathering {
    wanted: BTreeSet<Reference>,
    listing: Shared<BoxFuture<'static, Result<Listing, Failure>>>,
}

impl References {
    /// Creates an empty collection. `git` sends the requests.
    pub(crate) fn new(git: Arc<GitCache>) -> Arc<Self> {
        Arc::new(Self {
            git,
            gathering: Mutex::default(),
        })
    }

    /// Returns the references of `remote`: `reference`, and others that were queried at the same time.
    ///
    /// # Errors
    /// The failure of the request.
    pub(crate) async fn list(
        self: &Arc<Self>,
        remote: &Remote,
        reference: &Reference,
    ) -> Result<Listing, Failure> {
        let listing = {
            let mut all = self.gathering.lock();
            let gathering = all.entry(remote.identity.clone()).or_insert_with(|| {
                let ask = self.clone().ask(remote.clone()).boxed().shared();
                Gathering {
                    wanted: BTreeSet::new(),
                    listing: ask,
                }
            });
            gathering.wanted.insert(reference.clone());
            gathering.listing.clone()
        };
        listing.await
    }

    async fn ask(self: Arc<Self>, remote: Remote) -> Result<Listing, Failure> {
        tokio::time::sleep(GATHER).await;
        let gathered = {
            let mut all = self.gathering.lock();
            all.remove(&remote.identity)
        };
        let wanted = gathered.map(|it| it.wanted).unwrap_or_default();
        self.git
            .of_tenant(&remote.tenant)
            .references(&remote.url, &wanted, &remote.credentials)
            .await
            .map_err(|error| crate::remote::failure::source(&error))
    }
}
