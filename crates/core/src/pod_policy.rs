//! Defaults and limits of the operator for the pod options of resources (`--pod-defaults`).

use std::collections::BTreeMap;

use alustan_api::PodOptions;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

/// Default and minimum of the termination grace period of apply and destroy, in seconds (rule 8).
pub(crate) const RUN_GRACE: i64 = 600;
/// Default and minimum of the termination grace period of a build, in seconds.
pub(crate) const BUILD_GRACE: i64 = 5;
/// Maximum size of an `emptyDir` volume. The kubelet evicts a pod that exceeds it. Without the limit, the pod could fill the node, and the
/// kubelet would evict other pods.
pub(crate) const SCRATCH: &str = "20Gi";
/// Label of a node with its CPU architecture.
pub(crate) const ARCHITECTURE: &str = "kubernetes.io/arch";
/// Label of a node with its operating system.
pub(crate) const OPERATING_SYSTEM: &str = "kubernetes.io/os";
/// Operating system of the nodes of runs and builds. All images contain Linux programs.
pub(crate) const LINUX: &str = "linux";

/// Content of the file of `--pod-defaults`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodPolicy {
    /// Defaults of `spec.runner.pod`.
    pub runs: PodOptions,
    /// Defaults of `spec.containerRegistry.builder.pod`.
    pub builds: PodOptions,
    /// Options that are refused unless this value allows them.
    pub allowed: AllowedOptions,
    /// Maximum values of options.
    pub maximum: MaximumOptions,
}

/// Options of resources that are refused unless a list contains them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedOptions {
    /// Names of drivers of `csi` volumes.
    pub csi_drivers: Vec<String>,
    /// Whether `persistentVolumeClaim` volumes are allowed.
    pub persistent_volume_claims: bool,
    /// Names of priority classes.
    pub priority_class_names: Vec<String>,
    /// Names of runtime classes.
    pub runtime_class_names: Vec<String>,
    /// Tolerations. An entry without `key`, `value` or `effect` allows every key, value or effect.
    pub tolerations: Vec<AllowedToleration>,
    /// Keys of labels. A key that ends in `*` is a prefix.
    pub labels: Vec<String>,
    /// Keys of annotations. A key that ends in `*` is a prefix.
    pub annotations: Vec<String>,
}

/// Toleration that resources may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedToleration {
    /// Key of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Value of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

impl AllowedToleration {
    /// Whether resources may have `toleration`. A toleration without a key, value or effect tolerates every key, value or effect, so it is
    /// allowed only if this entry does not limit them.
    pub(crate) fn allows(&self, toleration: &Toleration) -> bool {
        let allows = |allowed: &Option<String>, text: &Option<String>| {
            let text = text.as_ref().filter(|text| !text.is_empty());
            allowed.is_none() || allowed.as_ref() == text
        };
        allows(&self.key, &toleration.key)
            && allows(&self.value, &toleration.value)
            && allows(&self.effect, &toleration.effect)
    }
}

/// Maximum values of the options of resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MaximumOptions {
    /// Maximum of a request and of a limit of a container, by resource.
    pub resources: BTreeMap<String, Quantity>,
}
