//! Behaviour tests of the operator in a simulated cluster.
//!
//! [`world`] simulates a cluster, a registry, a repository and a runner in memory. `stories` contains scenarios; `simulation` generates
//! events and checks invariants after each event.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "these are tests"
)]

mod fixtures;
mod forged;
mod simulation;
mod stories;
mod world;
