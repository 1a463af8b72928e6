//! GitHub Apps (`gitRepo.githubApp`): parses the Secret of an App, and creates tokens of its installation.
//!
//! A token can only read the repository of the resource and the repositories that the spec adds. It exists in memory, in the private
//! folder of a git process, and in the Secret of a build. Neither key nor token implements `Debug`.

mod jwt;
mod request;
mod response;
mod tokens;

use std::collections::BTreeMap;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_core::digest;
use alustan_source::{RepositoryUrl, Scheme, SecretBytes};
use k8s_openapi::ByteString;
use reqwest::Url;

pub(crate) use request::request;
pub(crate) use tokens::{AppTokens, BUILD_LEFT, POLL_LEFT};

/// Field of the spec, for messages.
const FIELD: &str = "spec.gitRepo.githubApp";

/// Key with the id of the App, or its client id.
const APP_ID: &str = "githubAppID";
/// Key with the id of the installation.
const INSTALLATION_ID: &str = "githubAppInstallationID";
/// Key with the private key of the App, in PEM format.
const PRIVATE_KEY: &str = "githubAppPrivateKey";
/// Optional key with the URL of the API.
const BASE_URL: &str = "githubAppBaseURL";
/// Keys that the Secret must have.
pub(crate) const REQUIRED_KEYS: [&str; 3] = [APP_ID, INSTALLATION_ID, PRIVATE_KEY];

/// Maximum size of the private key, in bytes. An RSA key of 16,384 bits has 13 KiB.
const MAX_KEY_BYTES: usize = 16 << 10;
/// Maximum length of an id.
const MAX_ID_LENGTH: usize = 64;

/// A GitHub App, its installation, and the repositories that its tokens can read.
pub(crate) struct GitHubApp {
    /// Name of the Secret, for messages.
    secret: String,
    app_id: String,
    installation_id: u64,
    key: SecretBytes,
    /// URL of the API, without a slash at its end.
    api: String,
    /// Names of the repositories, without their owner.
    repositories: Vec<String>,
    /// PEM certificates to trust in addition to those of the system.
    ca_bundle: Option<String>,
    /// Digest of all other fields that determine the tokens. Tokens with the same identity are interchangeable.
    identity: String,
}

/// Inputs of [`GitHubApp::new`].
pub(crate) struct GitHubAppParts<'a> {
    /// Value of `spec.gitRepo.url`.
    pub(crate) url: &'a str,
    /// Value of `spec.gitRepo.githubApp.repositories`.
    pub(crate) repositories: &'a [String],
    /// Name of the Secret.
    pub(crate) secret: &'a str,
    /// Data of the Secret.
    pub(crate) data: &'a BTreeMap<String, ByteString>,
    /// PEM certificates to trust in addition to those of the system.
    pub(crate) ca_bundle: Option<&'a str>,
}

impl GitHubApp {
    /// Parses the Secret of an App for the repository in `parts`. Parses the private key only when a token is requested.
    ///
    /// # Errors
    /// If the URL or a value of the Secret is invalid. The message contains no value of the Secret.
    pub(crate) fn new(parts: &GitHubAppParts<'_>) -> Result<Self, Failure> {
        let url = RepositoryUrl::parse(parts.url)
            .map_err(|error| Failure::user(error.reason(), format!("spec.gitRepo.url: {error}")))?;
        let (own, host) = repository_of(&url).map_err(|why| invalid("spec.gitRepo.url", &why))?;
        let of_key = |key: &str, why: &str| {
            let field = format!("{FIELD}.secretRef: key {key} of Secret {}", parts.secret);
            invalid(&field, why)
        };
        let text = |key: &str| {
            let value = parts.data.get(key).map(|value| value.0.as_slice());
            value.map(|value| String::from_utf8_lossy(value).trim().to_owned())
        };
        let app_id = text(APP_ID).unwrap_or_default();
        if !is_name(&app_id, MAX_ID_LENGTH) {
            let why = "is not the id of a GitHub App: set the number that GitHub shows as App ID";
            return Err(of_key(APP_ID, why));
        }
        let installation_id = text(INSTALLATION_ID).unwrap_or_default();
        let installation_id: u64 = installation_id.parse().map_err(|_| {
            let why = "is not the id of an installation: set the number at the end of the URL of the \
                       installation's settings";
            of_key(INSTALLATION_ID, why)
        })?;
        let key = parts.data.get(PRIVATE_KEY);
        let key = key.map(|key| key.0.clone()).unwrap_or_default();
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let why = format!("must have 1 to {MAX_KEY_BYTES} bytes");
            return Err(of_key(PRIVATE_KEY, &why));
        }
        let base = text(BASE_URL).filter(|base| !base.is_empty());
        let api = api_of(&host, base.as_deref()).map_err(|why| of_key(BASE_URL, &why))?;
        let mut repositories = vec![own];
        repositories.extend(parts.repositories.iter().cloned());
        if let Some(name) = repositories.iter().find(|name| !is_name(name, 100)) {
            let why = format!("`{name}` is not the name of a repository without its owner");
            return Err(invalid(&format!("{FIELD}.repositories"), &why));
        }
        repositories.sort_unstable();
        repositories.dedup();
        let identity = digest::plain(&(
            (&api, &app_id, installation_id, &repositories),
            digest::plain(&String::from_utf8_lossy(&key)),
            parts.ca_bundle,
        ));
        Ok(Self {
            secret: parts.secret.to_owned(),
            app_id,
            installation_id,
            key: SecretBytes::new(key),
            api,
            repositories,
            ca_bundle: parts.ca_bundle.map(str::to_owned),
            identity,
        })
    }

    /// Returns a digest that identifies the App, its key, the installation and the repositories.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the URL of the request for a token.
    fn token_url(&self) -> String {
        format!(
            "{}/app/installations/{}/access_tokens",
            self.api, self.installation_id
        )
    }

    /// Returns the failure to create a token, with the URL of the API.
    fn failure(
        &self,
        class: alustan_api::report::FailureClass,
        reason: Reason,
        why: &str,
    ) -> Failure {
        let message = format!(
            "{FIELD}: failed to create a token of installation {} of GitHub App {} at {}: {why}",
            self.installation_id, self.app_id, self.api
        );
        Failure::new(class, reason, message)
    }
}

fn invalid(field: &str, why: &str) -> Failure {
    Failure::user(Reason::InvalidGitHubApp, format!("{field} {why}"))
}

/// Whether `text` has 1 to `most` letters, digits and the characters `.`, `_` and `-`.
fn is_name(text: &str, most: usize) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=most).contains(&text.len()) && text.chars().all(is_plain)
}

/// Returns name and host URL of a repository, for example `infra` and `https://github.com`.
fn repository_of(url: &RepositoryUrl) -> Result<(String, Url), String> {
    if url.scheme() != Scheme::Https {
        return Err("must start with https:// if gitRepo.githubApp is set".to_owned());
    }
    let owner_and_name = url.path().split_once('/');
    let (_, name) = owner_and_name
        .filter(|(owner, name)| is_name(owner, 100) && is_name(name, 100))
        .ok_or("must be https://HOST/OWNER/REPOSITORY if gitRepo.githubApp is set")?;
    let mut host = Url::parse(url.remote()).map_err(|error| format!("is not a URL: {error}"))?;
    host.set_path("");
    Ok((name.to_owned(), host))
}

/// Returns the URL of the API for repositories on `host`, without a slash at its end.
///
/// `base` replaces the default path. It must be on the host of the repository, or on the host `api.` of it: the operator sends requests to
/// no host that the allow list of repositories does not cover.
fn api_of(host: &Url, base: Option<&str>) -> Result<String, String> {
    let name = host.host_str().unwrap_or_default();
    let api_name = format!("api.{name}");
    let has_api_host = name == "github.com" || name.ends_with(".ghe.com");
    let default = if has_api_host {
        let port = host.port().map(|port| format!(":{port}"));
        format!("https://{api_name}{}", port.unwrap_or_default())
    } else {
        format!("{}/api/v3", host.as_str().trim_end_matches('/'))
    };
    let Some(base) = base else {
        return Ok(default);
    };
    let url = Url::parse(base).map_err(|error| format!("is not a URL: {error}"))?;
    let is_plain = url.scheme() == "https"
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !is_plain {
        return Err("must be https://HOST/PATH without user name, query and fragment".to_owned());
    }
    let base_name = url.host_str().unwrap_or_default();
    let is_on_host = base_name == name || base_name == api_name;
    if !is_on_host || url.port() != host.port() {
        return Err(format!(
            "must be a URL on the host of gitRepo.url: {name} or {api_name}"
        ));
    }
    if url.path() == "/" && base_name == name {
        return Ok(default);
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests;
