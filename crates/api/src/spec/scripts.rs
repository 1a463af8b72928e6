//! Scripts that replace commands of the engine (`spec.scripts`).

use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::references::KeyRef;

/// Scripts that replace commands of the engine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scripts {
    /// Replaces `terraform init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Script>,
    /// Replaces `terraform plan`. Exit code 0 means no changes, 2 means changes, any other code is a failure. The script writes its plan to
    /// the file in environment variable `ALUSTAN_PLAN_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Script>,
    /// Replaces `terraform apply`. The script can write outputs, in the format of `terraform output -json`, to the file in environment
    /// variable `ALUSTAN_OUTPUTS_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Script>,
    /// Replaces `terraform destroy` when the resource is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<Script>,
}

/// A script, inline or in a ConfigMap. The `#!` line selects the interpreter. Default: `bash -e`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.inline) != has(self.configMapRef)").message("exactly one of inline and configMapRef must be set"))]
pub struct Script {
    /// Text of the script, at most 64 KiB. A larger script is refused (`InputTooLarge`), because the run record, a Secret, contains all
    /// scripts. Put a larger script into the module and call it from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub inline: Option<String>,
    /// Key of a ConfigMap with the text of the script, at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyRef>,
}
