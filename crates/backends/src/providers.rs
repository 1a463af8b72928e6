//! Mapping from providers to backends. A new backend needs one file and one line in [`of`].

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

/// Returns the backend for a `backend` block of type `kind`, for example `s3`. `None` if only [`BackendProvider::Generic`] supports the type.
pub(crate) fn of_kind(kind: &str) -> Option<&'static dyn Backend> {
    let provider = match kind {
        "s3" => BackendProvider::Aws,
        "gcs" => BackendProvider::Gcp,
        "azurerm" => BackendProvider::Azure,
        "kubernetes" => BackendProvider::Kubernetes,
        "pg" => BackendProvider::Pg,
        "http" => BackendProvider::Http,
        "local" => BackendProvider::Local,
        _ => return None,
    };
    Some(of(provider))
}
