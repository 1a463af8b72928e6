//! Version and repository of the workspace, from Cargo.toml.

/// The program's version, which is every package's.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where sources and releases are.
pub(super) const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
