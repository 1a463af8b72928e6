//! Packs files of sources other than git into contexts.

use alustan_api::Reason;
use alustan_api::report::Failure;

/// Returns the failure of a push whose source has another revision now.
pub(crate) fn revision_moved() -> Failure {
    Failure::transient(
        Reason::RevisionMoved,
        "the source of the module changed before the context was pushed; the push is retried \
         automatically",
    )
}

/// Runs work that uses the CPU or the disk on a blocking thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(Failure::transient(
                Reason::GitCacheUnusable,
                format!("failed to pack the files of the module: {error}; retried automatically"),
            ))
        })
}
