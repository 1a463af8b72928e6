//! State of the managed backend (rule 12): the runner serves it to the engine, users pull and push it. Secrets are
//! read and written by compare-and-swap. The crate contains no logic of runs.

pub mod error_text;
pub mod fake;
pub mod head;
pub mod retry;
pub mod secrets;
pub mod store;
