//! Expressions in CEL (<https://cel.dev>) over one value: checked before use, evaluated in a separate thread. Pure.

mod check;
mod json;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cel::common::types::CelNull;
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, ExecutionError, Program, to_value};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use check::check;

/// Stack size of the evaluating thread, in bytes. Only used pages take memory.
const STACK: usize = 64 * 1024 * 1024;

/// Maximum length of an expression, in bytes. A longer one could be nested too deep for any stack.
const LONGEST: usize = 1000;

/// Maximum CPU time of an expression. One that iterates over a large object for each of its elements would take minutes.
const LONGEST_TIME: Duration = Duration::from_secs(2);

/// Value that expressions refer to.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Name of the value in expressions.
    pub name: &'static str,
    /// Fields of the value, if known in advance. Empty: any field.
    pub fields: &'static [&'static str],
    /// Maximum nesting depth of loops (`all`, `exists`, `map`, `filter`). Each level multiplies the work.
    pub loops: usize,
    /// Example of an expression that is true or false, for messages.
    pub example: &'static str,
}

/// An object of the cluster.
pub const OBJECT: Subject = Subject {
    name: "object",
    fields: &[],
    loops: 1,
    example: "object.status.ready == true",
};

/// Reason why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Nothing {
    /// The expression is invalid, or cannot be evaluated for this value.
    #[error("{0}")]
    Invalid(String),
    /// A field or an item that the expression uses does not exist.
    #[error("{0}")]
    Missing(String),
    /// The evaluation exceeds its time limit.
    #[error("it takes longer than {} s of CPU time", LONGEST_TIME.as_secs())]
    TooSlow,
    /// The evaluation could not run, for example because no thread could be started.
    #[error("it could not be looked at: {0}")]
    Unknown(String),
}

/// Evaluates `expression` for `value`, the subject.
///
/// # Errors
/// If the expression is invalid, uses a field or an item that does not exist or takes too long, or if JSON cannot represent the
/// result.
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

/// Hides the subject once the CPU time of the thread is used up. Without the subject, an evaluation ends soon.
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
        until: cpu_time() + LONGEST_TIME,
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
            Nothing::Invalid(format!("there is no {name:?}"))
        }
        // Other messages would contain the values.
        _ => Nothing::Invalid("it cannot be evaluated for this value".to_owned()),
    })?;
    json::of(&result).map_err(Nothing::Invalid)
}

/// Runs `work` in a separate thread. An expression may be nested as deep as it is long, and a panic must not affect the caller.
fn apart<T: Send>(
    stack: usize,
    work: impl FnOnce() -> Result<T, Nothing> + Send,
) -> Result<T, Nothing> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack);
        let thread = thread.spawn_scoped(scope, work);
        let done = thread.map_err(|error| Nothing::Unknown(error.to_string()))?;
        let beyond = |_| {
            Err(Nothing::Invalid(
                "it is beyond what this CEL can do".to_owned(),
            ))
        };
        done.join().unwrap_or_else(beyond)
    })
}

#[cfg(test)]
mod tests;
