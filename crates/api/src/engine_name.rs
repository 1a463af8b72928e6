//! Engines: everything that differs between them. A new engine is one variant, one arm in each function of [`EngineName`],
//! and an image (`images/NAME/Dockerfile`) with its build (`hack/images/build`, `hack/release/build`).
//!
//! All engines have the same commands, environment variables (`TF_…`), data folder (`.terraform`), lock file and state file. Every base image
//! has its engine as program `terraform` (rule 4).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Engine: `terraform` or `opentofu`. Default: terraform if `version` is set, or if the catalogue has it with `wrapper`; else the engine in the
/// base image of the operator (`--base-image`).
#[derive(
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    JsonSchema,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Terraform.
    #[default]
    Terraform,
    /// OpenTofu.
    Opentofu,
}

impl EngineName {
    /// Every engine. A release takes its default base image from the first engine for which it has an image.
    pub const VARIANTS: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns the value of `spec.engine.name`, which is also the name of the image of the engine.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Terraform => "terraform",
            Self::Opentofu => "opentofu",
        }
    }

    /// Returns the file name of the program, without a version. Processes of the engine have the same name.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Terraform => "terraform",
            Self::Opentofu => "tofu",
        }
    }

    /// Returns the suffixes of the configuration files that the engine reads.
    const fn configuration_suffixes(self) -> &'static [&'static str] {
        match self {
            Self::Terraform => &[".tf", ".tf.json"],
            Self::Opentofu => &[".tf", ".tf.json", ".tofu", ".tofu.json"],
        }
    }

    /// Returns the message, in lower case, with which the engine refuses a module whose `required_version` excludes it.
    pub const fn version_refusal(self) -> &'static str {
        match self {
            Self::Terraform => "error: unsupported terraform core version",
            Self::Opentofu => "error: unsupported opentofu core version",
        }
    }

    /// Parses a value of `spec.engine.name`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut names = Self::VARIANTS.iter().copied();
        names.find(|name| name.as_str() == text)
    }

    /// Returns the engine whose program has the file name `file_name`, for example `tofu_1.12.6`. Default: Terraform.
    pub fn of_program(file_name: &str) -> Self {
        let mut names = Self::VARIANTS.iter().copied();
        names
            .find(|name| file_name.starts_with(name.program()))
            .unwrap_or_default()
    }

    /// Whether the engine reads the file `file_name` as configuration. Engines ignore hidden files.
    pub fn is_configuration(self, file_name: &str) -> bool {
        let mut suffixes = self.configuration_suffixes().iter();
        !file_name.starts_with('.') && suffixes.any(|suffix| file_name.ends_with(suffix))
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
