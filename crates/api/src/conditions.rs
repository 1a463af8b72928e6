//! Conditions of a `Terraform` resource.
//!
//! `Ready`, `Reconciling` and `Stalled` follow kstatus (<https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::reason::ReasonText;

/// Message of conditions `Reconciling` and `Stalled` with status True. Condition `Ready` has the full text.
const SEE_READY: &str = "see condition Ready";

/// Condition type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The current configuration is applied and health checks pass.
    Ready,
    /// The resource is neither ready nor stalled, or an apply or destroy is in progress.
    Reconciling,
    /// The operator does not retry until the resource, the repository or the cluster changes.
    Stalled,
    /// The revision is known and its context exists.
    SourceReady,
    /// The runner image is in the registry.
    ImageReady,
    /// The last comparison of the real objects with the configuration found no difference.
    InSync,
    /// Dependencies are ready, inputs exist and tests of `spec.waitFor` pass.
    DependenciesReady,
}

impl Kind {
    /// Returns the `type` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::SourceReady => "SourceReady",
            Self::ImageReady => "ImageReady",
            Self::InSync => "InSync",
            Self::DependenciesReady => "DependenciesReady",
        }
    }
}

/// Progress of a resource towards its configuration. `Ready`, `Reconciling` and `Stalled` are derived from this value, so that they cannot
/// contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convergence {
    /// The configuration is applied.
    Converged,
    /// The configuration is applied, and a run changes real objects, for example to correct drift.
    Correcting,
    /// A run or build is in progress or due. Whether the configuration is applied is not known yet.
    Converging,
    /// The last attempt failed. The operator retries automatically.
    Retrying,
    /// The last attempt failed, or no attempt is possible, for example with `spec.suspend`. The operator does not retry until the resource,
    /// the repository or the cluster changes.
    Stalled,
}

impl Convergence {
    /// Returns the conditions `Ready`, `Reconciling` and `Stalled`. The message of `Ready` is `message`. If `Reconciling` or `Stalled` is
    /// true, its message refers to `Ready`.
    pub fn verdicts(self, reason: impl ReasonText, message: &str) -> [Verdict; 3] {
        let reason: &String = &reason.into();
        let (ready, reconciling, stalled) = match self {
            Self::Converged => (Some(true), false, false),
            Self::Correcting => (Some(true), true, false),
            Self::Converging => (None, true, false),
            Self::Retrying => (Some(false), true, false),
            Self::Stalled => (Some(false), false, true),
        };
        let reference = |is_true| if is_true { SEE_READY } else { "" };
        [
            Verdict::new(Kind::Ready, ready, reason, message),
            Verdict::new(
                Kind::Reconciling,
                reconciling,
                reason,
                reference(reconciling),
            ),
            Verdict::new(Kind::Stalled, stalled, reason, reference(stalled)),
        ]
    }
}

/// Condition without `observedGeneration` and `lastTransitionTime`, which [`merge`] adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Condition type.
    pub kind: Kind,
    /// `Some(true)` is `True`, `Some(false)` is `False`, `None` is `Unknown`.
    pub status: Option<bool>,
    /// [`Reason`](crate::Reason) as a string, or a reason that Kubernetes reports for a pod.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

impl Verdict {
    /// Creates a condition of type `kind`, without `observedGeneration` and `lastTransitionTime`.
    pub fn new(
        kind: Kind,
        status: impl Into<Option<bool>>,
        reason: impl ReasonText,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// Returns the conditions for `verdicts`. The `lastTransitionTime` of a condition is the time in `previous` if the status is unchanged, and `now` if
/// it changed. Conditions in `previous` without a verdict are dropped.
pub fn merge(
    previous: &[Condition],
    verdicts: &[Verdict],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    verdicts
        .iter()
        .map(|verdict| {
            let status = match verdict.status {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            let since = previous
                .iter()
                .find(|old| old.type_ == verdict.kind.as_str() && old.status == status)
                .map_or(Time(now), |old| old.last_transition_time.clone());
            Condition {
                last_transition_time: since,
                message: verdict.message.clone(),
                observed_generation: generation,
                reason: verdict.reason.clone(),
                status: status.to_owned(),
                type_: verdict.kind.as_str().to_owned(),
            }
        })
        .collect()
}

/// Returns the conditions for `verdicts`, followed by the elements of `conditions` whose type has no verdict. Takes transition times from
/// `previous`, as [`merge`] does.
pub fn update(
    conditions: Vec<Condition>,
    previous: &[Condition],
    verdicts: &[Verdict],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let new = merge(previous, verdicts, generation, now);
    let replaced = |old: &Condition| new.iter().any(|new| new.type_ == old.type_);
    let others: Vec<_> = conditions
        .into_iter()
        .filter(|old| !replaced(old))
        .collect();
    new.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    #[test]
    fn transition_time_changes_only_with_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = merge(
            &[],
            &[Verdict::new(Kind::Ready, false, Reason::Building, "a")],
            Some(1),
            at(10),
        );
        let second = merge(
            &first,
            &[Verdict::new(Kind::Ready, false, Reason::Running, "b")],
            Some(2),
            at(20),
        );
        assert_eq!(second[0].last_transition_time, Time(at(10)));
        assert_eq!(second[0].reason, Reason::Running);
        assert_eq!(second[0].observed_generation, Some(2));
        let third = merge(
            &second,
            &[Verdict::new(Kind::Ready, true, Reason::Applied, "c")],
            Some(2),
            at(30),
        );
        assert_eq!(third[0].last_transition_time, Time(at(30)));
    }
}
