//! Rules of `spec.approval.rules`: which plans a person must approve, and which nobody may apply.
//! Pure: the controller checks them, the runner judges its plan by them.

mod check;

use alustan_api::{ApprovalRule, RuleAction};
use alustan_expressions::{Nothing, Subject, evaluate};
use serde::Serialize;
use serde_json::Value;

pub use check::{BadRule, check};

/// What rules are about.
const PLAN: Subject = Subject {
    name: "plan",
    fields: &["add", "change", "destroy", "resources"],
    loops: 2,
    example: "plan.destroy > 0",
};

/// How many characters are told of why a rule could not be judged.
const LONGEST_REASON: usize = 300;

/// A plan as rules see it: all changes, reads and no-ops left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Resources to create, replaced ones included.
    pub add: i64,
    /// Resources to update in place.
    pub change: i64,
    /// Resources to destroy, replaced ones included.
    pub destroy: i64,
    /// All that changes.
    pub resources: Vec<Resource>,
}

/// A resource that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// Its address: `module.db.aws_db_instance.main[0]`.
    pub address: String,
    /// Its type: `aws_db_instance`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its name: `main`.
    pub name: String,
    /// The address of its module, `module.db`; empty for the root module.
    pub module: String,
    /// `create`, `update`, `replace`, `delete`, `forget` or `import`.
    pub action: String,
}

/// A rule that a plan falls under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    /// Its place in `spec.approval.rules`.
    pub index: usize,
    /// What it does.
    pub then: RuleAction,
    /// Its expression.
    pub when: String,
    /// Why nobody knows whether it matches. It counts as matching then.
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
                "spec.approval.rules[{index}] could not be judged and counts as matching: {why}: \
                 {when}"
            ),
        }
    }
}

/// The rules that `plan` falls under, in their order. One that cannot be judged is among them.
pub fn judge(rules: &[ApprovalRule], plan: &Plan) -> Vec<Matched> {
    let rules = rules.iter().enumerate();
    let judged = |(index, rule): (usize, &ApprovalRule)| match holds(&rule.when, plan) {
        Ok(false) => None,
        Ok(true) => Some(matched(index, rule, None)),
        Err(why) => Some(matched(index, rule, Some(&why.to_string()))),
    };
    rules.filter_map(judged).collect()
}

/// All of `rules`, as nobody knows whether a plan falls under them, and `why`.
pub fn unjudged(rules: &[ApprovalRule], why: &str) -> Vec<Matched> {
    let rules = rules.iter().enumerate();
    rules
        .map(|(index, rule)| matched(index, rule, Some(why)))
        .collect()
}

fn matched(index: usize, rule: &ApprovalRule, unclear: Option<&str>) -> Matched {
    Matched {
        index,
        then: rule.then,
        when: rule.when.clone(),
        unclear: unclear.map(|why| why.chars().take(LONGEST_REASON).collect()),
    }
}

fn holds(when: &str, plan: &Plan) -> Result<bool, Nothing> {
    match evaluate(when, PLAN, plan)? {
        Value::Bool(holds) => Ok(holds),
        // Not the value itself: it may be all of the plan.
        _ => Err(Nothing::Invalid(
            "it gives neither true nor false".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests;
