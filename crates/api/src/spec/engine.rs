//! Engine and its version (`spec.engine`).

use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::engine_name::EngineName;

const VERSION: &str = r"self.matches('^[0-9]{1,9}(\\.[0-9]{1,9}){0,2}$') || self.matches('^([0-9]{1,9}\\.){2}[0-9]{1,9}-[0-9A-Za-z.-]+$')";
const VERSION_HELP: &str = "must be a version such as 1.12.6, or a version prefix such as 1.12";

/// Engine and its version.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct EngineSpec {
    /// Engine: `terraform` or `opentofu`. Default: terraform.
    #[serde(default)]
    pub name: EngineName,
    /// Version in the catalogue of the operator (flag `--engine`). Example: `1.12.6`, or `1.12` for the newest release of 1.12. The
    /// operator resolves this field once, and again if this field or `name` changes. A newer version that is added to the catalogue later
    /// has no effect. Default: the newest release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new(VERSION).message(VERSION_HELP))]
    pub version: Option<String>,
    /// If true, runs may use another engine, or an older version of the engine, than the last apply. The new engine may not be able to read
    /// the state, and a change back may not be possible. If false, such a run is refused (`EngineChangeNotAllowed`). Default: false.
    #[serde(default)]
    pub allow_switch: bool,
}
