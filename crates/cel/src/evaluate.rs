//! Evaluates an expression over one value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cel::common::types::CelNull;
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, ExecutionError, Program, to_value};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;

use crate::subject::{MAX_CPU_TIME, Nothing, Subject};
use crate::thread::{STACK, apart};
use crate::{check, json};

/// Evaluates `expression`, in which the variable of `subject` has the value `value`.
///
/// # Errors
/// If the expression is invalid, uses a field or an item that does not exist, or exceeds its time limit. If the result is too large, or
/// JSON cannot represent the result.
pub fn evaluate(
    expression: &str,
    subject: Subject,
    value: &(impl Serialize + Sync),
) -> Result<Value, Nothing> {
    apart(STACK, || {
        let program = check::program(expression, subject).map_err(Nothing::Invalid)?;
        run(&program, subject, value)
    })
}

/// Variable resolver that ends a slow evaluation. Once the CPU time of the thread exceeds `until`, each variable resolves to null,
/// so that loops over the subject end.
struct Clock {
    until: Duration,
    is_over: AtomicBool,
}

impl VariableResolver for Clock {
    fn resolve<'b>(&'b self, _: &str) -> Option<CowVal<'b, 'b>> {
        let is_over = cpu_time() > self.until;
        self.is_over.fetch_or(is_over, Ordering::Relaxed);
        is_over.then(|| CowVal::owned(CelNull))
    }
}

/// Returns the CPU time that the current thread has used.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn run(program: &Program, subject: Subject, value: &impl Serialize) -> Result<Value, Nothing> {
    let value = to_value(value).map_err(|error| Nothing::Invalid(error.to_string()))?;
    let clock = Clock {
        until: cpu_time() + MAX_CPU_TIME,
        is_over: AtomicBool::new(false),
    };
    let mut context = Context::default();
    context.set_variable_resolver(&clock);
    context.add_variable_from_value(subject.name, value);
    let result = program.execute(&context);
    if clock.is_over.load(Ordering::Relaxed) {
        return Err(Nothing::TooSlow);
    }
    let result = result.map_err(|error| match error {
        ExecutionError::NoSuchKey(_) | ExecutionError::IndexOutOfBounds(_) => {
            Nothing::Missing(error.to_string())
        }
        ExecutionError::NoSuchOverload(error) => Nothing::Invalid(error.to_string()),
        ExecutionError::UndeclaredReference(name) => {
            Nothing::Invalid(format!("undeclared reference {name:?}"))
        }
        // The messages of other errors may contain values of the subject, so they are omitted.
        _ => Nothing::Invalid("the expression cannot be evaluated for this value".to_owned()),
    })?;
    json::of(&result).map_err(Nothing::Invalid)
}

#[cfg(test)]
mod tests;
