//! Tests against a real `docker-registry`, and against fake servers for responses that a real registry rarely sends. Each test starts its
//! servers and stops them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod append;
mod contexts;
mod digests;
mod helpers;
mod modules;
mod prune;
mod support;
mod tokens;
