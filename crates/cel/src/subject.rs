//! Variables of expressions, and errors of checks and evaluations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum length of an expression, in bytes. A longer expression could be nested so deep that the parser overflows its stack.
pub(crate) const MAX_LENGTH: usize = 1000;

/// Maximum CPU time of an evaluation. An expression that iterates over a large object for each element of this object would take
/// minutes.
pub(crate) const MAX_CPU_TIME: Duration = Duration::from_secs(2);

/// The variable that an expression may use, and limits of the expression.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Name of the variable.
    pub name: &'static str,
    /// Fields of the value, if they are known in advance. Empty: any field is allowed.
    pub fields: &'static [&'static str],
    /// Maximum nesting depth of loops (`all`, `exists`, `map`, `filter`). Each level multiplies the CPU time.
    pub loops: usize,
    /// Example of an expression with a boolean result, for messages.
    pub example: &'static str,
}

/// Variable `object`: an object of the cluster.
pub const OBJECT: Subject = Subject {
    name: "object",
    fields: &[],
    loops: 1,
    example: "object.status.ready == true",
};

/// Error of a check or an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Nothing {
    /// The expression is invalid, or cannot be evaluated for this value.
    #[error("{0}")]
    Invalid(String),
    /// A field or an item that the expression uses does not exist.
    #[error("{0}")]
    Missing(String),
    /// The evaluation exceeds its time limit.
    #[error("the evaluation exceeds {} s of CPU time", MAX_CPU_TIME.as_secs())]
    TooSlow,
    /// The evaluation could not run, for example because no thread could be started.
    #[error("the evaluation could not run: {0}")]
    Unknown(String),
}
