//! Changes of a plan: the one type that plan summary, drift, approval, notifications, run history and `kubectl alustan plan` read.
//!
//! A change set exists in two sizes. The run report and the status contain a summary: counts, and the addresses and actions of
//! [`MAX_CHANGES`] resources. A [`TerraformRun`](crate::TerraformRun) contains details: attributes, outputs and checks, too. Both are
//! bounded; the counts always include every change.

use serde::{Deserialize, Serialize};

/// Maximum number of changed resources in a summary.
pub const MAX_CHANGES: usize = 20;

/// Maximum length of a value in a change set, in bytes.
pub const MAX_VALUE_BYTES: usize = 1024;

/// Maximum size of a change set with details, as JSON, in bytes.
pub const MAX_DETAILS_BYTES: usize = 40 * 1024;

/// Changes of a plan, normalised: in a fixed order, without reads and no-ops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeSet {
    /// Number of objects to create, including replaced objects.
    pub add: i64,
    /// Number of objects to update in place.
    pub change: i64,
    /// Number of objects to destroy, including replaced objects.
    pub destroy: i64,
    /// Changed resources, destroyed and replaced ones first. Large plans: see `omitted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceChange>,
    /// Number of changed resources, outputs and checks that are not listed, because the list would be too large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: i64,
    /// Changed outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputChange>,
    /// Checks that failed, or whose result is not known before the apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckResult>,
    /// HMAC of all changes, with the HMAC key in the run record. Equal change sets have equal digests.
    pub digest: String,
    /// HMAC of addresses, actions and names of changed attributes, without values. If a configuration never converges (rule 7), for example
    /// because of `timestamp()`, its plans have the same HMAC.
    #[serde(default)]
    pub shape: String,
}

impl ChangeSet {
    /// Returns the summary: addresses and actions of the first [`MAX_CHANGES`] resources, without details.
    #[must_use]
    pub fn summary(&self) -> Self {
        let resources = self.resources.iter().take(MAX_CHANGES);
        Self {
            resources: resources.map(ResourceChange::summary).collect(),
            omitted: 0,
            outputs: Vec::new(),
            checks: Vec::new(),
            digest: self.digest.clone(),
            shape: self.shape.clone(),
            ..*self
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Address and action of a changed resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ChangedResource {
    /// Address of the resource in the module. Example: `module.dns.aws_route53_record.a["www"]`.
    pub address: String,
    /// Action: `create`, `update`, `replace`, `delete`, `forget` or `import`.
    pub action: String,
}

/// Changed resource in a change set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceChange {
    /// Address of the resource in the module. Example: `module.dns.aws_route53_record.a["www"]`.
    pub address: String,
    /// Action: `create`, `update`, `replace`, `delete`, `forget` or `import`.
    pub action: String,
    /// Address of the module of the resource. Not set in the root module. Example: `module.dns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Source address of the provider. Example: `registry.terraform.io/hashicorp/aws`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Reason of the action, as the engine reports it. Examples: `replace_because_cannot_update`, `delete_because_no_resource_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Changed attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<AttributeChange>,
    /// Number of changed attributes that are not listed, because the list would be too large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_attributes: i64,
}

impl ResourceChange {
    /// Returns address and action.
    pub fn resource(&self) -> ChangedResource {
        ChangedResource {
            address: self.address.clone(),
            action: self.action.clone(),
        }
    }

    fn summary(&self) -> Self {
        Self {
            address: self.address.clone(),
            action: self.action.clone(),
            ..Self::default()
        }
    }
}

/// Changed attribute of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttributeChange {
    /// Path of the attribute in the resource. Example: `tags.Name` or `ingress[0].from_port`.
    pub path: String,
    /// Values before and after the change.
    #[serde(flatten)]
    pub values: ValueChange,
    /// Whether the engine replaces the resource because of this attribute.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forces_replacement: bool,
}

/// Changed output of the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputChange {
    /// Name of the output.
    pub name: String,
    /// Values before and after the change.
    #[serde(flatten)]
    pub values: ValueChange,
}

/// Values before and after a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueChange {
    /// Value before the change, as JSON, at most 1 KiB. Not set if there is no value, or if it is sensitive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Value after the change, as JSON, at most 1 KiB. Not set if there is no value, or if it is sensitive or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Whether the module or the provider marks the value as sensitive. Sensitive values are not stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// Whether the value after the change is known only after the apply.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

/// Result of a `check` block, or of a condition of a resource or output, in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckResult {
    /// Address of the checked object. Example: `check.health`.
    pub address: String,
    /// Result: `fail`, `error` or `unknown`.
    pub status: String,
    /// Messages of the failed conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
}
