//! The operator in a real cluster: real containers, registry, volumes, git, engine.

mod commits;
mod deletion;
mod main_job;
mod retries;
mod run_once;
