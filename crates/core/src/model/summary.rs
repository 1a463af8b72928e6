//! State, reason and message of a resource, and the wording that several decisions share.

use alustan_api::report::{ChangeSet, Failure, FailureClass};
use alustan_api::run::{Failures, History};
use alustan_api::{ABANDON, State, Terraform};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

/// The reason of `InSync` where an apply failed half-way.
pub(crate) const HALF_APPLIED: &str = "ApplyFailed";

/// The reason of a resource whose plan waits for a person.
pub(crate) const AWAITING: &str = "AwaitingApproval";

/// The reason of a resource for which no run begins.
pub(crate) const SUSPENDED: &str = "Suspended";

/// The reason of a deleted resource that is not to be destroyed.
pub(crate) const DELETION_PROTECTED: &str = "DeletionProtected";

/// Reasons for which a resource stands still because a person wants it so. Alerts leave them out, too.
pub const ON_PURPOSE: [&str; 2] = [SUSPENDED, DELETION_PROTECTED];

/// The reason of drift that no correction ends (rule 7).
pub(crate) const NOT_CONVERGING: &str = "NotConverging";

/// What goes on with a resource, for people and for `kubectl wait`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// In one word.
    pub state: State,
    /// `Ready`: yes, no, or on the way.
    pub ready: Option<bool>,
    /// A stable word.
    pub reason: String,
    /// What goes on, what comes next and when, what a person can do.
    pub message: String,
    /// Whether nothing more happens until a person changes something.
    pub stalled: bool,
    /// When a failure is tried again.
    pub retry_at: Option<Timestamp>,
    /// When to look again at the latest; not told.
    pub look_at: Option<Timestamp>,
}

impl Summary {
    /// Work is going on or due.
    pub fn busy(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self {
            state,
            ready: None,
            reason: reason.to_owned(),
            message: message.into(),
            stalled: false,
            retry_at: None,
            look_at: None,
        }
    }

    /// Something stands against it and is tried again.
    pub fn blocked(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self {
            ready: Some(false),
            ..Self::busy(state, reason, message)
        }
    }

    /// Nothing more happens until a person changes something.
    pub fn stalled(reason: &str, message: impl Into<String>) -> Self {
        Self {
            stalled: true,
            ..Self::blocked(State::Stalled, reason, message)
        }
    }

    /// Everything is as described.
    pub fn ready(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self {
            ready: Some(true),
            ..Self::busy(state, reason, message)
        }
    }
}

/// The command that shows what `job` prints.
pub(crate) fn logs(tf: &Terraform, job: &str) -> String {
    logs_in(&tf.namespace().unwrap_or_default(), job)
}

/// The same, of a `job` in `namespace`.
pub(crate) fn logs_in(namespace: &str, job: &str) -> String {
    format!("kubectl logs -n {namespace} job/{job}")
}

/// The command that changes the spec as `change` says.
pub(crate) fn patch(tf: &Terraform, change: &Value) -> String {
    format!(
        "kubectl patch tf {} -n {} --type merge -p '{}'",
        tf.name_any(),
        tf.namespace().unwrap_or_default(),
        json!({ "spec": change }),
    )
}

/// How the real objects differ, as the last look that found it tells.
pub(crate) fn drifted(history: &History) -> Option<&ChangeSet> {
    let run = history.drift.as_ref()?.run;
    history.report(run)?.changes.as_ref()
}

/// A change set in one word: `+2 ~1 -0`.
pub fn summary(changes: &ChangeSet) -> String {
    format!("+{} ~{} -{}", changes.add, changes.change, changes.destroy)
}

/// A change set in a line: `+0 ~1 -0: update local_file.a`.
pub fn differences(changes: &ChangeSet) -> String {
    let named: Vec<String> = changes
        .resources
        .iter()
        .take(3)
        .map(|resource| format!("{} {}", resource.action, resource.address))
        .collect();
    let more = if changes.resources.len() > 3 {
        ", …"
    } else {
        ""
    };
    format!("{}: {}{more}", summary(changes), named.join(", "))
}

/// The reason of a resource for which a registry is asked.
pub(crate) const LOOKUP: &str = "ImageLookup";

/// What goes on while a question has only a failure for an answer.
///
/// No time is told: questions are asked again within a minute, and a status that changed with
/// each try would cost every resource of a repository a write.
pub fn unanswered(failure: &Failure, retry_at: Timestamp, now: Timestamp) -> Summary {
    if failure.class == FailureClass::User {
        let message = format!(
            "{}; once that is mended, this goes on by itself",
            failure.message
        );
        return Summary::stalled(&failure.reason, message);
    }
    let message = format!("{}; asked again within a minute", failure.message);
    // One that is being asked right now wakes by its answer.
    Summary {
        look_at: Some(retry_at).filter(|at| *at > now),
        ..Summary::blocked(State::Failed, &failure.reason, message)
    }
}

/// A failure that is tried again by itself.
pub(crate) fn waiting(
    failures: &Failures,
    retry: &alustan_api::Retry,
    next: Timestamp,
    see: &str,
) -> Summary {
    let budget = if failures.count == 0 {
        "costs no retry".to_owned()
    } else {
        format!("failure {} of {}", failures.count, retry.limit)
    };
    Summary {
        retry_at: Some(next),
        ..Summary::blocked(
            State::Failed,
            &failures.reason,
            format!(
                "{}; {budget}; tried again at {}{see}",
                failures.message,
                clock(next)
            ),
        )
    }
}

/// A failure whose budget is used up.
pub(crate) fn exhausted(tf: &Terraform, failures: &Failures, see: &str) -> Summary {
    let tries = if failures.count == u32::MAX {
        "no retry would help".to_owned()
    } else {
        format!("failed {} times in a row", failures.count)
    };
    Summary::stalled(
        &failures.reason,
        format!(
            "{}; {tries}; change the module or the resource, or try again with: {}{see}",
            failures.message,
            try_again(tf),
        ),
    )
}

/// The command by which a person asks for another try.
pub(crate) fn try_again(tf: &Terraform) -> String {
    format!(
        "kubectl annotate tf {} -n {} --overwrite {}=\"$(date)\"",
        tf.metadata.name.as_deref().unwrap_or_default(),
        tf.metadata.namespace.as_deref().unwrap_or_default(),
        alustan_api::RECONCILE_AT,
    )
}

/// What a person must mend is no retry's business.
pub(crate) fn refused(failure: &Failure) -> Summary {
    match failure.class {
        FailureClass::User => Summary::stalled(&failure.reason, &failure.message),
        FailureClass::Transient | FailureClass::Module => {
            Summary::blocked(State::Failed, &failure.reason, &failure.message)
        }
    }
}

/// A moment as people read it: to the second, in UTC.
pub(crate) fn clock(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}

/// How a person gives `tf` up, as the end of a message.
pub(crate) fn how_to_abandon(tf: &Terraform) -> String {
    format!(
        "; to give up and leave everything as it is: kubectl annotate tf {} -n {} {ABANDON}=true",
        tf.name_any(),
        tf.namespace().unwrap_or_default(),
    )
}

/// What is said where nobody knows whether anything was applied.
pub(crate) const NOTHING_KNOWN: &str = "this resource has no status, run record or pin, as after a restore from a backup: whether \
     anything was applied is unknown, so destroy runs with the spec as it is, and finding no state \
     is success";

/// `situation` of a deleted resource of which nothing is known.
pub(crate) fn unknown(tf: &Terraform, situation: Summary) -> Summary {
    let message = format!(
        "{}; {NOTHING_KNOWN}{}",
        situation.message,
        how_to_abandon(tf)
    );
    Summary {
        message,
        ..situation
    }
}

/// The reason of a resource that is destroyed.
pub(crate) const DESTROYED: &str = "Destroyed";
