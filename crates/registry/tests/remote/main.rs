//! The crate against a real `docker-registry`, and against small servers that say what a real one seldom does.
//! Every server is started by the test that needs it and ends with it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod append;
mod contexts;
mod helpers;
mod prune;
mod questions;
mod support;
mod tokens;
