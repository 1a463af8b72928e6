//! Commit and context of the module: the current ones, or, while the query to the repository is pending or fails, the last known ones.

use alustan_api::report::FailureClass;
use alustan_api::{GitRepo, Reason, State};
use k8s_openapi::jiff::Timestamp;

use crate::decide::case::ReconcileCase;
use crate::model::summary::{self, Summary};
use crate::model::{facts, run_inputs};
use crate::observed::{Answer, SourceSeen};

impl ReconcileCase<'_> {
    /// Returns the commit and the context to use.
    ///
    /// # Errors
    ///
    /// Returns a summary if the query to the repository is pending or failed, and no earlier answer is usable.
    pub(super) fn source(&self) -> Result<SourceSeen, Summary> {
        let has_active_run = facts::open_run(&self.current).is_some();
        match &self.image.source {
            Answer::Pending if self.tf.spec.suspend || has_active_run => {
                self.last_source().ok_or_else(fetching)
            }
            Answer::Known(source) => Ok(source.clone()),
            Answer::Failed {
                failure,
                last: Some(last),
                ..
            } if failure.class == FailureClass::Transient => Ok(last.clone()),
            Answer::Failed {
                failure, retry_at, ..
            } => Err(summary::query_failure(failure, *retry_at, self.now)),
            Answer::Pending => Err(fetching()),
        }
    }

    /// Returns the last known commit and context from status and pin. `None` if repository, reference, path or variable files in the
    /// spec have changed since. The commit may be outdated, so no run or build starts with it.
    pub(super) fn last_source(&self) -> Option<SourceSeen> {
        let source = self.tf.status.as_ref()?.source.as_ref()?;
        let pin = self.seen.pin.as_ref()?;
        let context = source.context.clone()?;
        let backend = run_inputs::module_backend(&pin.inputs.backend);
        let artifact = pin.artifact.as_ref()?;
        let (_, digest) = artifact.split_once('@')?;
        let pinned: GitRepo = serde_json::from_value(pin.spec.get("gitRepo")?.clone()).ok()?;
        let is_same_context = is_same_checkout(&pinned, &self.tf.spec.git_repo)
            && pin.inputs.var_files == self.tf.spec.var_files;
        is_same_context.then(|| SourceSeen {
            revision: source.revision.clone(),
            context,
            artifact: digest.to_owned(),
            path: pin.inputs.path.clone(),
            backend: backend.map(str::to_owned),
            committed_at: Timestamp::UNIX_EPOCH,
        })
    }
}

/// Whether `pinned` and `current` select the same files at the same git reference.
fn is_same_checkout(pinned: &GitRepo, current: &GitRepo) -> bool {
    let GitRepo {
        url,
        branch,
        tag,
        commit,
        path,
        include,
        submodules,
        ..
    } = pinned;
    (url, branch, tag, commit) == (&current.url, &current.branch, &current.tag, &current.commit)
        && (path, include, submodules) == (&current.path, &current.include, &current.submodules)
}

/// Returns the summary of a pending query to the repository.
pub(super) fn fetching() -> Summary {
    Summary::busy(
        State::Pending,
        Reason::Fetching,
        "fetching the module from the repository",
    )
}
