//! Sign-in with a bearer token of the user, which the API server reviews.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::config::AuthInfo;
use kube::{Api, Client, Config};
use quick_cache::sync::Cache;
use ring::digest::{SHA256, digest};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::access::{Access, Viewer};
use crate::error::PageError;
use crate::kube_call::call;
use crate::sign_in::cookie::SessionCookie;
use crate::sign_in::session::Session;

/// Maximum size of the form of `POST /sign-in`, in bytes.
pub(crate) const MAX_FORM_BYTES: usize = 16 * 1024;

/// Time for which the result of a TokenReview is reused.
const REVIEW_MAX_AGE: Duration = Duration::from_secs(30);

/// Maximum number of users with a cached client.
const MAX_SESSIONS: usize = 500;

/// Time for which a refused token is refused without another TokenReview.
const REFUSAL_MAX_AGE: Duration = Duration::from_secs(5);

/// Maximum number of concurrent TokenReviews of tokens whose user is known, and of other tokens: invalid tokens delay only the latter.
const MAX_REVIEWS: usize = 8;

/// Maximum time that a request waits for a TokenReview to start.
const REVIEW_WAIT: Duration = Duration::from_secs(5);

/// Maximum length of a token, in bytes.
const MAX_TOKEN_BYTES: usize = 12 * 1024;

/// SHA-256 of a token.
type TokenHash = [u8; 32];

/// Sign-in with a bearer token of the user: in the header `Authorization`, or in the cookie of `POST /sign-in`. All requests to the API server
/// have this token.
pub struct TokenSignIn {
    /// Client of the page, for TokenReviews.
    client: Client,
    /// Address and certificate authorities of the API server.
    config: Config,
    cookie: SessionCookie,
    reviewed: Cache<TokenHash, Reviewed>,
    /// Times of refusals.
    refused: Cache<TokenHash, Instant>,
    reviews_of_known: Semaphore,
    reviews_of_unknown: Semaphore,
}

/// Result of a successful TokenReview.
#[derive(Clone)]
struct Reviewed {
    at: Instant,
    viewer: Arc<Viewer>,
}

impl TokenSignIn {
    /// Creates a sign-in. `client`: client of the page, which may create `tokenreviews`. `config`: configuration of this client. The clients of users
    /// have the same configuration with other credentials.
    pub fn new(client: Client, config: Config, cookie: SessionCookie) -> Self {
        Self {
            client,
            config,
            cookie,
            reviewed: Cache::new(MAX_SESSIONS),
            refused: Cache::new(MAX_SESSIONS),
            reviews_of_known: Semaphore::new(MAX_REVIEWS),
            reviews_of_unknown: Semaphore::new(MAX_REVIEWS),
        }
    }

    pub(crate) async fn session(&self, head: &Parts) -> Result<Session, PageError> {
        let bearer = bearer(&head.headers)?.map(str::to_owned);
        let can_sign_out = bearer.is_none();
        let token = bearer
            .or_else(|| self.cookie.open(&head.headers, Timestamp::now()))
            .ok_or_else(|| PageError::SignInRequired("sign in with a token".to_owned()))?;
        let viewer = self.review(&token).await?;
        Ok(Session {
            id: self.cookie.session_id(viewer.user()),
            viewer,
            can_sign_out,
        })
    }

    /// Executes `POST /sign-in` with the form `form`, which has the field `token`: sets the cookie and redirects to `/`.
    ///
    /// # Errors
    /// If the form has no token, the API server does not accept the token, or the token does not fit into a cookie.
    pub(crate) async fn submit(&self, form: &[u8]) -> Result<Response, PageError> {
        if form.len() > MAX_FORM_BYTES {
            return Err(PageError::Invalid(format!(
                "the form has more than {MAX_FORM_BYTES} bytes"
            )));
        }
        let token = form_urlencoded::parse(form)
            .find(|(name, _)| name == "token")
            .map(|(_, token)| token.trim().to_owned())
            .filter(|token| !token.is_empty())
            .ok_or_else(|| PageError::Invalid("the form has no token".to_owned()))?;
        Ok(redirect(self.sign_in(&token).await?))
    }

    /// Executes `POST /sign-out`: removes the cookie and redirects to `/`. The token itself stays valid.
    pub(crate) fn sign_out_of(&self, head: &Parts) -> Result<Response, PageError> {
        if let Some(token) = self.cookie.open(&head.headers, Timestamp::now()) {
            self.reviewed.remove(&hash(&token));
        }
        Ok(redirect(self.sign_out()?))
    }

    /// Reviews `token`. Returns the header `Set-Cookie`.
    ///
    /// # Errors
    /// If the API server does not accept the token, or the token does not fit into a cookie.
    pub(crate) async fn sign_in(&self, token: &str) -> Result<HeaderValue, PageError> {
        let cookie = self.cookie.seal(token, Timestamp::now())?;
        self.review(token).await?;
        Ok(cookie)
    }

    /// Returns the header `Set-Cookie` that removes the cookie.
    pub(crate) fn sign_out(&self) -> Result<HeaderValue, PageError> {
        self.cookie.removal()
    }

    /// Returns the user of `token`. Reuses the result of the last TokenReview for [`REVIEW_MAX_AGE`], and the viewer with its permissions for as long
    /// as the token is valid.
    async fn review(&self, token: &str) -> Result<Arc<Viewer>, PageError> {
        let is_token = |byte: u8| byte.is_ascii_graphic();
        if token.len() > MAX_TOKEN_BYTES || !token.bytes().all(is_token) {
            return Err(refused());
        }
        let hash = hash(token);
        let known = self.reviewed.get(&hash);
        if let Some(Reviewed { viewer, .. }) = known
            .as_ref()
            .filter(|known| known.at.elapsed() < REVIEW_MAX_AGE)
        {
            return Ok(viewer.clone());
        }
        let refusal = self.refused.get(&hash);
        if refusal.is_some_and(|at| at.elapsed() < REFUSAL_MAX_AGE) {
            return Err(refused());
        }
        let reviews = match known {
            Some(_) => &self.reviews_of_known,
            None => &self.reviews_of_unknown,
        };
        let user = match self.user_of(token, reviews).await {
            Ok(user) => user,
            Err(error) => {
                if matches!(error, PageError::SignInRequired(_)) {
                    self.reviewed.remove(&hash);
                    self.refused.insert(hash, Instant::now());
                }
                return Err(error);
            }
        };
        let viewer = match known.filter(|known| known.viewer.user() == user) {
            Some(Reviewed { viewer, .. }) => viewer,
            None => Arc::new(Viewer::new(user, Access::Own(self.client_of(token)?))),
        };
        self.reviewed.insert(
            hash,
            Reviewed {
                at: Instant::now(),
                viewer: viewer.clone(),
            },
        );
        Ok(viewer)
    }

    /// Returns the name of the user of `token`, by a TokenReview. The audience is that of the API server.
    async fn user_of(&self, token: &str, reviews: &Semaphore) -> Result<String, PageError> {
        let _permit = timeout(REVIEW_WAIT, reviews.acquire()).await.map_err(|_| {
            PageError::TooMany("too many tokens are being reviewed: try again".to_owned())
        })?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let reviewed = call(
            "review the token",
            api.create(&PostParams::default(), &review),
        )
        .await?;
        reviewed
            .status
            .filter(|status| status.authenticated == Some(true))
            .and_then(|status| status.user?.username)
            .filter(|user| !user.is_empty())
            .ok_or_else(refused)
    }

    /// Builds a client with `token`.
    fn client_of(&self, token: &str) -> Result<Client, PageError> {
        Client::try_from(self.config_of(token))
            .map_err(|error| PageError::of_call("create a client", error))
    }

    /// Returns the configuration of a client with `token`. It has none of the credentials of the page.
    fn config_of(&self, token: &str) -> Config {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo {
            token: Some(token.to_owned().into()),
            ..AuthInfo::default()
        };
        config
    }
}

fn refused() -> PageError {
    PageError::SignInRequired(
        "the API server does not accept the token: it is invalid or expired".to_owned(),
    )
}

fn hash(token: &str) -> TokenHash {
    let mut hash = TokenHash::default();
    for (to, from) in hash
        .iter_mut()
        .zip(digest(&SHA256, token.as_bytes()).as_ref())
    {
        *to = *from;
    }
    hash
}

/// Returns the token in the header `Authorization`. `None`: there is no such header, or it has another scheme.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, PageError> {
    let mut values = headers.get_all(header::AUTHORIZATION).into_iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(PageError::Invalid(
            "the request has more than one header Authorization".to_owned(),
        ));
    }
    let token = value.to_str().ok().and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    Ok(token)
}

fn redirect(cookie: HeaderValue) -> Response {
    let location = HeaderValue::from_static("/");
    (
        StatusCode::SEE_OTHER,
        [(header::SET_COOKIE, cookie), (header::LOCATION, location)],
    )
        .into_response()
}

#[cfg(test)]
mod tests;
