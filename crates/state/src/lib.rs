//! The state of the managed backend (rule 12): what the runner serves to the engine, and people pull
//! and push. Secrets are read and written by compare-and-swap; nothing here knows of runs.

pub mod error_text;
pub mod fake;
pub mod head;
pub mod retry;
pub mod secrets;
pub mod store;
