//! Request for a token, with the proxies of the operator and the certificate authorities of the repository.

use std::time::Duration;

use alustan_api::Reason;
use alustan_api::report::{Failure, FailureClass};
use k8s_openapi::jiff::Timestamp;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Certificate, Client, redirect};
use serde_json::json;

use crate::error::with_causes;
use crate::github_app::jwt::jwt;
use crate::github_app::response::{Token, TokenFailure, TokenResponse};
use crate::github_app::{FIELD, GitHubApp, PRIVATE_KEY};
use crate::response_body;

/// Timeout of the request, including the response.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a response, in bytes. A response with a token has less than 8 KiB, of which the list of repositories is the largest part.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Requests a token of `app`. `now` is the time in the signature of the request.
///
/// # Errors
/// The failure, which contains neither key nor signature.
pub(crate) async fn request(app: &GitHubApp, now: Timestamp) -> Result<Token, TokenFailure> {
    let jwt = jwt(&app.app_id, app.key.expose(), now).map_err(|why| {
        let message = format!(
            "{FIELD}.secretRef: key {PRIVATE_KEY} of Secret {} {why}; use the .pem file that GitHub \
             generated for the App",
            app.secret
        );
        Failure::user(Reason::InvalidGitHubApp, message)
    })?;
    let body = json!({
        "repositories": app.repositories, "permissions": {"contents": "read"},
    });
    let request = client(app)?
        .post(app.token_url())
        .bearer_auth(&jwt)
        .header(ACCEPT, "application/vnd.github+json")
        .header("x-github-api-version", "2022-11-28")
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string());
    let mut response = request.send().await.map_err(|error| failed(app, error))?;
    let body = response_body::read(&mut response, MAX_RESPONSE_BYTES)
        .await
        .map_err(|error| failed(app, error))?
        .ok_or_else(|| {
            let why = format!("the response has more than {MAX_RESPONSE_BYTES} bytes");
            app.failure(FailureClass::User, Reason::GitFailed, &why)
        })?;
    let answer = TokenResponse {
        status: response.status().as_u16(),
        retry_after: header(response.headers(), "retry-after"),
        remaining: header(response.headers(), "x-ratelimit-remaining"),
        reset: header(response.headers(), "x-ratelimit-reset"),
        body,
    };
    answer.read(app, &jwt, now)
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// Returns an HTTP client that follows no redirects: a redirect would send the signature to another URL.
fn client(app: &GitHubApp) -> Result<Client, Failure> {
    let unreadable =
        |why: String| app.failure(FailureClass::User, Reason::GitAuthorityUnreadable, &why);
    let certificates = app.ca_bundle.as_deref().unwrap_or_default();
    let certificates = Certificate::from_pem_bundle(certificates.as_bytes()).map_err(|_| {
        let why = "gitRepo.caBundle, ca.crt of the Secret or --ca-file is not a PEM certificate";
        unreadable(why.to_owned())
    })?;
    Client::builder()
        .user_agent(concat!("alustan/", env!("CARGO_PKG_VERSION")))
        .timeout(TIMEOUT)
        .https_only(true)
        .redirect(redirect::Policy::none())
        .tls_certs_merge(certificates)
        .build()
        .map_err(|error| unreadable(with_causes(&error)))
}

/// Returns the failure of a request without a response. The message has no URL besides that of the API.
fn failed(app: &GitHubApp, error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let why = with_causes(&error);
    if error.is_timeout() {
        return app.failure(FailureClass::Transient, Reason::GitTimeout, &why);
    }
    if why.to_lowercase().contains("certificate") {
        let why = format!(
            "{why}; set the certificate authority of the host in gitRepo.caBundle, or under ca.crt of \
             Secret {}",
            app.secret
        );
        return app.failure(FailureClass::User, Reason::GitTlsFailed, &why);
    }
    app.failure(FailureClass::Transient, Reason::RepositoryUnreachable, &why)
}
