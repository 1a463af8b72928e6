//! The operator in a real cluster: real containers, registry, volumes, git, engine.

mod main_job;
