//! The page: `Terraform` resources, their runs, plans and logs in a browser, with the Kubernetes permissions of the user.
//!
//! `kubectl alustan ui` serves it on a loopback address with the user's kubeconfig; `alustan-controller page` serves it in the cluster. A request
//! passes the checks of `guard` (limits, headers, cross-site request forgery) and the sign-in, which returns the user as a [`Viewer`]. A route reads objects
//! with the permissions of the user (`access`, `objects`), builds a view model (`view`), and renders it (`html`) or serializes it as JSON.

mod access;
mod actions;
mod assets;
mod error;
mod guard;
mod html;
mod kube_call;
mod live;
mod log;
mod objects;
mod overview;
mod page;
mod request;
mod routes;
mod row;
mod sign_in;
mod view;

pub use access::{Access, Viewer};
pub use error::PageError;
pub use guard::Hosts;
pub use page::{Page, Settings};

pub use routes::router;
pub use sign_in::{
    CookieKeys, Impersonation, LocalSignIn, ProxyHeaders, ProxySignIn, SessionCookie, SignIn,
    TokenSignIn, VerifiedClient,
};
