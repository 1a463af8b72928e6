//! What runs here.

use alustan_api::Terraform;
use alustan_api::run::PROTOCOL;
use kube::Resource;
use serde::Serialize;

/// The version of the operator and of what it speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Version {
    /// Of the program.
    #[serde(rename = "version")]
    program: &'static str,
    /// The commit that it was built from, where the build knew it (`ALUSTAN_COMMIT`).
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
    /// Of what controller, image and runner agree on; a new one rebuilds images.
    protocol: u32,
    /// The version of the resource.
    crd: String,
}

impl Version {
    /// Of this process.
    pub(crate) fn this() -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION"),
            commit: option_env!("ALUSTAN_COMMIT").filter(|commit| !commit.is_empty()),
            protocol: PROTOCOL,
            crd: Terraform::api_version(&()).into_owned(),
        }
    }

    /// The same for a metric.
    pub(crate) fn labels(&self) -> [(&'static str, String); 4] {
        [
            ("version", self.program.to_owned()),
            ("commit", self.commit.unwrap_or("unknown").to_owned()),
            ("protocol", self.protocol.to_string()),
            ("crd", self.crd.clone()),
        ]
    }
}
