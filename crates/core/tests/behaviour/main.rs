//! The behaviour of the operator, told as stories and checked in a simulated world.
//!
//! [`world`] is a cluster, a registry, a repository and a runner in memory. Stories drive it by
//! hand; `simulation` drives it by generated events and checks what must hold after each.

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
