//! Commit and context of the module: the current ones, or, while the query to the repository is pending or fails, the last known ones.

use alustan_api::report::FailureClass;
use alustan_api::{GitRepo, OciArtifact, OtherSource, Reason, State};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

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

    /// Returns the last known commit and context from status and pin. `None` if source, reference, path, variable files or wrapper in the
    /// spec have changed since. The commit may be outdated, so no run or build starts with it.
    pub(super) fn last_source(&self) -> Option<SourceSeen> {
        let source = self.tf.status.as_ref()?.source.as_ref()?;
        let pin = self.seen.pin.as_ref()?;
        let context = source.context.clone()?;
        let backend = run_inputs::module_backend(&pin.inputs.backend);
        let artifact = pin.artifact.as_ref()?;
        let (_, digest) = artifact.split_once('@')?;
        let is_same_context = self.is_pinned_source(&pin.spec)?
            && pin.inputs.var_files == self.tf.spec.var_files
            && pin.inputs.wrapper == self.tf.spec.wrapper();
        is_same_context.then(|| SourceSeen {
            revision: source.revision.clone(),
            context,
            artifact: digest.to_owned(),
            path: pin.inputs.path.clone(),
            backend: backend.map(str::to_owned),
            committed_at: Timestamp::UNIX_EPOCH,
            commit: None,
        })
    }

    /// Whether the spec selects the files of the pinned spec. `None` if the source is unknown.
    fn is_pinned_source(&self, pinned: &Value) -> Option<bool> {
        let field = |name: &str| pinned.get(name).filter(|value| !value.is_null()).cloned();
        let spec = &self.tf.spec;
        Some(match (&spec.git_repo, &spec.source) {
            (Some(current), None) => {
                let pinned: GitRepo = serde_json::from_value(field("gitRepo")?).ok()?;
                is_same_checkout(&pinned, current)
            }
            (None, Some(current)) => {
                let pinned: OtherSource = serde_json::from_value(field("source")?).ok()?;
                is_same_source(&pinned, current)
            }
            (Some(_), Some(_)) | (None, None) => return None,
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

/// Whether `pinned` and `current` select the same files of the same artifact or module.
fn is_same_source(pinned: &OtherSource, current: &OtherSource) -> bool {
    let is_same_artifact = match (&pinned.oci, &current.oci) {
        (Some(pinned), Some(current)) => {
            let with_current_access = OciArtifact {
                interval: current.interval,
                secret_ref: current.secret_ref.clone(),
                ..pinned.clone()
            };
            with_current_access == *current
        }
        (pinned, current) => pinned.is_none() && current.is_none(),
    };
    is_same_artifact && (&pinned.module, &pinned.inline) == (&current.module, &current.inline)
}

/// Returns the summary of a pending query to the repository.
pub(super) fn fetching() -> Summary {
    Summary::busy(
        State::Pending,
        Reason::Fetching,
        "fetching the files of the module",
    )
}
