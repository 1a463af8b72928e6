//! CEL expressions (<https://cel.dev>) of `Terraform` resources: static checks, evaluation in a separate thread, and the rules of
//! `spec.approval`. No I/O.

pub mod approval;

mod check;
mod evaluate;
mod json;
mod spec;
mod subject;
mod thread;

pub use check::check;
pub use evaluate::evaluate;
pub use spec::invalid_expression;
pub use subject::{Nothing, OBJECT, Subject};
