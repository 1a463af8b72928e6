//! Evaluates `spec.approval.rules`: which plans need approval, and which plans must not be applied. The controller checks the
//! expressions of the rules, and the runner evaluates them on its plan. The crate performs no I/O.

mod check;

use alustan_api::{ApprovalRule, RuleAction};
use serde::Serialize;
use serde_json::Value;

use crate::{Nothing, Subject, evaluate};

pub use check::{BadRule, check};

/// Variable `plan` in the expressions of rules.
const PLAN: Subject = Subject {
    name: "plan",
    fields: &["add", "change", "destroy", "resources"],
    loops: 2,
    example: "plan.destroy > 0",
};

/// Maximum length of the reason why a rule could not be evaluated, in characters.
const MAX_REASON_LENGTH: usize = 300;

/// Value of `plan` in the expressions of rules: all changes of a plan, without reads and no-ops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Number of resources to create, including replaced ones.
    pub add: i64,
    /// Number of resources to update in place.
    pub change: i64,
    /// Number of resources to destroy, including replaced ones.
    pub destroy: i64,
    /// All resources that change.
    pub resources: Vec<Resource>,
}

/// A resource of the module that the plan changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// Address, such as `module.db.aws_db_instance.main[0]`.
    pub address: String,
    /// Type, such as `aws_db_instance`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name, such as `main`.
    pub name: String,
    /// Address of the module, such as `module.db`. Empty for the root module.
    pub module: String,
    /// `create`, `update`, `replace`, `delete`, `forget` or `import`.
    pub action: String,
}

/// A rule that matches a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// Index in `spec.approval.rules`, from 0.
    pub index: usize,
    /// Action of the rule.
    pub then: RuleAction,
    /// Expression of the rule.
    pub when: String,
    /// Reason why the rule could not be evaluated. A rule that could not be evaluated is handled as matching.
    pub unclear: Option<String>,
}

impl std::fmt::Display for Matched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index, when, .. } = self;
        let when = when.trim();
        match &self.unclear {
            None => write!(f, "spec.approval.rules[{index}]: {when}"),
            Some(why) => write!(
                f,
                "spec.approval.rules[{index}] cannot be evaluated ({why}) and is handled as matching: \
                 {when}"
            ),
        }
    }
}

/// Returns the rules that match `plan`, in order. Includes rules that could not be evaluated.
pub fn judge(rules: &[ApprovalRule], plan: &Plan) -> Vec<Matched> {
    let rules = rules.iter().enumerate();
    let judged = |(index, rule): (usize, &ApprovalRule)| match holds(&rule.when, plan) {
        Ok(false) => None,
        Ok(true) => Some(matched(index, rule, None)),
        Err(why) => Some(matched(index, rule, Some(&why.to_string()))),
    };
    rules.filter_map(judged).collect()
}

/// Returns all `rules` as matching. `why` is the reason why they could not be evaluated.
pub fn unjudged(rules: &[ApprovalRule], why: &str) -> Vec<Matched> {
    rules
        .iter()
        .enumerate()
        .map(|(index, rule)| matched(index, rule, Some(why)))
        .collect()
}

fn matched(index: usize, rule: &ApprovalRule, unclear: Option<&str>) -> Matched {
    Matched {
        index,
        then: rule.then,
        when: rule.when.clone(),
        unclear: unclear.map(|why| why.chars().take(MAX_REASON_LENGTH).collect()),
    }
}

fn holds(when: &str, plan: &Plan) -> Result<bool, Nothing> {
    match evaluate(when, PLAN, plan)? {
        Value::Bool(holds) => Ok(holds),
        // The message omits the result, which may contain the whole plan.
        _ => Err(Nothing::Invalid("the result is not a boolean".to_owned())),
    }
}

#[cfg(test)]
mod tests;
