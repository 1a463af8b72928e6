//! Operator-wide CLI configuration of the engine (`--terraform-cli-config`). The operator parses it and passes it to pods as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Environment variable of the runner with a [`CliConfig`] as JSON.
pub const VARIABLE: &str = "ALUSTAN_CLI_CONFIG";

/// CLI configuration of the engine: installation methods of providers, and services of hosts.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CliConfig {
    /// Blocks in `provider_installation`, in order. If empty, providers are downloaded from their registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub installation: Vec<InstallationMethod>,
    /// URLs of services by id, by host (`host` blocks). The engine uses them instead of service discovery.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hosts: BTreeMap<String, BTreeMap<String, String>>,
}

/// Method with which the engine installs providers.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InstallationMethod {
    /// URL of the network mirror; `None` for `direct`, the download from the registry of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Patterns of the providers that this method installs. If empty, all providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Patterns of the providers that this method does not install.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}
