//! Folders in the scratch space of a build.

use std::fs;
use std::io;
use std::path::PathBuf;

use alustan_api::report::Failure;
use alustan_api::{Reason, paths};

use crate::failure::transient;
use crate::paths::Paths;

/// Folders with the files that the builder copies into the image.
pub(super) struct BuildFolders {
    pub(super) root: PathBuf,
    pub(super) module: PathBuf,
    pub(super) providers: PathBuf,
}

impl BuildFolders {
    pub(super) fn new(paths: &Paths) -> Self {
        let source = paths.build.join("src");
        Self {
            root: paths.build.clone(),
            module: source.join("module"),
            providers: source.join("providers"),
        }
    }

    /// Returns the folder with the content of a layer.
    pub(super) fn source(&self, layer: &paths::Layer) -> PathBuf {
        self.root.join("src").join(layer.source)
    }

    pub(super) fn make(&self) -> io::Result<()> {
        fs::create_dir_all(&self.module)?;
        fs::create_dir_all(&self.providers)
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers pass the function to map_err"
)]
pub(super) fn unwritten(error: io::Error) -> Failure {
    transient(
        Reason::PrepareFailed,
        format!("failed to write the scratch volume of the build: {error}"),
    )
}
