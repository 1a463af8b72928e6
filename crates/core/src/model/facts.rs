//! Facts that follow from the spec, annotations, status, run record or Job of a resource, without an observation of other objects.

use alustan_api::run::{Failures, History, RunPhase, RunRecord, RunSpec, Trigger};
use alustan_api::{ABANDON, DeletionPolicy, Reason, State, Terraform};
use kube_core::ResourceExt;

use crate::observed::JobSeen;

/// Whether status records an apply.
pub(crate) fn status_has_apply(tf: &Terraform) -> bool {
    tf.status
        .as_ref()
        .is_some_and(|status| status.last_applied.is_some())
}

/// Whether status records an apply, complete or partial.
pub(crate) fn status_has_attempt(tf: &Terraform) -> bool {
    status_has_apply(tf) || status_has_partial_apply(tf)
}

/// Whether status reports an apply that is in progress or failed after it had started to change objects.
pub(crate) fn status_has_partial_apply(tf: &Terraform) -> bool {
    tf.status.as_ref().is_some_and(|status| {
        let mut conditions = status.conditions.iter();
        status.state == State::Applying
            || conditions.any(|condition| {
                condition.type_ == "InSync" && condition.reason == Reason::ApplyFailed
            })
    })
}

/// Returns the value of annotation `alustan.io/reconcile-at`, which requests a run.
pub fn requested(tf: &Terraform) -> Option<String> {
    tf.annotations().get(alustan_api::RECONCILE_AT).cloned()
}

/// Whether annotation `alustan.io/apply-at` allows the requested run to correct drift that would otherwise only be reported.
pub(crate) fn requests_apply(tf: &Terraform) -> bool {
    let apply_at = tf.annotations().get(alustan_api::APPLY_AT).cloned();
    apply_at.is_some() && apply_at == requested(tf)
}

/// Whether annotation `alustan.io/reconcile-at` requests a run that has not started yet.
pub fn asked(tf: &Terraform, history: &History) -> bool {
    let requested = requested(tf);
    requested.is_some() && requested != history.reconcile_at
}

/// Returns the trigger of the next attempt after `failures`.
pub fn again(failures: &Failures) -> Trigger {
    Trigger::Retry {
        failures: failures.count.saturating_add(failures.world),
    }
}

/// Whether the Job of the last run is active or one of its pods is alive. The next run waits until the Job and its pods have ended.
pub fn occupied(job: Option<&JobSeen>) -> bool {
    job.is_some_and(|job| !job.finished || job.pods_alive)
}

/// Returns the run of `record` if its result is not in the history yet.
pub fn open_run(record: &RunRecord) -> Option<&RunSpec> {
    record
        .run
        .as_ref()
        .filter(|_| record.phase < RunPhase::Recorded)
}

/// Field of the spec that prevents destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionHold {
    /// `deletionProtection`: the deletion waits.
    Protected,
    /// `deletionPolicy: Orphan`: all real objects stay.
    Orphaned,
    /// `suspend`: no run starts.
    Suspended,
}

impl DeletionHold {
    /// Returns the field that prevents the destroy of `tf`; if several do, the one with the highest precedence.
    pub(crate) fn of(tf: &Terraform) -> Option<Self> {
        let spec = &tf.spec;
        let orphaned = spec.deletion_policy == DeletionPolicy::Orphan;
        match (spec.deletion_protection, orphaned, spec.suspend) {
            (true, _, _) => Some(Self::Protected),
            (false, true, _) => Some(Self::Orphaned),
            (false, false, true) => Some(Self::Suspended),
            (false, false, false) => None,
        }
    }

    /// Returns a message suffix with the effect of the field after the current run.
    pub(crate) fn after_run(self) -> &'static str {
        match self {
            Self::Protected => "nothing is destroyed afterwards: spec.deletionProtection is true",
            Self::Orphaned => "nothing is destroyed afterwards: spec.deletionPolicy is Orphan",
            Self::Suspended => "nothing is destroyed afterwards: spec.suspend is true",
        }
    }
}

/// Whether annotation `alustan.io/abandon` is `"true"`: nothing is destroyed, regardless of the spec.
pub(crate) fn is_abandoned(tf: &Terraform) -> bool {
    tf.annotations()
        .get(ABANDON)
        .is_some_and(|value| value == "true")
}

/// Whether the deletion of `tf` keeps all managed objects.
pub fn keeps_all_objects(tf: &Terraform) -> bool {
    is_abandoned(tf) || DeletionHold::of(tf) == Some(DeletionHold::Orphaned)
}
