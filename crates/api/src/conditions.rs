//! Conditions of a `Terraform` resource and the stable reasons that they carry.
//!
//! `Ready`, `Reconciling` and `Stalled` follow kstatus
//! (<https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// A condition type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// What the resource describes is applied, and nothing stands against it.
    Ready,
    /// Work is going on or due.
    Reconciling,
    /// Nothing more happens until a person changes something.
    Stalled,
    /// The commit is known and its context could be made.
    SourceReady,
    /// The runner image is in the registry.
    ImageReady,
    /// The last look at the real objects found them as described.
    InSync,
    /// What this resource depends on and waits for is ready.
    DependenciesReady,
}

impl Kind {
    /// The condition's `type`.
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

/// A condition as decided, before it is merged with the previous ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub kind: Kind,
    /// `Some(true)` is `True`, `None` is `Unknown`.
    pub status: Option<bool>,
    /// A stable `PascalCase` word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Verdict {
    /// A condition of `kind`.
    pub fn new(
        kind: Kind,
        status: impl Into<Option<bool>>,
        reason: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status: status.into(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// The conditions for `verdicts`, with `lastTransitionTime` kept from `previous` where the
/// status is the same, and set to `now` elsewhere. What has no verdict is dropped.
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

/// `conditions` with those of `verdicts` in their places, and the others as they are.
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

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = merge(
            &[],
            &[Verdict::new(Kind::Ready, false, "Building", "a")],
            Some(1),
            at(10),
        );
        let second = merge(
            &first,
            &[Verdict::new(Kind::Ready, false, "Applying", "b")],
            Some(2),
            at(20),
        );
        assert_eq!(second[0].last_transition_time, Time(at(10)));
        assert_eq!(second[0].reason, "Applying");
        assert_eq!(second[0].observed_generation, Some(2));
        let third = merge(
            &second,
            &[Verdict::new(Kind::Ready, true, "Applied", "c")],
            Some(2),
            at(30),
        );
        assert_eq!(third[0].last_transition_time, Time(at(30)));
    }
}
