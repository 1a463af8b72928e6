//! References to Secrets and ConfigMaps in the namespace of the resource, with the CEL rules for names and keys.

use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

pub(crate) const OBJECT: &str = "!format.dns1123Subdomain().validate(self).hasValue()";
pub(crate) const OBJECT_HELP: &str =
    "must be the name of an object: lowercase letters, digits, '-' and '.'";
/// Builds a CEL rule about the names of Secrets that the operator creates, see [`crate::names`]: `$before` is the expression up to the name,
/// `$after` the rest of the rule.
macro_rules! not_ours {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            ".matches('-(run|report|pin|plan|state|state-slot-[0-9]+|registry)$')",
            $after
        )
    };
}
pub(crate) use not_ours;
/// CEL rule that refuses the names of Secrets that the operator creates.
pub(crate) const NOT_OURS: &str = not_ours!("!self", "");
pub(crate) const NOT_OURS_HELP: &str = "must not end in -run, -report, -pin, -plan, -state, -state-slot-N or -registry: these names are reserved for Secrets of the operator";
const KEY: &str = "self.matches('^[-._a-zA-Z0-9]+$')";
const KEY_HELP: &str =
    "must be a valid key of a Secret or ConfigMap: at most 253 letters, digits, '-', '_' and '.'";

/// Key of a Secret or ConfigMap in the namespace of the resource.
#[derive(
    KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub name: String,
    /// Key in the data of the Secret or ConfigMap.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(KEY).message(KEY_HELP))]
    pub key: String,
}

/// Name of a Secret or ConfigMap in the namespace of the resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct NameRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub name: String,
}

/// Key of a Secret with a token, in the namespace of the resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct TokenRef {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP), validation = Rule::new(NOT_OURS).message(NOT_OURS_HELP))]
    pub name: String,
    /// Key in the data of the Secret. Default: token.
    #[serde(default = "token")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(KEY).message(KEY_HELP))]
    pub key: String,
}

fn token() -> String {
    "token".to_owned()
}
