//! Subjects of expressions, and the reasons why an expression has no value.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum length of an expression, in bytes. A longer one could be nested too deep for any stack.
pub(crate) const LONGEST: usize = 1000;

/// Maximum CPU time of an expression. One that iterates over a large object for each of its elements would take minutes.
pub(crate) const LONGEST_TIME: Duration = Duration::from_secs(2);

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
    #[error("the evaluation exceeds {} s of CPU time", LONGEST_TIME.as_secs())]
    TooSlow,
    /// The evaluation could not run, for example because no thread could be started.
    #[error("the evaluation could not run: {0}")]
    Unknown(String),
}
