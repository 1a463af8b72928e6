//! Lists references of git repositories over HTTP without a git process, in version 2 of the git protocol:
//! <https://git-scm.com/docs/gitprotocol-http>. For any other response, falls back to `git ls-remote`, which reports failures.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use alustan_source::{
    Credentials, Error, GitCache, Listing, LsRefs, Reference, RepositoryUrl, Scheme,
};
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE, PRAGMA};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::error::with_causes;
use crate::response_body;

/// End of the URL of an advertisement.
const INFO_REFS: &str = "/info/refs?service=git-upload-pack";
/// Some hosts recognize git clients by a user agent that starts with `git/`.
const USER_AGENT: &str = concat!("git/2.0 (alustan ", env!("CARGO_PKG_VERSION"), ")");
/// Timeout of all requests for one listing. Git then has its own timeout.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of redirects of the request for an advertisement.
const MAX_REDIRECTS: usize = 3;
/// Time after which unused connections are closed. Queries of many repositories of one host share connections.
const MAX_IDLE: Duration = Duration::from_secs(30);
/// Maximum number of clients, each with the certificates and connections of one CA bundle. The oldest client is removed first.
const MAX_CLIENTS: usize = 16;
/// Maximum age of a client. A new client reads the files with certificates again.
const MAX_CLIENT_AGE: Duration = Duration::from_mins(10);
/// Time during which references are listed by git, after git listed references that could not be listed over HTTP.
const GIT_ONLY: Duration = Duration::from_mins(10);

/// Lists references over HTTP, or with git.
#[derive(Default)]
pub(crate) struct SmartHttp {
    /// Clients and the times of their creation, by CA bundle of the repository. The key is empty without a CA bundle.
    clients: Mutex<HashMap<String, (Client, Instant)>>,
    /// Identities of repositories whose references are listed by git until the given time.
    git_only: Mutex<HashMap<String, Instant>>,
}

impl SmartHttp {
    /// Lists `references` of `url`. Uses [`GitCache::references`] if the server cannot be queried over HTTP, or does not return a listing.
    /// `identity` identifies URL and credentials.
    ///
    /// # Errors
    /// The errors of [`GitCache::references`].
    pub(crate) async fn references(
        &self,
        git: &GitCache,
        url: &RepositoryUrl,
        identity: &str,
        references: &BTreeSet<Reference>,
        credentials: &Credentials,
    ) -> Result<Listing, Error> {
        let query = git
            .ls_refs(url, references)
            .filter(|_| !self.is_git_only(identity));
        let Some(query) = query else {
            return git.references(url, references, credentials).await;
        };
        match self.list(git, url, &query, credentials).await {
            Ok(listing) => Ok(listing),
            Err(error) => {
                debug!(repository = %url, %error, "failed to list references over HTTP, using git");
                let listing = git.references(url, references, credentials).await;
                // A server that refuses a login counts it. It gets no second one in the next intervals.
                if listing.is_ok() || matches!(error, NoListing::Response(_)) {
                    self.use_git(identity);
                }
                listing
            }
        }
    }

    fn is_git_only(&self, identity: &str) -> bool {
        let git_only = self.git_only.lock();
        let until = git_only.get(identity);
        until.is_some_and(|until| Instant::now() < *until)
    }

    fn use_git(&self, identity: &str) {
        let now = Instant::now();
        let mut git_only = self.git_only.lock();
        git_only.retain(|_, until| now < *until);
        git_only.insert(identity.to_owned(), now + GIT_ONLY);
    }

    /// Sends the requests.
    async fn list(
        &self,
        git: &GitCache,
        url: &RepositoryUrl,
        query: &LsRefs,
        credentials: &Credentials,
    ) -> Result<Listing, NoListing> {
        let _permit = git.remote_permit().await;
        let client = self.client(git, credentials.ca_bundle.as_deref());
        let client = client.map_err(NoListing::Request)?;
        timeout(TIMEOUT, request(&client, url, query, credentials))
            .await
            .map_err(|_| NoListing::Request(format!("timed out after {} s", TIMEOUT.as_secs())))?
    }

    /// Returns the client for repositories with this CA bundle.
    fn client(&self, git: &GitCache, ca_bundle: Option<&str>) -> Result<Client, String> {
        let mut clients = self.clients.lock();
        clients.retain(|_, (_, created_at)| created_at.elapsed() < MAX_CLIENT_AGE);
        if let Some((client, _)) = clients.get(ca_bundle.unwrap_or_default()) {
            return Ok(client.clone());
        }
        let oldest = clients
            .iter()
            .min_by_key(|(_, (_, created_at))| *created_at)
            .filter(|_| clients.len() >= MAX_CLIENTS)
            .map(|(bundle, _)| bundle.clone());
        if let Some(oldest) = oldest {
            clients.remove(&oldest);
        }
        let trusted = git.trusted_certificates(ca_bundle);
        let client = new_client(&trusted.ok_or("a certificate bundle is unreadable")?)?;
        let key = ca_bundle.unwrap_or_default().to_owned();
        clients.insert(key, (client.clone(), Instant::now()));
        Ok(client)
    }
}

/// Why there is no listing. Contains no credentials.
#[derive(Debug, thiserror::Error)]
enum NoListing {
    /// The request was not sent, or not answered completely.
    #[error("{0}")]
    Request(String),
    /// The response is not a listing.
    #[error("{0}")]
    Response(String),
}

/// Returns a client that trusts the certificates in `pem`, and uses no proxy.
fn new_client(pem: &str) -> Result<Client, String> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| with_causes(&error))?;
    let mut roots = RootCertStore::empty();
    // Ignores certificates that rustls cannot parse: the bundle of the system may contain some.
    roots.add_parsable_certificates(certificates);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| with_causes(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Client::builder()
        .user_agent(USER_AGENT)
        .tls_backend_preconfigured(config)
        .no_proxy()
        .referer(false)
        .pool_idle_timeout(MAX_IDLE)
        .redirect(Policy::custom(follow_on_same_host))
        .build()
        .map_err(|error| with_causes(&error))
}

/// Follows a redirect from an advertisement to an advertisement with the same scheme, host and port. Git follows such redirects, too
/// (`http.followRedirects=initial`). Other hosts never get credentials.
fn follow_on_same_host(attempt: Attempt<'_>) -> Action {
    let (to, previous) = (attempt.url(), attempt.previous());
    let is_allowed = previous.len() <= MAX_REDIRECTS
        && to.username().is_empty()
        && to.password().is_none()
        && to.as_str().ends_with(INFO_REFS)
        && previous
            .iter()
            .all(|from| from.origin() == to.origin() && from.as_str().ends_with(INFO_REFS));
    if is_allowed {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

async fn request(
    client: &Client,
    url: &RepositoryUrl,
    query: &LsRefs,
    credentials: &Credentials,
) -> Result<Listing, NoListing> {
    let text = format!("{}{INFO_REFS}", url.remote());
    let info_refs = Url::parse(&text).map_err(|error| NoListing::Request(with_causes(&error)))?;
    if info_refs.as_str() != text {
        let reason = "the URL is not in the normal form of the HTTP client";
        return Err(NoListing::Request(reason.to_owned()));
    }
    let unusable = |reason: &str| NoListing::Response(reason.to_owned());
    let request = client.get(info_refs).header(PRAGMA, "no-cache");
    let response = send(request, url, credentials).await?;
    let repository = response.url().as_str().strip_suffix(INFO_REFS);
    let repository =
        repository.ok_or_else(|| unusable("the redirect does not lead to an advertisement"))?;
    let upload_pack = format!("{repository}/git-upload-pack");
    let kind = "application/x-git-upload-pack-advertisement";
    let advertisement = body(response, kind, LsRefs::ADVERTISEMENT_BYTES).await?;
    let body_to_send = query.request(&advertisement).ok_or_else(|| {
        unusable("the server does not offer version 2 of the protocol with SHA-1")
    })?;
    let kind = "application/x-git-upload-pack-result";
    let request = client
        .post(upload_pack)
        .header(CONTENT_TYPE, "application/x-git-upload-pack-request")
        .header(ACCEPT, kind)
        .body(body_to_send);
    let response = send(request, url, credentials).await?;
    let response = body(response, kind, LsRefs::RESPONSE_BYTES).await?;
    let listing = query.listing(&response);
    listing.ok_or_else(|| unusable("the response to ls-refs is not a listing"))
}

/// Sends `request` in version 2 of the protocol. Sends user name and password only over TLS: without TLS, git sends them only if the server
/// requires authentication.
async fn send(
    request: RequestBuilder,
    url: &RepositoryUrl,
    credentials: &Credentials,
) -> Result<Response, NoListing> {
    let mut request = request.header("git-protocol", "version=2");
    let https = credentials.https.as_ref();
    if let Some(https) = https.filter(|_| url.scheme() == Scheme::Https) {
        let (username, password) = (https.username.expose(), https.password.expose());
        if [username, password]
            .iter()
            .any(|text| text.contains(char::is_control))
        {
            let reason = "user name or password contains a control character";
            return Err(NoListing::Request(reason.to_owned()));
        }
        request = request.basic_auth(username, Some(password));
    }
    let response = request.send().await;
    response.map_err(|error| NoListing::Request(with_causes(&error.without_url())))
}

/// Returns the body of a successful `response` of type `kind` with at most `most` bytes.
async fn body(mut response: Response, kind: &str, most: usize) -> Result<Vec<u8>, NoListing> {
    let (status, content_type) = (response.status(), response.headers().get(CONTENT_TYPE));
    if status != StatusCode::OK {
        let reason = format!("the server responded with status {status}");
        return Err(NoListing::Response(reason));
    }
    if content_type.is_none_or(|value| value != kind) {
        let reason = format!("the Content-Type is not {kind}");
        return Err(NoListing::Response(reason));
    }
    response_body::read(&mut response, most)
        .await
        .map_err(|error| NoListing::Request(with_causes(&error.without_url())))?
        .ok_or_else(|| NoListing::Response(format!("the response has more than {most} bytes")))
}

#[cfg(test)]
mod tests;
