//! Configuration files of Terragrunt that a closure reads.

/// A configuration file of Terragrunt that the closure reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConfigFile {
    /// Path from the root of the repository.
    pub(super) path: String,
    /// Folder of the unit that the file configures (`get_terragrunt_dir()`).
    pub(super) unit: String,
    /// Folder of the unit whose evaluation reads the file (`get_original_terragrunt_dir()`).
    pub(super) original: String,
    /// Whether the file is included in the configuration of the unit.
    pub(super) is_included: bool,
    /// Whether the file configures the root module of the closure.
    pub(super) is_root: bool,
}
