//! [`Summary`]: `status.state` of a resource, and reason and message of its condition `Ready`. Also texts that several messages share.

use alustan_api::change_set::ChangeSet;
use alustan_api::conditions::Convergence;
use alustan_api::reason::ReasonText;
use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{Failures, History};
use alustan_api::{ABANDON, Reason, State, Terraform};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;
use serde_json::{Value, json};

/// Reasons of resources that are inactive because a user set a field of the spec or discarded a plan. Notifications and alerts exclude these
/// reasons. [`Reason::RunCancelled`] is none of them: an apply may be incomplete.
pub const USER_REQUESTED: [Reason; 4] = [
    Reason::Suspended,
    Reason::DeletionProtected,
    Reason::PlanOnly,
    Reason::PlanDiscarded,
];

/// `status.state` of a resource, and reason and message of its condition `Ready`. The status is rendered from these values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Value of `status.state`.
    pub state: State,
    /// Value from which conditions `Ready`, `Reconciling` and `Stalled` are derived.
    pub convergence: Convergence,
    /// Reason of condition `Ready`: the text of a [`Reason`], or a reason that Kubernetes reports, for example
    /// `CreateContainerConfigError`.
    pub reason: String,
    /// Message of condition `Ready`: cause, time of the next attempt, and what a user can do.
    pub message: String,
    /// Time of the next attempt after a failure.
    pub retry_at: Option<Timestamp>,
    /// Latest time of the next reconcile. The status does not contain this time.
    pub requeue_at: Option<Timestamp>,
}

impl Summary {
    /// Returns a summary with `Ready` Unknown, for a resource that waits, for example for a run, a build or an approval.
    pub fn busy(state: State, reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self {
            state,
            convergence: Convergence::Converging,
            reason: reason.into(),
            message: message.into(),
            retry_at: None,
            requeue_at: None,
        }
    }

    /// Returns a summary of a failure that is retried: `Ready` is False.
    pub fn blocked(state: State, reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self {
            convergence: Convergence::Retrying,
            ..Self::busy(state, reason, message)
        }
    }

    /// Returns a summary of a failure that is not retried until something changes.
    pub fn stalled(reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self {
            convergence: Convergence::Stalled,
            ..Self::blocked(State::Stalled, reason, message)
        }
    }

    /// Whether condition `Ready` is True.
    pub fn is_ready(&self) -> bool {
        matches!(
            self.convergence,
            Convergence::Converged | Convergence::Correcting
        )
    }

    /// Returns a summary with `Ready` True.
    pub fn ready(state: State, reason: impl ReasonText, message: impl Into<String>) -> Self {
        Self {
            convergence: Convergence::Converged,
            ..Self::busy(state, reason, message)
        }
    }
}

/// Returns the kubectl command that prints the log of `job`.
pub(crate) fn logs(tf: &Terraform, job: &str) -> String {
    logs_in(&tf.namespace().unwrap_or_default(), job)
}

/// Returns the kubectl command that prints the log of `job` in `namespace`.
pub(crate) fn logs_in(namespace: &str, job: &str) -> String {
    format!("kubectl logs -n {namespace} job/{job}")
}

/// Returns the kubectl command that merges `change` into the spec.
pub(crate) fn patch(tf: &Terraform, change: &Value) -> String {
    let change = json!({ "spec": change }).to_string();
    // `try_quote` fails only for NUL, which JSON escapes.
    let change = shlex::try_quote(&change).unwrap_or_default();
    let (name, namespace) = (tf.name_any(), tf.namespace().unwrap_or_default());
    format!("kubectl patch tf {name} -n {namespace} --type merge -p {change}")
}

/// Returns the current drift: the changes that the drift check in `history.drift` reported. `None` without drift.
pub(crate) fn drifted(history: &History) -> Option<&ChangeSet> {
    let run = history.drift.as_ref()?.run;
    history.report(run)?.changes.as_ref()
}

/// Formats the counts of a change set: `+2 ~1 -0`.
pub fn change_counts(changes: &ChangeSet) -> String {
    format!("+{} ~{} -{}", changes.add, changes.change, changes.destroy)
}

/// Formats a change set with at most three resources: `+0 ~1 -0: update local_file.a`.
pub fn differences(changes: &ChangeSet) -> String {
    let resources: Vec<String> = changes
        .resources
        .iter()
        .take(3)
        .map(|resource| format!("{} {}", resource.action, resource.address))
        .collect();
    let ellipsis = if changes.resources.len() > 3 {
        ", …"
    } else {
        ""
    };
    format!(
        "{}: {}{ellipsis}",
        change_counts(changes),
        resources.join(", ")
    )
}

/// Returns the summary of a failed query to a repository or registry.
///
/// The message does not contain the time of the next attempt. Queries are retried within a minute, and a status that changes with each
/// attempt would cause one write per resource that uses the repository.
pub fn query_failure(failure: &Failure, retry_at: Timestamp, now: Timestamp) -> Summary {
    if failure.class == FailureClass::User {
        let message = format!(
            "{}; reconciliation resumes automatically once this is fixed",
            failure.message
        );
        return Summary::stalled(&failure.reason, message);
    }
    let message = format!("{}; next attempt within a minute", failure.message);
    // If `retry_at` has passed, the query is already being retried. Its result requeues the resource.
    Summary {
        requeue_at: Some(retry_at).filter(|at| *at > now),
        ..Summary::blocked(State::Failed, &failure.reason, message)
    }
}

/// Returns the summary of a failure that is retried automatically at `next`.
pub(crate) fn retry_summary(
    failures: &Failures,
    retry: &alustan_api::Retry,
    next: Timestamp,
    hint: &str,
) -> Summary {
    let budget = if failures.count == 0 {
        "this failure does not count towards the retry limit".to_owned()
    } else {
        format!("failure {} of {}", failures.count, retry.limit)
    };
    Summary {
        retry_at: Some(next),
        ..Summary::blocked(
            State::Failed,
            &failures.reason,
            format!(
                "{}; {budget}; next attempt at {}{hint}",
                failures.message,
                format_time(next)
            ),
        )
    }
}

/// Returns the summary of a failure that is not retried automatically, because the retry limit is reached or a retry cannot help (rule 10).
pub(crate) fn retries_exhausted(tf: &Terraform, failures: &Failures, hint: &str) -> Summary {
    let budget = if failures.count == u32::MAX {
        "not retried automatically".to_owned()
    } else {
        format!("retry limit reached (failures: {})", failures.count)
    };
    Summary::stalled(
        &failures.reason,
        format!(
            "{}; {budget}; change the module or the resource, or retry with: {}{hint}",
            failures.message,
            retry_command(tf),
        ),
    )
}

/// Returns the kubectl command that requests another attempt.
pub(crate) fn retry_command(tf: &Terraform) -> String {
    format!(
        "kubectl annotate tf {} -n {} --overwrite {}=\"$(date)\"",
        tf.metadata.name.as_deref().unwrap_or_default(),
        tf.metadata.namespace.as_deref().unwrap_or_default(),
        alustan_api::RECONCILE_AT,
    )
}

/// Returns the summary of `failure`, which the configuration of the resource or of the operator causes: a field is invalid or not allowed, or
/// an object that the spec names is missing. A failure that only a user can fix is not retried.
pub(crate) fn configuration_failure(failure: &Failure) -> Summary {
    match failure.class {
        FailureClass::User => Summary::stalled(&failure.reason, &failure.message),
        FailureClass::Transient | FailureClass::Module => {
            Summary::blocked(State::Failed, &failure.reason, &failure.message)
        }
    }
}

/// Formats a time in UTC, truncated to seconds.
pub(crate) fn format_time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}

/// Returns a message suffix with the kubectl command that sets annotation `alustan.io/abandon` of `tf`.
pub(crate) fn abandon_suffix(tf: &Terraform) -> String {
    format!(
        "; to abandon the resource and keep all managed objects: kubectl annotate tf {} -n {} \
         {ABANDON}=true",
        tf.name_any(),
        tf.namespace().unwrap_or_default(),
    )
}

/// Part of the message of a deleted resource, used if the operator does not know whether a run has applied anything.
pub(crate) const UNKNOWN_HISTORY: &str = "the resource has no status, run record or pin, for example \
     after a restore from a backup; it is unknown whether anything was applied, so destroy runs \
     with the current spec and succeeds if there is no state";

/// Appends [`UNKNOWN_HISTORY`] to `summary` of a deleted resource.
pub(crate) fn with_unknown_history(tf: &Terraform, summary: Summary) -> Summary {
    let message = format!(
        "{}; {UNKNOWN_HISTORY}{}",
        summary.message,
        abandon_suffix(tf)
    );
    Summary { message, ..summary }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_is_quoted_as_one_argument_of_the_command() {
        let tf: Terraform = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "team" },
            "spec": {
                "gitRepo": { "url": "https://git.test/a" },
                "containerRegistry": { "imageName": "registry.test/a" },
            },
        }))
        .unwrap();
        let change = json!({ "engine": { "version": "9.9.9-'; reboot; '\"$(reboot)" } });
        let words = shlex::split(&patch(&tf, &change)).unwrap();
        let parsed: Value = serde_json::from_str(words.last().unwrap()).unwrap();
        assert_eq!((words.len(), parsed), (10, json!({ "spec": change })));
    }
}
