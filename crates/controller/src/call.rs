//! Calls of the API server with a timeout.

use std::future::Future;

use crate::error::{Error, TIMEOUT};

/// Runs a call of the API server with a timeout of [`TIMEOUT`].
pub(crate) async fn call<T>(
    what: &str,
    future: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(result) => result.map_err(|source| Error::Call {
            what: what.to_owned(),
            source: Box::new(source),
        }),
        Err(_) => Err(Error::Timeout(what.to_owned())),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum StatusKind {
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
}

pub(crate) fn is(error: &kube::Error, kind: StatusKind) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    match kind {
        StatusKind::AlreadyExists => status.is_already_exists(),
        StatusKind::Conflict => status.is_conflict(),
        StatusKind::Invalid => status.is_invalid(),
        StatusKind::NotFound => status.is_not_found(),
    }
}

/// Treats status `NotFound` as success: the object does not exist.
pub(crate) fn gone<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Err(Error::Call { source, .. }) if is(&source, StatusKind::NotFound) => Ok(()),
        other => other.map(drop),
    }
}
