//! Static checks of `spec.approval.rules`.

use alustan_api::ApprovalRule;

use super::PLAN;
use crate::Nothing;

/// Rule with an invalid expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.approval.rules[{index}].when: {what}")]
pub struct BadRule {
    /// Index of the rule, from 0.
    pub index: usize,
    /// Error in the expression.
    pub what: String,
}

/// Checks the expressions of `rules`. Does not evaluate them, so no rule can block the caller. Accepts a rule if the thread of the
/// check could not be started: [`judge`](super::judge) then reports the error.
///
/// # Errors
/// The first rule whose expression is invalid, or cannot have a boolean result.
pub fn check(rules: &[ApprovalRule]) -> Result<(), BadRule> {
    rules
        .iter()
        .enumerate()
        .try_for_each(|(index, rule)| match crate::check(&rule.when, PLAN) {
            Ok(()) | Err(Nothing::Unknown(_)) => Ok(()),
            Err(wrong) => Err(BadRule {
                index,
                what: wrong.to_string(),
            }),
        })
}
