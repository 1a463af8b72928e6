//! The crate against real git servers: sshd, and `git http-backend` behind https and http.
//! Every server is started by the test that needs it and ends with it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

mod access;
mod busy;
mod cache;
mod contexts;
mod https;
mod large;
mod proxies;
mod references;
mod ssh;
mod submodules;
mod support;
