//! Expressions in CEL (<https://cel.dev>) over one value: checked before they are used, and
//! evaluated in a thread of their own. Pure.

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

/// The stack on which an expression is read: only what is used of it costs memory.
const STACK: usize = 64 * 1024 * 1024;

/// The longest expression, in bytes. What is longer could be nested deeper than any stack.
const LONGEST: usize = 1000;

/// Maximum CPU time of an expression. One that iterates over a large object for each of its elements would take minutes.
const LONGEST_TIME: Duration = Duration::from_secs(2);

/// What an expression is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The name that expressions give to it.
    pub name: &'static str,
    /// The fields that it has, where these are known beforehand; empty where they are not.
    pub fields: &'static [&'static str],
    /// How deep loops may be nested (`all`, `exists`, `map`, `filter`): each multiplies the work.
    pub loops: usize,
    /// An expression that is true or false.
    pub example: &'static str,
}

/// An object of the cluster.
pub const OBJECT: Subject = Subject {
    name: "object",
    fields: &[],
    loops: 1,
    example: "object.status.ready == true",
};

/// Why an expression gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Nothing {
    /// It will never give anything.
    #[error("{0}")]
    Invalid(String),
    /// A field or an item that it needs is not there.
    #[error("{0}")]
    Missing(String),
    /// It takes too long for this value.
    #[error("it takes longer than {} s of CPU time", LONGEST_TIME.as_secs())]
    TooSlow,
    /// We lack the means to look at it.
    #[error("it could not be looked at: {0}")]
    Unknown(String),
}

/// What `expression` gives for `value`, the subject.
///
/// # Errors
/// It is no expression in CEL, it asks for something that is not there, it takes too long, or what it
/// gives is nothing that JSON has.
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

/// Takes the subject away once the CPU time of the thread is used up: without it nothing goes on for long.
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
        // Others would print the values that they are about.
        _ => Nothing::Invalid("it cannot be evaluated for this value".to_owned()),
    })?;
    json::of(&result).map_err(Nothing::Invalid)
}

/// Does `work` in a thread of its own: an expression may be nested as deep as it is long, and
/// whatever becomes of it must become of nobody else.
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
