//! Managed objects in the state of a resource, as the run report lists them.

use serde::{Deserialize, Serialize};

/// Maximum number of objects in an inventory.
pub const MAX_OBJECTS: usize = 1_000;

/// Managed objects in the state of a resource. Contains no attributes except ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// Number of the run that read the state.
    pub run: i64,
    /// Number of managed objects in the state.
    pub count: i64,
    /// Whether the state contains objects that [`Self::objects`] omits, because of the limits of number and size.
    pub truncated: bool,
    /// Managed objects in the order of the state, at most [`MAX_OBJECTS`].
    pub objects: Vec<ManagedObject>,
}

/// A managed object in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedObject {
    /// Address in the module. Example: `module.dns.aws_route53_record.a["www"]`.
    pub address: String,
    /// Resource type. Example: `aws_route53_record`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Provider. Example: `registry.terraform.io/hashicorp/aws`.
    pub provider: String,
    /// Attribute `id`. `None` if the object has none, if the state marks it as sensitive, or if it contains a known secret value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Key of a deposed object: the previous object of a replacement with `create_before_destroy`, which is not destroyed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deposed: Option<String>,
    /// Whether the object is tainted: the next apply replaces it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tainted: bool,
}
