//! Wrappers: programs that call the engine.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Program that runs the commands of the engine. `terragrunt`: the folder of the module is a unit of Terragrunt (`terragrunt.hcl`). The context
/// contains the files that the unit includes, reads and depends on, and its local module. The base image must contain the
/// wrapper. The operator selects such an image from its catalogue (flag `--engine`), unless `containerRegistry.baseImage` is set. Default: none.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum WrapperName {
    /// Terragrunt.
    Terragrunt,
}

impl WrapperName {
    /// Returns the value of `spec.engine.wrapper`, which is also the file name of the program.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Terragrunt => "terragrunt",
        }
    }

    /// Parses a value of `spec.engine.wrapper`.
    pub fn parse(text: &str) -> Option<Self> {
        (text == Self::Terragrunt.as_str()).then_some(Self::Terragrunt)
    }
}

impl fmt::Display for WrapperName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A wrapper and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// Name of the wrapper.
    pub name: WrapperName,
    /// Full version.
    pub version: String,
}

impl fmt::Display for Wrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}
