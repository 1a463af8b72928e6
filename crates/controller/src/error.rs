//! Errors of reads and writes of Kubernetes objects.

use std::sync::Arc;

use alustan_api::Reason;
use alustan_api::names;
use alustan_api::report::Failure;
use alustan_core::model::admission;
use alustan_core::observed::Waiting;
use thiserror::Error;

/// Value, or the [`Failure`] that explains why it is missing. The outer [`Error`] is a failed call of the API server.
pub(crate) type ReadResult<T> = Result<Result<T, Failure>, Error>;

/// Failed read or write of a Kubernetes object. Reconciles that share a read share its error.
#[derive(Clone, Debug, Error)]
pub(crate) enum Error {
    /// A call of the API server failed.
    #[error("failed to {operation}")]
    Call {
        /// Operation, as a verb phrase after "failed to", for example `read Secret x`.
        operation: String,
        /// Error of the client, with the response of the API server if there is one.
        #[source]
        source: Arc<kube::Error>,
    },
    /// The resource or its run record has changed since it was observed.
    #[error("the resource or its run record changed since it was observed")]
    Conflict,
    /// The resource no longer exists.
    #[error("the resource no longer exists")]
    Gone,
    /// A Job with this name exists, but has other inputs or another owner.
    #[error(
        "Job {0} already exists and belongs to another run or another owner. A Job of this resource \
         is replaced automatically; delete any other Job of this name"
    )]
    JobNameConflict(String),
    /// The `PersistentVolumeClaim` with this name is being deleted.
    #[error("PersistentVolumeClaim {0} is being deleted; waiting until no pod uses it")]
    VolumeTerminating(String),
    /// The Secret with this name belongs to another owner, or to an earlier resource of the same name.
    #[error(
        "Secret {0} already exists and does not belong to this resource, which requires the name \
         for its run record. The Secret may belong to a state that is still in use: keep it, and \
         create this resource with another name"
    )]
    RunRecordConflict(String),
    /// This version of the operator cannot read a run record or pin.
    #[error(
        "this version of the operator cannot read key {key} of Secret {secret}. Restore the \
         Secret, or run the version of the operator that wrote it; reconciliation resumes \
         automatically once this is fixed. To release a deleted resource without a destroy, \
         annotate it with alustan.io/abandon=true"
    )]
    Unreadable {
        secret: String,
        /// Key of the entry in the Secret.
        key: &'static str,
    },
    /// An entry of a run record or pin has no valid signature of the operator.
    #[error(
        "key {key} of Secret {secret} has no valid signature: a client other than the operator \
         changed it. No run starts until the Secret is restored from a backup; see \
         docs/operations.md"
    )]
    Forged {
        secret: String,
        /// Key of the entry in the Secret.
        key: &'static str,
    },
    /// An object that a run needs belongs to another owner.
    #[error(
        "{kind} {name} already exists and does not belong to this resource; {}",
        advice(kind, name)
    )]
    NameTaken { kind: String, name: String },
    /// The API server did not respond within [`TIMEOUT`].
    #[error("failed to {0}: the API server did not respond within {TIMEOUT:?}")]
    Timeout(String),
    /// An object that a run needs holds the state of an earlier resource of the same name.
    #[error(
        "{kind} {name} contains the state of an earlier Terraform resource of this name. No run \
         starts: without that state, an apply would create every object again. To adopt the state: \
         {adopt}; if the first plan has changes, it waits for approval. To start with an empty \
         state, keep the object, and create this resource with another name"
    )]
    OrphanedState {
        kind: String,
        name: String,
        /// Command that adopts the state.
        adopt: String,
    },
    /// An object that a run needs holds the state of another resource that still exists.
    #[error(
        "{kind} {name} contains the state of {owner}, which still exists. Two resources with one state would \
         destroy each other's managed objects. To move the state to this resource, first delete the owner with \
         spec.deletionPolicy: Orphan. Otherwise keep {kind} {name}, and create this resource with another name"
    )]
    StateInUse {
        kind: String,
        name: String,
        /// Resource that owns the state, as named in messages.
        owner: String,
    },
    /// The reconcile is slow, and exceeds the maximum number of slow reconciles (`Health::limit_slow`).
    #[error("the reconcile is slow, and so are too many others")]
    Postponed,
    /// The random number generator failed.
    #[error("failed to generate a random key: the system random number generator failed")]
    RandomSourceUnavailable,
}

/// Error of a refused or aborted write: another replica may lead.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("write refused: this replica is not the leader, or its Lease may have expired")]
pub(crate) struct NotLeading;

/// Returns the advice in the message of [`Error::NameTaken`]. An object that may contain a state must be kept, because it may be the only copy of the
/// state.
fn advice(kind: &str, name: &str) -> String {
    if let ("Secret", Some(resource)) = (kind, name.strip_suffix("-report")) {
        return format!(
            "it may contain the only copy of a state: keep it. If it comes from a backup, restore \
             Secret {} from the same backup, then run: kubectl alustan restore {resource}. \
             Otherwise create this resource with another name",
            names::record(resource)
        );
    }
    let holds_state = match kind {
        "Secret" => name.ends_with("-state") || name.contains("-state-slot-"),
        "PersistentVolumeClaim" => true,
        _ => false,
    };
    if holds_state {
        "it may contain the only copy of a state: keep it, and create this resource with another name"
    } else {
        "delete it, or create this resource with another name"
    }
    .to_owned()
}

/// Timeout of one API server call.
pub(crate) const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

impl Error {
    /// Returns the reason for events, conditions and metrics.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Call { .. } if self.is_not_leading() => Reason::NotLeader,
            Self::Call { source, .. } => match &**source {
                kube::Error::Api(status) if status.is_forbidden() => {
                    admission::refused_by(&status.message).unwrap_or(Reason::Forbidden)
                }
                kube::Error::Api(status) if status.code < 500 && status.code != 429 => {
                    Reason::Rejected
                }
                kube::Error::Api(status) if status.code == 500 => Reason::ApiError,
                _ => Reason::ApiUnavailable,
            },
            Self::Conflict | Self::Gone => Reason::Conflict,
            Self::JobNameConflict(_) => Reason::JobNameConflict,
            Self::VolumeTerminating(_) => Reason::VolumeTerminating,
            Self::RunRecordConflict(_) => Reason::RunRecordConflict,
            Self::Unreadable { .. } => Reason::RecordUnreadable,
            Self::Forged { .. } => Reason::RecordForged,
            Self::NameTaken { .. } => Reason::NameTaken,
            Self::OrphanedState { .. } => Reason::OrphanedState,
            Self::StateInUse { .. } => Reason::StateConflict,
            Self::Timeout(_) => Reason::ApiUnavailable,
            Self::Postponed => Reason::ExpressionTooSlow,
            Self::RandomSourceUnavailable => Reason::RandomSourceUnavailable,
        }
    }

    /// Whether the error is a conflict, which the next reconcile resolves.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict)
    }

    /// Whether the write was blocked because another replica may lead.
    pub(crate) fn is_not_leading(&self) -> bool {
        let Self::Call { source, .. } = self else {
            return false;
        };
        matches!(&**source, kube::Error::Service(error) if error.is::<NotLeading>())
    }

    /// Returns reason and message if a `ResourceQuota` or `LimitRange` refused the write.
    pub(crate) fn refusal(&self) -> Option<Waiting> {
        let Self::Call { source, .. } = self else {
            return None;
        };
        match &**source {
            kube::Error::Api(status) if status.is_forbidden() => {
                admission::limit_denial(&status.message)
            }
            _ => None,
        }
    }

    /// Returns why an object cannot be created: a quota, a limit or a policy refuses it, or another Job has its name.
    pub(crate) fn denial(&self) -> Option<Waiting> {
        let is_denied = self.is_rejected_write() || matches!(self, Self::JobNameConflict(_));
        let denial = is_denied.then(|| Waiting {
            reason: self.reason().into(),
            message: self.chain(),
        });
        self.refusal().or(denial)
    }

    /// Whether the API server refused a write as invalid (HTTP 422).
    pub(crate) fn is_invalid(&self) -> bool {
        let Self::Call { source, .. } = self else {
            return false;
        };
        matches!(&**source, kube::Error::Api(status) if status.code == 422)
    }

    /// Whether a write failed because the object changed since it was observed, does not exist, or exists already.
    pub(crate) fn is_outdated_write(&self) -> bool {
        matches!(self.status_code(), Some(404 | 409))
    }

    /// Whether the API server refused a write, and would refuse a retry as well.
    pub(crate) fn is_rejected_write(&self) -> bool {
        let code = self.status_code();
        code.is_some_and(|code| (400..500).contains(&code) && ![404, 409, 429].contains(&code))
    }

    /// Returns the HTTP status code of the API server.
    fn status_code(&self) -> Option<u16> {
        match self {
            Self::Call { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the API server does not know the requested kind or object.
    pub(crate) fn is_unknown(&self) -> bool {
        let Self::Call { source, .. } = self else {
            return false;
        };
        match &**source {
            kube::Error::Discovery(_) => true,
            kube::Error::Api(status) => status.code == 404,
            _ => false,
        }
    }

    /// Returns the message with its cause.
    pub(crate) fn chain(&self) -> String {
        match self {
            Self::Call { operation, source } => format!("failed to {operation}: {}", cause(source)),
            Self::Conflict
            | Self::Gone
            | Self::JobNameConflict(_)
            | Self::VolumeTerminating(_)
            | Self::RunRecordConflict(_)
            | Self::Unreadable { .. }
            | Self::Forged { .. }
            | Self::NameTaken { .. }
            | Self::OrphanedState { .. }
            | Self::StateInUse { .. }
            | Self::Timeout(_)
            | Self::Postponed
            | Self::RandomSourceUnavailable => self.to_string(),
        }
    }
}

/// Returns the cause of a failed call: the message of the API server, if there is one.
pub(crate) fn cause(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    with_causes(error)
}

/// Returns an error and its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(kind: &str, name: &str) -> Error {
        Error::NameTaken {
            kind: kind.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn messages_never_advise_to_remove_objects_with_state() {
        for error in [
            Error::RunRecordConflict("web-run".to_owned()),
            taken("Secret", "web-state"),
            taken("Secret", "web-state-slot-12"),
            taken("Secret", "web-report"),
            taken("PersistentVolumeClaim", "web-cache"),
            Error::OrphanedState {
                kind: "Secret".to_owned(),
                name: "web-state".to_owned(),
                adopt: "kubectl patch tf web".to_owned(),
            },
            Error::StateInUse {
                kind: "Secret".to_owned(),
                name: "web-state".to_owned(),
                owner: "Terraform db".to_owned(),
            },
        ] {
            let message = error.to_string();
            assert!(message.contains("keep "), "{message}");
            assert!(
                !message.contains("remove") && !message.contains("delete it"),
                "{message}"
            );
        }
        let message = taken("Secret", "web-report").to_string();
        assert!(message.contains("kubectl alustan restore web"), "{message}");
        let message = taken("ServiceAccount", "web-runner").to_string();
        assert!(message.contains("delete it"), "{message}");
    }
}
