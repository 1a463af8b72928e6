//! What the references of repositories are at. Those of one repository that are wanted in the same
//! moment are asked for together.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::report::Failure;
use alustan_source::{Credentials, GitCache, Listing, Reference, RepositoryUrl};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;

/// How long a question waits for others to the same repository.
const GATHER: Duration = Duration::from_millis(50);

/// A repository, by address and credentials.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) url: RepositoryUrl,
    pub(crate) credentials: Credentials,
    /// Tells two of them apart, without a word of the credentials.
    pub(crate) identity: String,
    /// The namespace on whose turn it is asked.
    pub(crate) tenant: String,
}

/// The questions that gather.
pub(crate) struct References {
    git: Arc<GitCache>,
    gathering: Mutex<HashMap<String, Gathering>>,
}

struct Gathering {
    wanted: BTreeSet<Reference>,
    listing: Shared<BoxFuture<'static, Result<Listing, Failure>>>,
}

impl References {
    /// Nothing asked yet; `git` asks.
    pub(crate) fn new(git: Arc<GitCache>) -> Arc<Self> {
        Arc::new(Self {
            git,
            gathering: Mutex::default(),
        })
    }

    /// What `remote` says of `reference` and, in the same answer, of others that were wanted with it.
    ///
    /// # Errors
    /// Why it does not say anything.
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
