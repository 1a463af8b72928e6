//! Sign-in: determines the user of a request.
//!
//! [`LocalSignIn`] uses the kubeconfig of the user, [`TokenSignIn`] a bearer token of the user, and [`ProxySignIn`] headers of an authenticating
//! proxy.

mod cookie;
mod local;
mod proxy;
mod session;
mod token;

use axum::http::request::Parts;

pub use cookie::{CookieKeys, SessionCookie};
pub use local::LocalSignIn;
pub use proxy::{Impersonation, ProxyHeaders, ProxySignIn, VerifiedClient};
pub(crate) use session::Session;
pub(crate) use token::MAX_FORM_BYTES;
pub use token::TokenSignIn;

use crate::error::PageError;

/// Method by which the page authenticates users.
pub enum SignIn {
    /// `kubectl alustan ui`: the user of the kubeconfig.
    Local(LocalSignIn),
    /// Bearer token of the user, in a header or in an encrypted cookie.
    Token(TokenSignIn),
    /// Headers of a proxy with a client certificate.
    Proxy(ProxySignIn),
}

impl SignIn {
    /// Returns the session of the request with the head `head`.
    ///
    /// # Errors
    /// If the request is not authenticated, or the API server does not answer.
    pub(crate) async fn session(&self, head: &Parts) -> Result<Session, PageError> {
        match self {
            Self::Local(local) => local.session(head),
            Self::Token(token) => token.session(head).await,
            Self::Proxy(proxy) => proxy.session(head),
        }
    }

    /// Returns the sign-in that the routes `/sign-in` and `/sign-out` use. `None`: the page does not serve these routes.
    pub(crate) fn token(&self) -> Option<&TokenSignIn> {
        match self {
            Self::Token(token) => Some(token),
            Self::Local(_) | Self::Proxy(_) => None,
        }
    }
}
