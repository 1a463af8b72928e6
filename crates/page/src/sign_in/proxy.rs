//! Sign-in behind an authenticating proxy whose tokens the API server does not know.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use kube::{Client, Config};
use quick_cache::sync::Cache;

use crate::access::{Access, Viewer};
use crate::error::PageError;
use crate::sign_in::cookie::CookieKeys;
use crate::sign_in::session::Session;

/// Maximum number of groups of a user.
const MAX_GROUPS: usize = 100;

/// Maximum length of the name of a user or group, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Maximum number of users with a cached client.
const MAX_VIEWERS: usize = 500;

/// Prefix of the users and groups that Kubernetes defines.
const RESERVED: &str = "system:";

/// Group that the API server adds to each authenticated user. A SubjectAccessReview does not add it.
const AUTHENTICATED: &str = "system:authenticated";

/// Extension of requests on connections whose client certificate is verified. Only the server sets it.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedClient;

/// Headers in which the proxy sends the user.
#[derive(Clone, Debug)]
pub struct ProxyHeaders {
    /// Header with the name of the user.
    pub user: HeaderName,
    /// Header with the groups of the user, separated by commas.
    pub groups: HeaderName,
}

impl Default for ProxyHeaders {
    fn default() -> Self {
        Self {
            user: HeaderName::from_static("x-forwarded-user"),
            groups: HeaderName::from_static("x-forwarded-groups"),
        }
    }
}

/// Users and groups that the page may impersonate.
#[derive(Debug)]
pub struct Impersonation {
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Impersonation {
    /// Checks the names of users and groups.
    ///
    /// # Errors
    /// If a name is empty, too long, reserved by Kubernetes, or cannot be sent in a header.
    pub fn new(
        users: impl IntoIterator<Item = String>,
        groups: impl IntoIterator<Item = String>,
    ) -> Result<Self, String> {
        let checked = |names: Vec<String>| {
            names
                .into_iter()
                .map(|name| match check(&name) {
                    Err(error) => Err(error.to_string()),
                    Ok(()) if !name.is_ascii() => Err(format!("name {name:?} is not ASCII")),
                    Ok(()) => Ok(name),
                })
                .collect::<Result<BTreeSet<_>, _>>()
        };
        Ok(Self {
            users: checked(users.into_iter().collect())?,
            groups: checked(groups.into_iter().collect())?,
        })
    }
}

/// Sign-in by the headers of a proxy with a client certificate. The page impersonates the listed users; all other users have read access, which a
/// SubjectAccessReview checks.
pub struct ProxySignIn {
    /// Client of the page.
    client: Client,
    /// Configuration of this client.
    config: Config,
    headers: ProxyHeaders,
    impersonation: Impersonation,
    keys: CookieKeys,
    viewers: Cache<Identity, Arc<Viewer>>,
}

/// User and groups in the headers of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    user: String,
    /// Sorted.
    groups: Vec<String>,
}

impl ProxySignIn {
    /// Creates a sign-in. `client`: client of the page, which may create `subjectaccessreviews` and impersonate the users and groups in `impersonation`.
    /// `config`: configuration of this client. `keys`: keys of session ids.
    pub fn new(
        client: Client,
        config: Config,
        headers: ProxyHeaders,
        impersonation: Impersonation,
        keys: CookieKeys,
    ) -> Self {
        Self {
            client,
            config,
            headers,
            impersonation,
            keys,
            viewers: Cache::new(MAX_VIEWERS),
        }
    }

    pub(crate) fn session(&self, head: &Parts) -> Result<Session, PageError> {
        if head.extensions.get::<VerifiedClient>().is_none() {
            return Err(PageError::Forbidden(
                "the connection has no verified client certificate: open the page at the address of the proxy"
                    .to_owned(),
            ));
        }
        let identity = self.identity(&head.headers)?;
        let credentials: Vec<&str> = [&identity.user]
            .into_iter()
            .chain(&identity.groups)
            .map(String::as_str)
            .collect();
        let id = self.keys.session_id("proxy", &credentials);
        let viewer = if let Some(viewer) = self.viewers.get(&identity) {
            viewer
        } else {
            let access = self.access(&identity)?;
            let viewer = Arc::new(Viewer::new(identity.user.clone(), access));
            self.viewers.insert(identity, viewer.clone());
            viewer
        };
        Ok(Session {
            viewer,
            id,
            can_sign_out: false,
        })
    }

    fn identity(&self, headers: &HeaderMap) -> Result<Identity, PageError> {
        let name = &self.headers.user;
        let user = value(headers, name)?
            .ok_or_else(|| PageError::SignInRequired(format!("the proxy sent no header {name}")))?;
        check(user)?;
        let groups: Vec<&str> = value(headers, &self.headers.groups)?
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|group| !group.is_empty())
            .take(MAX_GROUPS + 1)
            .collect();
        if groups.len() > MAX_GROUPS {
            return Err(PageError::Invalid(format!(
                "the user has more than {MAX_GROUPS} groups"
            )));
        }
        groups.iter().try_for_each(|group| check(group))?;
        let groups: BTreeSet<String> = groups.into_iter().map(str::to_owned).collect();
        Ok(Identity {
            user: user.to_owned(),
            groups: groups.into_iter().collect(),
        })
    }

    /// Returns the access of a user: impersonation of listed users, with the listed ones of their groups, or else SubjectAccessReviews.
    fn access(&self, identity: &Identity) -> Result<Access, PageError> {
        let Identity { user, groups } = identity;
        if !self.impersonation.users.contains(user) {
            return Ok(Access::Reviewed {
                client: self.client.clone(),
                groups: groups
                    .iter()
                    .cloned()
                    .chain([AUTHENTICATED.to_owned()])
                    .collect(),
                read_only: format!(
                    "the page may not impersonate {user}: writing requires the user in page.proxy.users of the Helm values"
                ),
            });
        }
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups = Some(
            groups
                .iter()
                .filter(|group| self.impersonation.groups.contains(*group))
                .cloned()
                .collect(),
        );
        let client = Client::try_from(config);
        Ok(Access::Own(client.map_err(|error| {
            PageError::of_call("create a client", error)
        })?))
    }
}

/// Returns the value of header `name`.
///
/// # Errors
/// If the request has more than one such header, or its value is not UTF-8.
fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, PageError> {
    let invalid = |problem: &str| PageError::Invalid(format!("header {name}: {problem}"));
    let mut values = headers.get_all(name).into_iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(invalid("expected one value"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| invalid("expected UTF-8"))?;
    Ok(Some(text.trim()).filter(|text| !text.is_empty()))
}

/// Checks the name of a user or group.
fn check(name: &str) -> Result<(), PageError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(PageError::Invalid(format!(
            "names of users and groups must have 1 to {MAX_NAME_BYTES} bytes without control characters"
        )));
    }
    if name.starts_with(RESERVED) {
        return Err(PageError::Forbidden(format!(
            "{name:?} is reserved by Kubernetes: a proxy must not send users and groups that begin with {RESERVED}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
