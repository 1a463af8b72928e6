//! Run pods and cache volume (`spec.runner` and `spec.cache`).

use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::references::{NameRef, OBJECT, OBJECT_HELP};
use crate::spec::pod::PodOptions;

/// ServiceAccount, environment, architecture and pod options of runs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tokens) || self.tokens.all(one, self.tokens.exists_one(other, other.name == one.name))").message("tokens must have different names"))]
#[x_kube(validation = Rule::new("!has(self.pod) || !has(self.pod.terminationGracePeriodSeconds) || self.pod.terminationGracePeriodSeconds >= 600").message("pod.terminationGracePeriodSeconds must be at least 600: an interrupted apply needs this time to save the state"))]
pub struct RunnerSpec {
    /// ServiceAccount of run pods, in the namespace of the resource. Use it for workload identity (annotations
    /// `eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`, `azure.workload.identity/client-id`) or for permissions in the
    /// cluster. The ServiceAccount must have the annotation `alustan.io/allow-runs: "true"`. If ConfigMap `alustan-allowed` of the operator
    /// has the list `serviceAccounts`, the list must contain the ServiceAccount, and the annotation is not needed. Any other ServiceAccount
    /// is refused (`ServiceAccountNotAllowed`). The operator grants the ServiceAccount access to the run record, the run report and the
    /// managed state of this resource. Default: a ServiceAccount of this resource, `<name>-runner`, with no other permissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub service_account_name: Option<String>,
    /// Projected tokens of the ServiceAccount for external audiences, in files `/var/run/secrets/alustan.io/tokens/<name>`. Use them for
    /// `web_identity_token_file` of a provider if no webhook of the cloud adds a token.
    /// Example: `{name: aws, audience: sts.amazonaws.com}`. At most 10 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub tokens: Vec<IdentityToken>,
    /// Secrets whose keys become environment variables of the engine and of scripts. Example of a key: `AWS_ACCESS_KEY_ID`. At most 100
    /// entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub env_from_secrets: Vec<NameRef>,
    /// See [`Architecture`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Options of run pods: resources, scheduling, volumes, environment. A change of `env`, `envFrom`, `volumes` or `volumeMounts` starts a
    /// run. A change of other options applies from the next run on, and replaces a pod that cannot start. See docs/pods.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<PodOptions>>,
}

/// Projected ServiceAccount token for an external audience. Valid for one hour, rotated by the kubelet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct IdentityToken {
    /// Name of the file with the token. Lower case letters, digits and `-`. Example: `aws`.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("!format.dns1123Label().validate(self).hasValue()").message("must consist of lowercase letters, digits and '-'"))]
    pub name: String,
    /// Audience of the token. Example: `sts.amazonaws.com` or `api://AzureADTokenExchange`.
    #[schemars(length(min = 1, max = 253))]
    pub audience: String,
}

/// Cache volume of a resource.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.enabled) && !self.enabled && has(self.claimName))").message("claimName cannot be set with enabled false"))]
pub struct CacheSpec {
    /// If true, the resource has a cache volume: the `PersistentVolumeClaim` in `claimName`, else the claim `<name>-cache`. If false,
    /// pods use scratch space, and an approved plan is created again before it is applied. Without a volume, or after its loss, runs take longer
    /// and nothing else changes. Exceptions: with `backend.provider` local the volume contains the state, and the resource's own volume may
    /// contain a state that a run could not save. Default: true with `claimName`, else the default of the operator (`--cache`), a volume per
    /// resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Name of an existing `PersistentVolumeClaim` in the namespace of the resource, which several resources can share. Its access mode is
    /// `ReadWriteMany`, or `ReadWriteOnce` if all pods run on one node. Pods mount only a directory of this resource in it. Example:
    /// `terraform-plans`. The claim must have the annotation `alustan.io/allow-cache: "true"`, unless `--cache` names it
    /// (`CacheClaimNotAllowed`). If the claim does not exist, no run starts (`CacheClaimNotFound`). The claim of another resource is refused
    /// (`CacheClaimConflict`). A change of this field starts no run. See docs/cache.md. Default: the default of the operator (`--cache`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub claim_name: Option<String>,
    /// Size of the resource's own volume. A change does not resize an existing volume. Not used with `claimName`. Default: 5Gi.
    #[serde(default = "five_gibibytes")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity such as 5Gi"))]
    pub size: String,
    /// Storage class of the resource's own volume. Not used with `claimName`. Default: the default storage class of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub storage_class_name: Option<String>,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self {
            enabled: None,
            claim_name: None,
            size: five_gibibytes(),
            storage_class_name: None,
        }
    }
}

fn five_gibibytes() -> String {
    "5Gi".to_owned()
}
