//! Version and repository of the workspace, from Cargo.toml.

/// Version of all packages of the workspace.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// URL of the repository, which also hosts the releases.
pub(super) const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
