//! Mapping from providers to backends. A new backend needs its file, a variant of [`BackendProvider`] with the fields
//! of `spec.backend`, and an arm in each function.

use alustan_api::BackendProvider;

use crate::aws::Aws;
use crate::azure::Azure;
use crate::backend::Backend;
use crate::gcp::Gcp;
use crate::generic::Generic;
use crate::http::Http;
use crate::kubernetes::Kubernetes;
use crate::local::Local;
use crate::managed::Managed;
use crate::pg::Pg;

/// Returns the backend of `provider`.
pub(crate) fn of(provider: BackendProvider) -> &'static dyn Backend {
    match provider {
        BackendProvider::Managed => &Managed,
        BackendProvider::Aws => &Aws,
        BackendProvider::Gcp => &Gcp,
        BackendProvider::Azure => &Azure,
        BackendProvider::Kubernetes => &Kubernetes,
        BackendProvider::Pg => &Pg,
        BackendProvider::Http => &Http,
        BackendProvider::Local => &Local,
        BackendProvider::Generic => &Generic,
    }
}

/// Returns the type of the `backend` block of `provider`, for example `s3`. `None` for [`BackendProvider::Managed`], which is served by the
/// runner, and for [`BackendProvider::Generic`], which has any type.
fn kind(provider: BackendProvider) -> Option<&'static str> {
    match provider {
        BackendProvider::Aws => Some("s3"),
        BackendProvider::Gcp => Some("gcs"),
        BackendProvider::Azure => Some("azurerm"),
        BackendProvider::Kubernetes => Some("kubernetes"),
        BackendProvider::Pg => Some("pg"),
        BackendProvider::Http => Some("http"),
        BackendProvider::Local => Some("local"),
        BackendProvider::Managed | BackendProvider::Generic => None,
    }
}

/// Returns the backend for a `backend` block of type `block`. `None` if only [`BackendProvider::Generic`] supports the type.
pub(crate) fn of_kind(block: &str) -> Option<&'static dyn Backend> {
    BackendProvider::VARIANTS
        .iter()
        .find(|provider| kind(**provider) == Some(block))
        .map(|provider| of(*provider))
}
