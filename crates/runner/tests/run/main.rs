//! Tests of the runner program with a real engine and a fake API server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail where it stands"
)]

mod api;
mod apply;
mod approval;
mod backends;
mod build;
mod calls;
mod claim;
mod destroy;
mod emptying;
mod engine;
mod interruption;
mod inventory;
mod locks;
mod ownership;
mod plan_only;
mod prepare;
mod registries;
mod s3;
mod scripts;
mod state;
mod state_migration;
mod terragrunt;
mod unsaved_state;
mod world;
