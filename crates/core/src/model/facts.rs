//! Facts about a resource that follow from its spec, annotations, status, run record or Job alone.

use alustan_api::run::{Failures, History, RunPhase, RunRecord, RunSpec, Trigger};
use alustan_api::{ABANDON, DeletionPolicy, State, Terraform};
use kube::ResourceExt;

use crate::model::summary::HALF_APPLIED;
use crate::observed::JobSeen;

/// Whether the status says that something is applied.
pub(crate) fn says_applied(tf: &Terraform) -> bool {
    tf.status
        .as_ref()
        .is_some_and(|status| status.last_applied.is_some())
}

/// Whether the status says that something is applied, or may be half applied.
pub(crate) fn says_attempted(tf: &Terraform) -> bool {
    says_applied(tf) || says_half_applied(tf)
}

/// Whether the status says that an apply goes on, or failed half-way.
pub(crate) fn says_half_applied(tf: &Terraform) -> bool {
    tf.status.as_ref().is_some_and(|status| {
        let mut conditions = status.conditions.iter();
        status.state == State::Applying
            || conditions.any(|it| it.type_ == "InSync" && it.reason == HALF_APPLIED)
    })
}

/// The value of the annotation that asks for a run.
pub fn requested(tf: &Terraform) -> Option<String> {
    tf.annotations().get(alustan_api::RECONCILE_AT).cloned()
}

/// Whether what that annotation asks for may also correct drift that is otherwise only reported.
pub(crate) fn asks_to_apply(tf: &Terraform) -> bool {
    let applies = tf.annotations().get(alustan_api::APPLY_AT).cloned();
    applies.is_some() && applies == requested(tf)
}

/// Whether that annotation has a value that no run was started for.
pub fn asked(tf: &Terraform, history: &History) -> bool {
    let requested = requested(tf);
    requested.is_some() && requested != history.reconcile_at
}

/// Why the next try after `failures` is started.
pub fn again(failures: &Failures) -> Trigger {
    Trigger::Retry {
        failures: failures.count.saturating_add(failures.world),
    }
}

/// Whether the Job of the last run still keeps the next one from starting.
pub fn occupied(job: Option<&JobSeen>) -> bool {
    job.is_some_and(|job| !job.finished || job.pods_alive)
}

/// The run of `record` that is not yet in the memory.
pub fn open_run(record: &RunRecord) -> Option<&RunSpec> {
    record
        .run
        .as_ref()
        .filter(|_| record.phase < RunPhase::Recorded)
}

/// Why the spec says that nothing is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// `deletionProtection`: nothing at all is done.
    Protected,
    /// `deletionPolicy: Orphan`: everything stays as it is.
    Orphaned,
    /// `suspend`: no run begins.
    Suspended,
}

impl Kept {
    /// The strongest reason of `tf`, if it has any.
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

    /// What comes once a run that goes on is over.
    pub(crate) fn after_the_run(self) -> &'static str {
        match self {
            Self::Protected => "nothing is destroyed then, since spec.deletionProtection is true",
            Self::Orphaned => {
                "everything is left as it is then, since spec.deletionPolicy is Orphan"
            }
            Self::Suspended => "nothing is destroyed then, since spec.suspend is true",
        }
    }
}

/// Whether a person gave `tf` up: nothing is destroyed, whatever its spec says.
pub(crate) fn is_abandoned(tf: &Terraform) -> bool {
    tf.annotations()
        .get(ABANDON)
        .is_some_and(|value| value == "true")
}

/// Whether the deleted `tf` goes and leaves what it manages as it is.
pub fn leaves_everything(tf: &Terraform) -> bool {
    is_abandoned(tf) || Kept::of(tf) == Some(Kept::Orphaned)
}
