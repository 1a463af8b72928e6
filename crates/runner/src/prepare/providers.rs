//! The providers that `init` installed: those that the base image has stay where they are, the
//! others become a mirror of their own.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::engine::packages;
use crate::workspace::{copy_tree, replace_link};

/// The folders that matter.
pub(super) struct Providers {
    /// Where `init` put them, or links to them: `host/namespace/type/version/platform`.
    pub(super) found: PathBuf,
    /// The mirror of the base image.
    pub(super) base: PathBuf,
    /// Where the builder finds the others.
    pub(super) target: PathBuf,
    /// Where runs find the others.
    pub(super) at_run_time: PathBuf,
}

impl Providers {
    /// Copies what the image lacks, and links everything to where it is at run time.
    pub(super) fn gather(&self) -> io::Result<()> {
        let base = fs::canonicalize(&self.base).ok();
        for package in packages(&self.found)? {
            let link = self.found.join(&package);
            let real = fs::canonicalize(&link)?;
            if let Some(rest) = base.as_ref().and_then(|base| real.strip_prefix(base).ok()) {
                replace_link(&self.base.join(rest), &link)?;
            } else {
                copy_tree(&real, &self.target.join(&package))?;
                replace_link(&self.at_run_time.join(&package), &link)?;
            }
        }
        Ok(())
    }
}
