//! The operator in a real cluster: real containers, registry, volumes, git, engine.

#![expect(
    clippy::indexing_slicing,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a story is told in one piece, and fails where it goes another way"
)]

mod adopt;
mod append;
mod approval;
mod attack;
mod backend;
mod build_namespace;
mod cache;
mod canary;
mod cancel;
mod clusters;
mod commits;
mod crashes;
mod deletion;
mod drift;
mod empty;
mod engine;
mod examples;
mod git;
mod ha;
mod helm;
mod inputs;
mod interrupts;
mod kustomize;
mod locks;
mod losses;
mod main_job;
mod mesh;
mod metrics;
mod migration;
mod modules;
mod notify;
mod order;
mod orphan;
mod outages;
mod outputs;
mod page;
mod plan_only;
mod pods;
mod rbac;
mod registries;
mod registry;
mod restore;
mod run_once;
mod runs;
mod samples;
mod scale;
mod scripts;
mod sources;
mod storage;
mod sync;
mod tenancy;
mod terragrunt;
mod upgrade;
mod waitfor;
