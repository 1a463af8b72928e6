//! Queries of the references of git repositories. Concurrent queries to the same repository share one request.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_core::objects::secrets::TOKEN_USER;
use alustan_core::observed::GitToken;
use alustan_source::{
    Credentials, GitCache, HttpsCredentials, Listing, Reference, RepositoryUrl, SecretString,
};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use k8s_openapi::jiff::SignedDuration;
use parking_lot::Mutex;

use crate::github_app::{AppTokens, GitHubApp, POLL_LEFT};
use crate::remote::failure;
use crate::remote::smart_http::SmartHttp;

/// Time during which queries to the same repository are collected into one request.
const GATHER_TIME: Duration = Duration::from_millis(50);

/// GitHub App whose tokens replace the password of a repository.
#[derive(Clone)]
pub(crate) struct AppLogin {
    pub(crate) app: Arc<GitHubApp>,
    pub(crate) tokens: Arc<AppTokens>,
}

/// Credentials of a repository.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) credentials: Credentials,
    pub(crate) app: Option<AppLogin>,
}

/// Repository, by URL and credentials.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) url: RepositoryUrl,
    pub(crate) login: Login,
    /// Identifies URL and credentials. Contains a digest of the credentials instead of secret values.
    pub(crate) identity: String,
    /// Namespace of the resource that uses the repository. All namespaces have equal shares of the limit on concurrent requests.
    pub(crate) tenant: String,
}

impl Remote {
    /// Returns the credentials for a request. Requests a token if the credentials are those of a GitHub App, and the current token expires
    /// soon.
    ///
    /// # Errors
    /// If no token can be requested.
    pub(crate) async fn credentials(&self) -> Result<Credentials, Failure> {
        let mut credentials = self.login.credentials.clone();
        if let Some(token) = self.token(POLL_LEFT).await? {
            credentials.https = Some(HttpsCredentials {
                username: SecretString::new(TOKEN_USER),
                password: SecretString::new(token.expose()),
            });
        }
        Ok(credentials)
    }

    /// Returns a token of the GitHub App that is valid for at least `left`. `None` without a GitHub App.
    pub(crate) async fn token(&self, left: SignedDuration) -> Result<Option<GitToken>, Failure> {
        let Some(AppLogin { app, tokens }) = &self.login.app else {
            return Ok(None);
        };
        tokens.token(app, &self.tenant, left).await.map(Some)
    }

    /// Handles the failure of a request: if the host refused the token of a GitHub App, the next request gets a new token.
    pub(crate) async fn failed(&self, failure: &Failure) {
        let is_refusal = failure.reason == Reason::GitAuthenticationFailed
            || failure.reason == Reason::RepositoryNotFound;
        if let Some(AppLogin { app, tokens }) = self.login.app.as_ref().filter(|_| is_refusal) {
            tokens.discard(app).await;
        }
    }
}

/// Requests a set of references from a repository.
type Request = Box<
    dyn Fn(Remote, BTreeSet<Reference>) -> BoxFuture<'static, Result<Listing, Failure>>
        + Send
        + Sync,
>;

/// Collects queries of references: queries to the same repository within [`GATHER_TIME`] share one request.
pub(crate) struct References {
    request: Request,
    gathering: Mutex<HashMap<String, Gathering>>,
}

struct Gathering {
    wanted: BTreeSet<Reference>,
    listing: Shared<BoxFuture<'static, Result<Listing, Failure>>>,
}

impl References {
    /// Creates an empty collection. Sends requests over HTTP, or with `git`.
    pub(crate) fn new(git: Arc<GitCache>) -> Arc<Self> {
        let http = Arc::new(SmartHttp::default());
        Self::with(Box::new(move |remote, wanted| {
            let (http, git) = (http.clone(), git.of_tenant(&remote.tenant));
            let listing = async move {
                let credentials = remote.credentials().await?;
                let listing = http
                    .references(&git, &remote.url, &remote.identity, &wanted, &credentials)
                    .await;
                let listing = listing.map_err(|error| failure::source(&error));
                if let Err(failure) = &listing {
                    remote.failed(failure).await;
                }
                listing
            };
            listing.boxed()
        }))
    }

    fn with(request: Request) -> Arc<Self> {
        Arc::new(Self {
            request,
            gathering: Mutex::default(),
        })
    }

    /// Lists references of `remote`. Concurrent queries share one request, so the result may contain more than `reference`.
    ///
    /// # Errors
    /// The failure of the request.
    pub(crate) async fn list(
        self: &Arc<Self>,
        remote: &Remote,
        reference: &Reference,
    ) -> Result<Listing, Failure> {
        let listing = {
            let mut gathering_by_remote = self.gathering.lock();
            let gathering = gathering_by_remote
                .entry(remote.identity.clone())
                .or_insert_with(|| {
                    let listing = self
                        .clone()
                        .request_gathered(remote.clone())
                        .boxed()
                        .shared();
                    Gathering {
                        wanted: BTreeSet::new(),
                        listing,
                    }
                });
            gathering.wanted.insert(reference.clone());
            gathering.listing.clone()
        };
        listing.await
    }

    async fn request_gathered(self: Arc<Self>, remote: Remote) -> Result<Listing, Failure> {
        tokio::time::sleep(GATHER_TIME).await;
        let gathered = {
            let mut gathering_by_remote = self.gathering.lock();
            gathering_by_remote.remove(&remote.identity)
        };
        let wanted = gathered.map(|gathered| gathered.wanted).unwrap_or_default();
        (self.request)(remote, wanted).await
    }
}

#[cfg(test)]
mod tests {
    use alustan_api::report::FailureClass;
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_queries_share_one_request() {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let references = References::with({
            let requests = requests.clone();
            Box::new(move |_, wanted| {
                requests.lock().push(wanted.len());
                let failure = Failure {
                    class: FailureClass::User,
                    reason: "BranchNotFound".to_owned(),
                    message: String::new(),
                };
                async { Err(failure) }.boxed()
            })
        });
        let remote = |host: &str| Remote {
            url: RepositoryUrl::parse(&format!("https://{host}/team/infra")).unwrap(),
            login: Login::default(),
            identity: host.to_owned(),
            tenant: "team".to_owned(),
        };
        let names = ["main", "next", "main"].map(|name| Reference::branch(Some(name)).unwrap());
        let first = remote("one.example");
        let queries = names.iter().map(|name| references.list(&first, name));
        join_all(queries).await;
        assert_eq!(*requests.lock(), [2]);
        let second = remote("other.example");
        let queries = [&first, &second].map(|remote| references.list(remote, &names[0]));
        join_all(queries).await;
        assert_eq!(*requests.lock(), [2, 1, 1]);
    }
}
