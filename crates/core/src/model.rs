//! Types, message texts and pure functions that the modules of `decide` share, partly with other crates. Imports nothing from `decide`.

pub mod admission;
pub mod allow_lists;
pub(crate) mod approval_policy;
pub mod base_image;
pub mod cache_location;
pub mod config_hash;
pub mod facts;
pub mod image;
pub mod lenient;
pub mod orphans;
pub mod plan_request;
pub mod pod_options;
pub(crate) mod pod_wait;
pub mod progress;
pub mod pull_secret;
pub mod restored_record;
pub(crate) mod run_details;
pub mod run_inputs;
pub mod state_conflict;
pub mod state_slots;
pub mod status_outputs;
pub mod summary;
pub mod terraform_registries;
pub(crate) mod user_request;
