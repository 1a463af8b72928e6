//! State of the managed backend (rule 12), stored in Secrets that are written by compare-and-swap. The runner serves the state to the
//! engine; the CLI pulls and pushes it. The crate contains no logic of runs.

pub mod error_text;
pub mod fake;
pub mod head;
pub mod retry;
pub mod secrets;
pub mod store;
