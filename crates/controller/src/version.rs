//! The versions that `/version` and the metrics report.

use alustan_api::Terraform;
use alustan_api::run::PROTOCOL;
use kube::Resource;
use serde::Serialize;

/// Versions of the operator and its interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Version {
    /// Version of the operator.
    #[serde(rename = "version")]
    program: &'static str,
    /// Git commit from which the operator was compiled (`ALUSTAN_COMMIT`), if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
    /// Version of the protocol between operator, runner image and runner. A new version causes new builds of runner images.
    protocol: u32,
    /// API version of the resource.
    crd: String,
}

impl Version {
    /// Returns the versions of the running operator.
    pub(crate) fn this() -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION"),
            commit: option_env!("ALUSTAN_COMMIT").filter(|commit| !commit.is_empty()),
            protocol: PROTOCOL,
            crd: Terraform::api_version(&()).into_owned(),
        }
    }

    /// Returns the versions as metric labels.
    pub(crate) fn labels(&self) -> [(&'static str, String); 4] {
        [
            ("version", self.program.to_owned()),
            ("commit", self.commit.unwrap_or("unknown").to_owned()),
            ("protocol", self.protocol.to_string()),
            ("crd", self.crd.clone()),
        ]
    }
}
