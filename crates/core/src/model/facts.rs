//! Facts that follow from the metadata, spec, status, run record or Job of a resource, without an observation of other objects.

use alustan_api::run::{Failures, History, RunPhase, RunRecord, RunSpec, Trigger};
use alustan_api::{ABANDON, DeletionPolicy, KEPT, Mode, Reason, State, Terraform};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
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
        failures: failures.count.saturating_add(failures.transient),
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
    /// `mode: PlanOnly`: no run applies or destroys.
    PlanOnly,
}

impl DeletionHold {
    /// Returns the field that prevents the destroy of `tf`; if several do, the one with the highest precedence.
    pub(crate) fn of(tf: &Terraform) -> Option<Self> {
        let spec = &tf.spec;
        let orphaned = spec.deletion_policy == DeletionPolicy::Orphan;
        match (spec.deletion_protection, orphaned, spec.suspend, spec.mode) {
            (true, ..) => Some(Self::Protected),
            (false, true, ..) => Some(Self::Orphaned),
            (false, false, true, _) => Some(Self::Suspended),
            (false, false, false, Mode::PlanOnly) => Some(Self::PlanOnly),
            (false, false, false, Mode::Apply) => None,
        }
    }

    /// Returns a message suffix with the effect of the field after the current run.
    pub(crate) fn after_run(self) -> &'static str {
        match self {
            Self::Protected => "nothing is destroyed afterwards: spec.deletionProtection is true",
            Self::Orphaned => "nothing is destroyed afterwards: spec.deletionPolicy is Orphan",
            Self::Suspended => "nothing is destroyed afterwards: spec.suspend is true",
            Self::PlanOnly => "nothing is destroyed afterwards: spec.mode is PlanOnly",
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

/// Returns the uid in annotation [`KEPT`] if it differs from the uid of `tf`, for example after a restore from a backup.
pub fn other_uid(tf: &Terraform) -> Option<&str> {
    let kept_uid = tf.annotations().get(KEPT)?;
    (Some(kept_uid) != tf.metadata.uid.as_ref()).then_some(kept_uid)
}

/// Whether the value of annotation [`KEPT`] of `tf` is the uid of `tf`.
pub(crate) fn has_own_uid(tf: &Terraform) -> bool {
    tf.annotations().get(KEPT) == tf.metadata.uid.as_ref()
}

/// Whether `entry` belongs to the field manager that set `spec.approval.plan`
/// (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management>).
pub fn sets_approval(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref();
    fields.is_some_and(|fields| fields.0.pointer("/f:spec/f:approval/f:plan").is_some())
}
