//! What must hold for every decision.

use alustan_api::{State, TerraformStatus};
use alustan_core::seen::Seen;
use alustan_core::step::Decision;

use super::{World, condition};

impl World {
    /// Every state says why, what comes next and when.
    pub(crate) fn check(&self, decision: &Decision, seen: &Seen) {
        let statuses = std::iter::once(&decision.status);
        for status in statuses.chain(decision.start.as_ref().map(|start| &start.status)) {
            self.says_why(status);
            if condition(status, "Ready") == "True" {
                self.may_be_ready(status, seen);
            }
        }
    }

    fn says_why(&self, status: &TerraformStatus) {
        assert_eq!(status.observed_generation, self.tf().metadata.generation);
        assert!(!status.message.is_empty(), "no message: {status:?}");
        for condition in &status.conditions {
            let mut letters = condition.reason.chars();
            assert!(
                letters
                    .next()
                    .is_some_and(|first| first.is_ascii_uppercase())
                    && letters.all(|letter| letter.is_ascii_alphanumeric()),
                "{condition:?} has no PascalCase reason"
            );
        }
        let is_true = |kind| condition(status, kind) == "True";
        assert!(
            !(is_true("Stalled") && is_true("Reconciling")),
            "{status:?}"
        );
        assert!(!(is_true("Stalled") && is_true("Ready")), "{status:?}");
        assert!(
            is_true("Ready") || is_true("Stalled") || is_true("Reconciling"),
            "{status:?}"
        );
        let retry = status.retry.as_ref();
        if status.state == State::Failed {
            assert!(
                retry.is_some_and(|retry| retry.next_at.is_some()),
                "when? {status:?}"
            );
        }
        if status.state == State::Stalled {
            let helps = ["kubectl ", "spec."]
                .iter()
                .any(|word| status.message.contains(word));
            assert!(helps, "nothing says what to do: {}", status.message);
        }
        if is_true("Ready") {
            assert!(retry.is_none(), "ready, and yet: {retry:?}");
        }
    }

    fn may_be_ready(&self, status: &TerraformStatus, seen: &Seen) {
        assert!(
            !self.is_deleted(),
            "a deleted resource is ready: {status:?}"
        );
        assert!(
            !self.real.partial,
            "a half-done change is ready: {status:?}"
        );
        if let Some(wanted) = self.wanted(seen) {
            assert_eq!(
                self.real.config.as_ref(),
                Some(&wanted),
                "ready, but not with {wanted:?}"
            );
        }
    }
}
