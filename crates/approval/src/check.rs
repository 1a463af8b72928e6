//! What can be said of a rule before there is a plan.

use alustan_api::ApprovalRule;
use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, SelectExpr};
use cel::{ParseErrors, Program};

use crate::{PLAN, STACK, apart};

/// What a plan has.
const FIELDS: &[&str] = &["add", "change", "destroy", "resources"];

/// Names of types, which are names like any other to a parser.
const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

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
    check_on(STACK, rules)
}

fn check_on(stack: usize, rules: &[ApprovalRule]) -> Result<(), BadRule> {
    let checked = rules.iter().enumerate().map(|(index, rule)| {
        let checked = apart(stack, || check_program(&compile(&rule.when)?));
        checked
            .unwrap_or(Ok(()))
            .map_err(|what| BadRule { index, what })
    });
    checked.collect()
}

/// The program of an expression, or what is wrong with it.
pub(crate) fn compile(when: &str) -> Result<Program, String> {
    Program::compile(when).map_err(|errors| first(&errors))
}

fn first(errors: &ParseErrors) -> String {
    let Some(error) = errors.errors.first() else {
        return "it is no expression in CEL".to_owned();
    };
    let (line, column) = error.pos;
    let what = error.msg.trim();
    format!("it is no expression in CEL: {what} (line {line}, column {column})")
}

fn check_program(program: &Program) -> Result<(), String> {
    let root = program.expression();
    Names::default().check(root)?;
    if is_no_bool(&root.expr) {
        return Err("it must be true or false, such as `plan.destroy > 0`".to_owned());
    }
    Ok(())
}

/// Whether it can be seen at once that the value is neither true nor false.
fn is_no_bool(expr: &Expr) -> bool {
    use cel::common::ast::LiteralValue;
    match expr {
        Expr::Literal(value) => !matches!(value, LiteralValue::Boolean(_)),
        Expr::Ident(_) | Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => true,
        Expr::Select(select) => !select.test && is_plan(&select.operand),
        Expr::Call(_) | Expr::Comprehension(_) | Expr::Unspecified => false,
    }
}

fn is_plan(expr: &IdedExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == PLAN)
}

/// The names that mean something at one place of an expression, besides `plan`.
#[derive(Default)]
struct Names<'a> {
    bound: Vec<&'a str>,
}

impl<'a> Names<'a> {
    /// Fails at the first name that means nothing.
    fn check(&mut self, expr: &'a IdedExpr) -> Result<(), String> {
        match &expr.expr {
            Expr::Ident(name) => self.check_name(name),
            Expr::Select(select) => self.check_select(select),
            Expr::Comprehension(comprehension) => self.check_comprehension(comprehension),
            Expr::Call(call) => {
                self.check_all(call.target.as_deref().into_iter().chain(&call.args))
            }
            Expr::List(list) => self.check_all(&list.elements),
            Expr::Map(map) => self.check_all(map.entries.iter().flat_map(|it| parts(&it.expr))),
            Expr::Struct(it) => self.check_all(it.entries.iter().flat_map(|it| parts(&it.expr))),
            Expr::Literal(_) | Expr::Unspecified => Ok(()),
        }
    }

    fn check_all(&mut self, all: impl IntoIterator<Item = &'a IdedExpr>) -> Result<(), String> {
        all.into_iter().try_for_each(|expr| self.check(expr))
    }

    fn check_name(&self, name: &str) -> Result<(), String> {
        let known = name == PLAN || self.bound.contains(&name) || TYPES.contains(&name);
        if known {
            return Ok(());
        }
        Err(format!("there is no {name:?}; a rule knows {PLAN:?}"))
    }

    fn check_select(&mut self, select: &'a SelectExpr) -> Result<(), String> {
        let of_plan = is_plan(&select.operand) && !self.bound.contains(&PLAN);
        if of_plan && !FIELDS.contains(&select.field.as_str()) {
            let (field, fields) = (&select.field, FIELDS.join(", "));
            return Err(format!("{PLAN} has no {field:?}; it has {fields}"));
        }
        self.check(&select.operand)
    }

    fn check_comprehension(&mut self, it: &'a ComprehensionExpr) -> Result<(), String> {
        self.check_all([&it.iter_range, &it.accu_init])?;
        let before = self.bound.len();
        self.bound.extend([it.iter_var.as_str(), &it.accu_var]);
        self.bound.extend(it.iter_var2.as_deref());
        let checked = self.check_all([&it.loop_cond, &it.loop_step, &it.result]);
        self.bound.truncate(before);
        checked
    }
}

fn parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alustan_api::RuleAction;

    #[test]
    fn a_rule_is_not_bad_because_we_have_no_thread_for_it() {
        let rules = [ApprovalRule {
            when: "plan.destroy > 0".into(),
            then: RuleAction::Ask,
        }];
        assert_eq!(check_on(usize::MAX / 4, &rules), Ok(()));
    }
}
