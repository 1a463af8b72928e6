//! Types and wording that every decision shares. Imports nothing from `decide` or from the modules that it calls.

pub(crate) mod case;
pub mod config_hash;
pub mod facts;
pub(crate) mod pod_wait;
pub mod pull_secret;
pub mod summary;
