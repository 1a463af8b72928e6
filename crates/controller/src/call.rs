//! Calls of the API server with a timeout.

use std::future::Future;
use std::sync::Arc;

use alustan_api::Terraform;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};

use crate::error::{Error, TIMEOUT};

/// Runs a call of the API server with a timeout of [`TIMEOUT`].
pub(crate) async fn call<T>(
    operation: &str,
    future: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(result) => result.map_err(|source| Error::Call {
            operation: operation.to_owned(),
            source: Arc::new(source),
        }),
        Err(_) => Err(Error::Timeout(operation.to_owned())),
    }
}

/// Returns the metadata of the stored resource `name`, whose spec may be invalid. `None` if the resource does not exist.
///
/// # Errors
/// If the call of the API server fails.
pub(crate) async fn stored_metadata(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ObjectMeta>, Error> {
    let api: Api<Terraform> = Api::namespaced(client.clone(), namespace);
    let stored = call("read the resource", api.get_metadata_opt(name)).await?;
    Ok(stored.map(|stored| stored.metadata))
}

#[derive(Clone, Copy)]
pub(crate) enum StatusKind {
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
}

pub(crate) fn has_status(error: &kube::Error, kind: StatusKind) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    match kind {
        StatusKind::AlreadyExists => status.is_already_exists(),
        StatusKind::Conflict => status.is_conflict(),
        StatusKind::Forbidden => status.is_forbidden(),
        StatusKind::Invalid => status.is_invalid(),
        StatusKind::NotFound => status.is_not_found(),
    }
}

/// Treats status `NotFound` as success: the object does not exist.
pub(crate) fn ignore_not_found<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Err(Error::Call { source, .. }) if has_status(&source, StatusKind::NotFound) => Ok(()),
        other => other.map(drop),
    }
}
