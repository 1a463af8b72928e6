//! CPU architectures of images and nodes.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CPU architecture of the runner image, and of the nodes of builds and runs (`kubernetes.io/arch`). The base image must support it. A change of
/// this field starts no run: the operator builds the image for the new architecture when the next run is due. Default: `--architecture` of the
/// operator. Without this flag: the architecture of the last run, else the architecture of the operator pod.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

impl Architecture {
    /// Every architecture.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// Returns the architecture that this binary was compiled for.
    pub const fn own() -> Self {
        if cfg!(target_arch = "aarch64") {
            Self::Arm64
        } else {
            Self::Amd64
        }
    }

    /// Returns the value of the node label `kubernetes.io/arch` for this architecture.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Parses a value of the node label `kubernetes.io/arch`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|architecture| architecture.as_str() == text)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
