//! Providers that `init` installed. Providers that the base image contains are linked to the base image. All other providers are copied to
//! a filesystem mirror in the runner image.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::engine::packages;
use crate::file_system::{copy_tree, replace_link};

/// Folders with providers during a build.
pub(super) struct Providers {
    /// Folder in which `init` installed or linked the providers: `host/namespace/type/version/platform`.
    pub(super) installed: PathBuf,
    /// Filesystem mirror in the base image.
    pub(super) base: PathBuf,
    /// Folder for copies of the providers that the base image lacks. The builder copies it into the image.
    pub(super) target: PathBuf,
    /// Path of [`Self::target`] in the runner image.
    pub(super) at_run_time: PathBuf,
}

impl Providers {
    /// Copies the providers that the base image lacks. Links all providers in `installed` to their paths in the runner image.
    pub(super) fn gather(&self) -> io::Result<()> {
        let base = fs::canonicalize(&self.base).ok();
        for package in packages(&self.installed)? {
            let link = self.installed.join(&package);
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
