//! Options of run pods and build pods (`spec.runner.pod` and `spec.containerRegistry.builder.pod`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, CSIVolumeSource, ConfigMapVolumeSource, EmptyDirVolumeSource, EnvFromSource, EnvVar,
    HostAlias, PersistentVolumeClaimVolumeSource, PodDNSConfig, ProjectedVolumeSource,
    SecretVolumeSource, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::bounded::{bounded, quantities, strings};
use crate::references::{NOT_OURS_HELP, NameRef, OBJECT, OBJECT_HELP, not_ours};

const NOT_OUR_KEY: &str = "self.all(key, !key.startsWith('alustan.io/'))";
const NOT_OUR_KEY_HELP: &str =
    "keys alustan.io/… are reserved for labels and annotations of the operator";
const NOT_OUR_VOLUME: &str = "!(self in ['build', 'cache', 'docker', 'git', 'inject', 'registries', 'tmp', 'tmp-registry', 'tokens', 'work'])";
const NOT_OUR_VOLUME_HELP: &str = "must not be build, cache, docker, git, inject, registries, tmp, tmp-registry, tokens or work: these names are reserved for volumes of the operator";
/// Refuses the paths in [`crate::paths::PROTECTED`], and paths above and below them.
const NOT_OUR_PATH: &str = "!self.matches('^/(alustan(-docker|-git|-inject|-registries)?|dev|kaniko(-ctx)?|proc|run/secrets|sys|tmp|usr/local/bin|var/lib/alustan|var/run/secrets|work)(/|$)') && !self.matches('^/(run|usr|usr/local|var|var/lib|var/run)$')";
const NOT_OUR_PATH_HELP: &str = "must not be at, above or below a path of the operator: /alustan, /alustan-docker, /alustan-git, /alustan-inject, /alustan-registries, /dev, /kaniko, /kaniko-ctx, /proc, /run/secrets, /sys, /tmp, /usr/local/bin, /var/lib/alustan, /var/run/secrets, /work";
const PATH: &str = r"self.matches('^(/[^/:]+)+$') && !self.matches('/[.][.]?(/|$)')";
const PATH_HELP: &str =
    "must be an absolute path without '.', '..', ':' and empty parts, such as /etc/company";
const VOLUME_NAME: &str = "!format.dns1123Label().validate(self).hasValue()";
const VOLUME_NAME_HELP: &str = "must consist of lowercase letters, digits and '-'";

/// Options of a pod. `kubectl explain pod.spec` describes the fields of Kubernetes types. The operator can have defaults, which these
/// options replace: maps by key, `volumes`, `env` and `imagePullSecrets` by name, `volumeMounts` by path; `tolerations`,
/// `topologySpreadConstraints`, `hostAliases` and `envFrom` are added to the defaults. The operator may refuse options
/// (`PodOptionNotAllowed`).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct PodOptions {
    /// Compute resources of each container. A change starts no run and resets the retry budget. Defaults: a memory limit of 2Gi
    /// for the engine, and of 1Gi for the containers of a build. Example: `{requests: {cpu: "1"}, limits: {memory: 4Gi}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<PodResources>,
    /// Labels that a node must have. `kubernetes.io/arch` is set from `spec.runner.architecture`, and `kubernetes.io/os` is always `linux`.
    /// Example: `{pool: terraform}`. At most 32 entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "strings::<32>")]
    #[x_kube(validation = Rule::new("!('kubernetes.io/arch' in self)").message("kubernetes.io/arch is set by the operator: use spec.runner.architecture"),
              validation = Rule::new("!('kubernetes.io/os' in self) || self['kubernetes.io/os'] == 'linux'").message("kubernetes.io/os must be linux: runs and builds need Linux nodes"))]
    pub node_selector: BTreeMap<String, String>,
    /// Node and pod affinity. Replaces the default of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<Affinity>, 1>")]
    pub affinity: Option<Affinity>,
    /// Tolerations of taints. The operator must allow each of them. Example: `[{key: dedicated, value: terraform, effect: NoSchedule}]`. At
    /// most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "bounded::<Vec<Toleration>, 20>")]
    pub tolerations: Vec<Toleration>,
    /// Topology spread constraints of the pod. At most 10 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "bounded::<Vec<TopologySpreadConstraint>, 10>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Name of a priority class that the operator allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub priority_class_name: Option<String>,
    /// Name of a runtime class that the operator allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub runtime_class_name: Option<String>,
    /// Labels of the pod. The operator must allow their keys. At most 32 entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "strings::<32>")]
    #[x_kube(validation = Rule::new(NOT_OUR_KEY).message(NOT_OUR_KEY_HELP))]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod. The operator must allow their keys. Example: `{sidecar.istio.io/inject: "true"}`, which replaces the value
    /// `false` of the operator. At most 32 entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "strings::<32>")]
    #[x_kube(validation = Rule::new(NOT_OUR_KEY).message(NOT_OUR_KEY_HELP))]
    pub annotations: BTreeMap<String, String>,
    /// Secrets that pull the images of the pod, in addition to the Secret of `spec.containerRegistry`. At most 10 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(validation = Rule::new(not_ours!("self.all(secret, !secret.name", ")")).message(NOT_OURS_HELP))]
    pub image_pull_secrets: Vec<NameRef>,
    /// Entries of `/etc/hosts`. At most 32 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "bounded::<Vec<HostAlias>, 32>")]
    pub host_aliases: Vec<HostAlias>,
    /// Name servers and search domains, in addition to those of the cluster. Replaces the default of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<PodDNSConfig>, 1>")]
    pub dns_config: Option<PodDNSConfig>,
    /// Volumes of the pod. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub volumes: Vec<PodVolume>,
    /// Mounts of `volumes`, in the container of the engine; for builds, in the container `prepare`, which executes `init`. At most 20
    /// entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub volume_mounts: Vec<PodVolumeMount>,
    /// Environment variables, in the same container as `volumeMounts`. Take precedence over `envFrom` and over
    /// `spec.runner.envFromSecrets`. Names `ALUSTAN_…` and variables of the operator, such as its proxy settings, are refused. The runner masks values of Secrets
    /// in logs. A changed Secret starts no run. Example: `[{name: SSL_CERT_DIR, value: /etc/company}]`. At most 100 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "bounded::<Vec<EnvVar>, 100>")]
    #[x_kube(validation = Rule::new("self.all(variable, !variable.name.startsWith('ALUSTAN_'))").message("names ALUSTAN_… are reserved for variables of the operator"))]
    #[x_kube(validation = Rule::new(not_ours!("self.all(variable, !has(variable.valueFrom) || !has(variable.valueFrom.secretKeyRef) || !variable.valueFrom.secretKeyRef.name", ")")).message(NOT_OURS_HELP))]
    pub env: Vec<EnvVar>,
    /// Secrets and ConfigMaps whose keys become environment variables, in the same container as `volumeMounts`.
    /// `spec.runner.envFromSecrets` takes precedence. A changed Secret or ConfigMap starts no run, in contrast to
    /// `spec.runner.envFromSecrets`. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "bounded::<Vec<EnvFromSource>, 20>")]
    #[x_kube(validation = Rule::new("self.all(source, !has(source.prefix) || !source.prefix.startsWith('ALUSTAN_'))").message("names ALUSTAN_… are reserved for variables of the operator"))]
    #[x_kube(validation = Rule::new(not_ours!("self.all(source, !has(source.secretRef) || !source.secretRef.name", ")")).message(NOT_OURS_HELP))]
    pub env_from: Vec<EnvFromSource>,
    /// Termination grace period of a run that changes objects, or of a build, in seconds. Between 600 and 7200 for runs (default: 600), and
    /// between 5 and 7200 for builds (default: 5). Other runs have 30 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self <= 7200").message("must be at most 7200 seconds"))]
    pub termination_grace_period_seconds: Option<i64>,
}

/// Compute resources of a container.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct PodResources {
    /// Limits by resource. Example: `{memory: 4Gi}`. A limit below the default request also reduces the request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, Quantity>,
    /// Requests by resource. Example: `{cpu: 500m, memory: 1Gi}`. A request above the default limit also increases the limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Volume of a pod. Exactly one source must be set.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.configMap), has(self.secret), has(self.projected), has(self.csi), has(self.emptyDir), has(self.persistentVolumeClaim)].filter(isSet, isSet).size() == 1").message("exactly one of configMap, secret, projected, csi, emptyDir and persistentVolumeClaim must be set"))]
pub struct PodVolume {
    /// Name of the volume. Lowercase letters, digits and `-`. Names of volumes of the operator are refused.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(VOLUME_NAME).message(VOLUME_NAME_HELP))]
    #[x_kube(validation = Rule::new(NOT_OUR_VOLUME).message(NOT_OUR_VOLUME_HELP))]
    pub name: String,
    /// ConfigMap in the namespace of the pod. Optional for destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<ConfigMapVolumeSource>, 1>")]
    pub config_map: Option<ConfigMapVolumeSource>,
    /// Secret in the namespace of the pod. Secrets of the operator are refused. Optional for destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<SecretVolumeSource>, 1>")]
    #[x_kube(validation = Rule::new(not_ours!("!has(self.secretName) || !self.secretName", "")).message(NOT_OURS_HELP))]
    pub secret: Option<SecretVolumeSource>,
    /// ConfigMaps, Secrets and pod fields in one folder. ServiceAccount tokens are refused: use `spec.runner.tokens`. Optional for destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<ProjectedVolumeSource>, 1>")]
    #[x_kube(validation = Rule::new("!has(self.sources) || self.sources.all(source, !has(source.serviceAccountToken))").message("serviceAccountToken is not allowed: use spec.runner.tokens"))]
    #[x_kube(validation = Rule::new(not_ours!("!has(self.sources) || self.sources.all(source, !has(source.secret) || !source.secret.name", ")")).message(NOT_OURS_HELP))]
    pub projected: Option<ProjectedVolumeSource>,
    /// Inline volume of a CSI driver that the operator allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<CSIVolumeSource>, 1>")]
    #[x_kube(validation = Rule::new(not_ours!("!has(self.nodePublishSecretRef) || !self.nodePublishSecretRef.name", "")).message(NOT_OURS_HELP))]
    pub csi: Option<CSIVolumeSource>,
    /// Scratch volume, deleted with the pod. Default and maximum of `sizeLimit`: 20Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<EmptyDirVolumeSource>, 1>")]
    pub empty_dir: Option<EmptyDirVolumeSource>,
    /// `PersistentVolumeClaim` in the namespace of the pod, if the operator allows them. Claims of cache volumes are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded::<Option<PersistentVolumeClaimVolumeSource>, 1>")]
    #[x_kube(validation = Rule::new("!self.claimName.endsWith('-cache')").message("must not end in -cache: these names are reserved for cache volumes"))]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
}

/// Mount of a volume in a container.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeMount {
    /// Name of a volume in `volumes`, or of a volume in the defaults of the operator.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Path in the container. Paths of the operator, and paths above and below them, are refused. Example: `/etc/company`.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(PATH).message(PATH_HELP))]
    #[x_kube(validation = Rule::new(NOT_OUR_PATH).message(NOT_OUR_PATH_HELP))]
    pub mount_path: String,
    /// If true, the container cannot write to the volume. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Path in the volume. Default: the root of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub sub_path: Option<String>,
}
