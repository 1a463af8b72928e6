//! Tests against real git servers: sshd, and `git http-backend` over HTTPS and HTTP. Each test starts its servers and stops them.
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
