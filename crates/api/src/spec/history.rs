//! History of runs (`spec.history`).

use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Records of finished runs (`kubectl get altrun`).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct RunHistory {
    /// Maximum number of records of this resource; older records are deleted. Between 1 and 100. Default: 10.
    #[serde(default = "ten")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 100").message("must be between 1 and 100"))]
    pub runs: i32,
    /// Content of the records. `Full`: changed attributes with values, text of the plan, and log. `Names`: without values, text of the plan, and
    /// output of the engine. A change concerns only later runs.
    /// Sensitive values are never recorded. Default: `Full`.
    #[serde(default)]
    pub values: RecordedValues,
}

impl Default for RunHistory {
    fn default() -> Self {
        Self {
            runs: ten(),
            values: RecordedValues::default(),
        }
    }
}

fn ten() -> i32 {
    10
}

/// Content of the records of finished runs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum RecordedValues {
    /// Changed attributes with values, text of the plan, and log.
    #[default]
    Full,
    /// Names of changed attributes.
    Names,
}
