//! What can be said of a rule before there is a plan.

use alustan_api::ApprovalRule;
use alustan_expressions::{Nothing, check as check_expression};

use crate::PLAN;

/// A rule that no plan can be judged by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.approval.rules[{index}].when: {what}")]
pub struct BadRule {
    /// Its place among the rules.
    pub index: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Whether plans can be judged by `rules`; the first that is no expression over `plan` is told.
/// Nothing is evaluated, so no rule can keep us busy. One that we lack the means to look at is good
/// until a plan is judged by it.
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
