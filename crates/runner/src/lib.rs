//! Library of `alustan-runner`. In a run pod, it claims a run, executes the engine, serves the managed state and writes the run report. In
//! a build pod, it prepares the context and, with builder kind Append, pushes the image.

pub mod build;
pub mod cache_volume;
pub mod certificates;
pub mod claim;
pub mod engine;
pub mod failure;
pub mod file_system;
pub mod log;
pub mod log_tail;
pub mod module;
pub mod paths;
pub mod plan;
mod plan_text;
pub mod record;
pub mod report;
pub mod run;
pub mod secrets;
pub mod state;
