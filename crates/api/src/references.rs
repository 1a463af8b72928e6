//! References to Secrets and ConfigMaps of the namespace, with the CEL rules for names of objects and for keys.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

pub(crate) const OBJECT: &str = "!format.dns1123Subdomain().validate(self).hasValue()";
pub(crate) const OBJECT_HELP: &str =
    "must be the name of an object: lower case letters, digits, '-' and '.'";
/// Names of the operator's own Secrets, see [`crate::names`].
pub(crate) const NOT_OURS: &str =
    "!self.matches('-(run|report|pin|plan|state|state-slot-[0-9]+|registry)$')";
pub(crate) const NOT_OURS_HELP: &str = "must not end in -run, -report, -pin, -plan, -state, -state-slot-N or -registry, as the operator's own Secrets do";
const KEY: &str = "self.matches('^[-._a-zA-Z0-9]+$')";
const KEY_HELP: &str = "must be a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.'";

/// The key of a Secret or ConfigMap in the resource's namespace.
#[derive(
    KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Its name.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub name: String,
    /// The key in its data.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(KEY).message(KEY_HELP))]
    pub key: String,
}

/// The name of a Secret or ConfigMap in the resource's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NameRef {
    /// Its name.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub name: String,
}
