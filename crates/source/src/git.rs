//! The git command line as a child process: arguments, environment and classification of its output.

pub(crate) mod access;
mod classify;
mod process;
pub(crate) mod session;

pub use access::GitAccess;
pub(crate) use process::Bounds;
pub(crate) use session::{Session, environment, has_proxy, trusted_certificates};
