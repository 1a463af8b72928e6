//! Rules of `spec.approval.rules`: which plans a person must approve, and which nobody may apply.
//! Pure: the controller checks them, the runner judges its plan by them.

mod check;

use alustan_api::{ApprovalRule, RuleAction};
use cel::{Context, Value};
use serde::Serialize;

pub use check::{BadRule, check};

/// The name that a rule gives to the plan.
const PLAN: &str = "plan";

/// How many characters are told of why a rule could not be judged.
const LONGEST_REASON: usize = 300;

/// The stack on which an expression is read: only what is used of it costs memory.
const STACK: usize = 64 * 1024 * 1024;

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
    let judged = |(index, rule): (usize, &ApprovalRule)| {
        let holds = apart(STACK, || holds(&rule.when, plan));
        match holds.unwrap_or_else(|error| Err(format!("it could not be looked at: {error}"))) {
            Ok(false) => None,
            Ok(true) => Some(matched(index, rule, None)),
            Err(why) => Some(matched(index, rule, Some(&why))),
        }
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

fn holds(when: &str, plan: &Plan) -> Result<bool, String> {
    let program = check::compile(when)?;
    let mut context = Context::default();
    let known = context.add_variable(PLAN, plan);
    known.map_err(|error| error.to_string())?;
    match program.execute(&context) {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(other) => Err(format!("it gives {}, not true or false", other.type_of())),
        Err(error) => Err(error.to_string()),
    }
}

/// Does it in a thread of its own: an expression may be nested as deep as it is long, and whatever
/// becomes of it must become of nobody else. Fails where there is no thread to be had.
fn apart<T: Send>(
    stack: usize,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> std::io::Result<Result<T, String>> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack);
        let done = thread.spawn_scoped(scope, work)?.join();
        Ok(done.unwrap_or_else(|_| Err("it is beyond what this CEL can do".to_owned())))
    })
}

#[cfg(test)]
mod tests;
