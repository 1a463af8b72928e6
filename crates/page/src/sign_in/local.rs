//! Sign-in of `kubectl alustan ui`: the page listens on a loopback address, where other users of the computer can connect too. A random token, which
//! is printed in the terminal, identifies the user of the kubeconfig.

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::access::Viewer;
use crate::error::PageError;
use crate::sign_in::cookie::cookies;
use crate::sign_in::session::Session;

/// Length of the token, in bytes.
const TOKEN_BYTES: usize = 32;

/// Sign-in with a token in the URL, which becomes a cookie. Browsers send a cookie to all ports of its host, so a program of another user that listens on
/// 127.0.0.1 could receive it: the host of the page is a random name below `localhost`, which browsers resolve to a loopback address
/// (<https://www.rfc-editor.org/rfc/rfc6761#section-6.3>).
pub struct LocalSignIn {
    viewer: Arc<Viewer>,
    token: String,
    host: String,
    cookie: String,
}

impl LocalSignIn {
    /// Creates a sign-in for `viewer` with a random token. `port`: that of the page, since browsers do not separate cookies by port.
    ///
    /// # Errors
    /// If the operating system has no random numbers.
    pub fn new(viewer: Viewer, port: u16) -> Result<Self, std::io::Error> {
        let host = u64::from_be_bytes(random()?);
        let token: [u8; TOKEN_BYTES] = random()?;
        Ok(Self {
            viewer: Arc::new(viewer),
            token: BASE64_URL_SAFE_NO_PAD.encode(token),
            host: format!("alustan-{host:016x}.localhost:{port}"),
            cookie: format!("alustan-ui-{port}"),
        })
    }

    /// Returns the host of the page, with its port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the URL that signs in.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/open?token={}", self.host, self.token)
    }

    /// Returns header `Set-Cookie` for the `token` of the URL.
    ///
    /// # Errors
    /// [`PageError::SignInRequired`] for another token.
    pub(crate) fn open(&self, token: &str) -> Result<HeaderValue, PageError> {
        if !is_same(token, &self.token) {
            return Err(required());
        }
        let Self { cookie, token, .. } = self;
        let cookie = format!("{cookie}={token}; Path=/; HttpOnly; SameSite=Strict");
        HeaderValue::try_from(cookie).map_err(|_| required())
    }

    /// Returns the session of the sender of a request.
    ///
    /// # Errors
    /// [`PageError::SignInRequired`] without the cookie.
    pub(crate) fn session(&self, head: &Parts) -> Result<Session, PageError> {
        let token = cookies(&head.headers, &self.cookie)
            .next()
            .ok_or_else(required)?;
        if !is_same(token, &self.token) {
            return Err(required());
        }
        Ok(Session {
            viewer: self.viewer.clone(),
            id: BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, token.as_bytes())),
            can_sign_out: false,
        })
    }
}

fn random<const N: usize>() -> Result<[u8; N], std::io::Error> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| std::io::Error::other("the operating system has no random numbers"))?;
    Ok(bytes)
}

fn required() -> PageError {
    PageError::SignInRequired("open the URL that `kubectl alustan ui` printed".to_owned())
}

/// Compares digests, so that the time does not depend on the number of equal characters.
fn is_same(given: &str, wanted: &str) -> bool {
    digest(&SHA256, given.as_bytes()).as_ref() == digest(&SHA256, wanted.as_bytes()).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use axum::http::header::COOKIE;
    use axum::http::{Request, Uri};
    use kube::{Client, Config};

    /// Returns the user of a request with header `Cookie`.
    fn user(local: &LocalSignIn, cookie: &str) -> Option<String> {
        let request = Request::builder().header(COOKIE, cookie).body(()).unwrap();
        let session = local.session(&request.into_parts().0).ok()?;
        Some(session.viewer.user().to_owned())
    }

    #[tokio::test]
    async fn page_requires_the_token_of_its_url() {
        let config = Config::new(Uri::from_static("http://127.0.0.1:1"));
        let viewer = Viewer::new(
            "ann".to_owned(),
            Access::Own(Client::try_from(config).unwrap()),
        );
        let local = LocalSignIn::new(viewer, 8080).unwrap();
        let url = local.url();
        let (_, token) = url.split_once("/open?token=").unwrap();
        let cookie = local.open(token).unwrap();
        let cookie = cookie.to_str().unwrap().split(';').next().unwrap();
        assert_eq!(user(&local, cookie).as_deref(), Some("ann"));
        for token in ["", "x", &token[1..]] {
            assert!(local.open(token).is_err(), "{token}");
            assert_eq!(user(&local, &format!("alustan-ui-8080={token}")), None);
        }
        assert_eq!(user(&local, &format!("alustan-ui-8081={token}")), None);
    }
}
