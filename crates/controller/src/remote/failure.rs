//! Failures of queries to repositories and registries.

use alustan_api::report::{Failure, FailureClass};
use alustan_api::revision;
use alustan_source::Revision;

use crate::error::with_causes;

/// Returns the class of the failure of a query. A failure that is not `transient` has class `User`: the user must fix its cause. The operator retries
/// the query anyway, to notice the fix.
pub(crate) fn class(transient: bool) -> FailureClass {
    if transient {
        FailureClass::Transient
    } else {
        FailureClass::User
    }
}

pub(crate) fn source(error: &alustan_source::Error) -> Failure {
    Failure::new(
        class(error.is_transient()),
        error.reason(),
        chain("spec.gitRepo", error),
    )
}

/// Returns the failure to fetch the module at `revision`.
pub(crate) fn at_commit(revision: &Revision, error: &alustan_source::Error) -> Failure {
    let commit = revision.commit.as_str();
    Failure {
        message: chain(
            &format!(
                "spec.gitRepo at commit {}",
                commit.get(..7).unwrap_or(commit)
            ),
            error,
        ),
        ..source(error)
    }
}

/// Returns the failure of `error` about the source `field` at `revision`, which is a digest.
pub(crate) fn at_digest(field: &str, digest: &str, error: &alustan_source::Error) -> Failure {
    let revision = revision::of_digest(revision::short(digest));
    let field = format!("{field} at {revision}");
    Failure::new(
        class(error.is_transient()),
        error.reason(),
        chain(&field, error),
    )
}

pub(crate) fn registry(field: &str, error: &alustan_registry::Error) -> Failure {
    Failure::new(
        class(error.is_transient()),
        error.reason(),
        chain(field, error),
    )
}

pub(crate) fn chain(field: &str, error: &dyn std::error::Error) -> String {
    format!("{field}: {}", with_causes(error))
}
