//! Static checks of expressions.

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use cel::{ParseErrors, Program};

use crate::subject::{MAX_LENGTH, Nothing, Subject};
use crate::thread::{STACK, apart};

/// Names of types in CEL. The parser does not distinguish them from names of variables.
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

/// Checks that `expression` is valid, uses no variable other than `subject`, and may have a boolean result. Does not evaluate the
/// expression, so no expression can block the caller.
///
/// # Errors
/// [`Nothing::Invalid`] with the cause, or [`Nothing::Unknown`] if the check could not run.
pub fn check(expression: &str, subject: Subject) -> Result<(), Nothing> {
    check_on(STACK, expression, subject)
}

fn check_on(stack: usize, expression: &str, subject: Subject) -> Result<(), Nothing> {
    apart(stack, || {
        let program = program(expression, subject).map_err(Nothing::Invalid)?;
        if is_no_bool(&program.expression().expr, subject) {
            let example = subject.example;
            let wrong = format!("the result must be a boolean, for example `{example}`");
            return Err(Nothing::Invalid(wrong));
        }
        Ok(())
    })
}

/// Compiles an expression over `subject`.
///
/// # Errors
/// The cause, if the expression is invalid.
pub(crate) fn program(expression: &str, subject: Subject) -> Result<Program, String> {
    if expression.len() > MAX_LENGTH {
        return Err(format!("the expression is longer than {MAX_LENGTH} bytes"));
    }
    let program = Program::compile(expression).map_err(|errors| first(&errors))?;
    let mut names = Names {
        subject,
        bound: Vec::new(),
        loops: 0,
    };
    names.check(program.expression())?;
    Ok(program)
}

fn first(errors: &ParseErrors) -> String {
    let Some(error) = errors.errors.first() else {
        return "invalid CEL expression".to_owned();
    };
    let (line, column) = error.pos;
    let message = error.msg.trim();
    format!("invalid CEL expression: {message} (line {line}, column {column})")
}

/// Whether the result is certainly not a boolean.
fn is_no_bool(expr: &Expr, subject: Subject) -> bool {
    match expr {
        Expr::Literal(value) => !matches!(value, LiteralValue::Boolean(_)),
        Expr::Ident(_) | Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => true,
        Expr::Select(select) => {
            let known = !subject.fields.is_empty();
            known && !select.test && is_subject(&select.operand, subject)
        }
        Expr::Call(_) | Expr::Comprehension(_) | Expr::Unspecified => false,
    }
}

fn is_subject(expr: &IdedExpr, subject: Subject) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == subject.name)
}

/// Variables that are defined at a position of an expression: the subject and the variables of the enclosing loops.
struct Names<'a> {
    subject: Subject,
    bound: Vec<&'a str>,
    /// Number of loops that enclose the position.
    loops: usize,
}

impl<'a> Names<'a> {
    /// Checks that `expr` uses only defined variables and known fields, and that its loops are not nested too deep.
    fn check(&mut self, expr: &'a IdedExpr) -> Result<(), String> {
        match &expr.expr {
            Expr::Ident(name) => self.check_name(name),
            Expr::Select(select) => self.check_select(select),
            Expr::Comprehension(comprehension) => self.check_comprehension(comprehension),
            Expr::Call(call) => {
                self.check_all(call.target.as_deref().into_iter().chain(&call.args))
            }
            Expr::List(list) => self.check_all(&list.elements),
            Expr::Map(map) => {
                self.check_all(map.entries.iter().flat_map(|entry| parts(&entry.expr)))
            }
            Expr::Struct(struct_expr) => self.check_all(
                struct_expr
                    .entries
                    .iter()
                    .flat_map(|entry| parts(&entry.expr)),
            ),
            Expr::Literal(_) | Expr::Unspecified => Ok(()),
        }
    }

    fn check_all(&mut self, all: impl IntoIterator<Item = &'a IdedExpr>) -> Result<(), String> {
        all.into_iter().try_for_each(|expr| self.check(expr))
    }

    fn check_name(&self, name: &str) -> Result<(), String> {
        let subject = self.subject.name;
        let known = name == subject || self.bound.contains(&name) || TYPES.contains(&name);
        if known {
            return Ok(());
        }
        Err(format!(
            "undeclared reference {name:?}; available: {subject:?}"
        ))
    }

    fn check_select(&mut self, select: &'a SelectExpr) -> Result<(), String> {
        let Subject { name, fields, .. } = self.subject;
        let of_it = is_subject(&select.operand, self.subject) && !self.bound.contains(&name);
        let known = fields.is_empty() || fields.contains(&select.field.as_str());
        if of_it && !known {
            let (field, fields) = (&select.field, fields.join(", "));
            return Err(format!(
                "{name} has no field {field:?}; available fields: {fields}"
            ));
        }
        self.check(&select.operand)
    }

    fn check_comprehension(&mut self, comprehension: &'a ComprehensionExpr) -> Result<(), String> {
        self.check_all([&comprehension.iter_range, &comprehension.accu_init])?;
        let before = self.bound.len();
        self.bound
            .extend([comprehension.iter_var.as_str(), &comprehension.accu_var]);
        self.bound.extend(comprehension.iter_var2.as_deref());
        self.loops += 1;
        if self.loops > self.subject.loops {
            let most = self.subject.loops;
            return Err(format!("loops are nested more than {most} levels deep"));
        }
        let checked = self.check_all([
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ]);
        self.loops -= 1;
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
    use crate::OBJECT;

    #[test]
    fn failed_thread_start_does_not_make_expression_invalid() {
        let checked = check_on(usize::MAX / 4, "object.spec.replicas > 0", OBJECT);
        assert!(matches!(checked, Err(Nothing::Unknown(_))));
    }
}
