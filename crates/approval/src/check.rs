//! Static checks of rules.

use alustan_api::ApprovalRule;
use alustan_expressions::{Nothing, check as check_expression};

use crate::PLAN;

/// A rule that cannot judge plans.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.approval.rules[{index}].when: {what}")]
pub struct BadRule {
    /// Index of the rule, from 0.
    pub index: usize,
    /// Cause.
    pub what: String,
}

/// Checks that `rules` can judge plans. Evaluates nothing, so that no rule can keep the caller busy. A rule whose check could not
/// run passes until it judges a plan.
///
/// # Errors
/// The first rule that is not an expression over `plan`.
pub fn check(rules: &[ApprovalRule]) -> Result<(), BadRule> {
    let checked =
        rules
            .iter()
            .enumerate()
            .map(|(index, rule)| match check_expression(&rule.when, PLAN) {
                Ok(()) | Err(Nothing::Unknown(_)) => Ok(()),
                Err(wrong) => Err(BadRule {
                    index,
                    what: wrong.to_string(),
                }),
            });
    checked.collect()
}
