//! Parts that the specs of build pods and run pods share. All containers comply with PodSecurity *restricted*, except the container of
//! kaniko.

use std::collections::BTreeMap;

use alustan_api::{Architecture, WorkloadIdentity, paths};
use k8s_openapi::api::core::v1::{
    Capabilities, EmptyDirVolumeSource, EnvVar, EnvVarSource, ObjectFieldSelector,
    PodSecurityContext, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod_policy::{ARCHITECTURE, LINUX, OPERATING_SYSTEM, SCRATCH};
use crate::settings::PodUser;

/// Annotation with the name of the container whose log `kubectl logs` prints by default.
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Labels and annotations that disable the injection of sidecars: Istio, Linkerd, Kuma, Consul, Vault, OpenTelemetry and Datadog. A sidecar
/// would keep the pod running after the end of the run. In a service mesh, init containers would have no network, because they start before
/// the proxy.
const WITHOUT_SIDECARS: [(&str, &str); 7] = [
    ("admission.datadoghq.com/enabled", "false"),
    ("consul.hashicorp.com/connect-inject", "false"),
    ("kuma.io/sidecar-injection", "disabled"),
    ("linkerd.io/inject", "disabled"),
    ("sidecar.istio.io/inject", "false"),
    ("sidecar.opentelemetry.io/inject", "false"),
    ("vault.hashicorp.com/agent-inject", "false"),
];

/// Returns [`WITHOUT_SIDECARS`]. Pods get the entries both as labels and as annotations, because some injectors read labels and others
/// annotations.
pub(crate) fn without_sidecars() -> impl Iterator<Item = (String, String)> {
    let pairs = WITHOUT_SIDECARS.into_iter();
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// Returns the pod labels that `identities` require.
pub(crate) fn identity_labels(
    identities: impl IntoIterator<Item = WorkloadIdentity>,
) -> impl Iterator<Item = (String, String)> {
    identities
        .into_iter()
        .filter_map(|identity| identity.pod_label)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// Whether `key` is a label or annotation in [`WITHOUT_SIDECARS`].
pub(crate) fn is_sidecar_key(key: &str) -> bool {
    WITHOUT_SIDECARS.iter().any(|(name, _)| *name == key)
}

/// Returns the node selector for an image of `architecture`.
pub(crate) fn node_selector(architecture: Architecture) -> BTreeMap<String, String> {
    BTreeMap::from([
        (ARCHITECTURE.to_owned(), architecture.to_string()),
        (OPERATING_SYSTEM.to_owned(), LINUX.to_owned()),
    ])
}

/// Security context of a container: no privilege escalation, no capabilities, read-only root filesystem.
pub(crate) fn restricted(user: PodUser) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: None,
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: user.id(),
        run_as_group: user.id(),
        ..SecurityContext::default()
    }
}

/// Security context of a pod. Its `fsGroup` is the group of the runner, so that the runner can write to volumes.
pub(crate) fn pod_security(user: PodUser) -> PodSecurityContext {
    PodSecurityContext {
        fs_group: user.id(),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

pub(crate) fn env(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.into()),
        value_from: None,
    }
}

/// Returns the variables with which tests of the runner set its paths, with the values in pods. They take precedence over variables of the
/// same name from `envFrom`, which the operator cannot read.
pub(crate) fn own_paths() -> impl Iterator<Item = EnvVar> {
    let values = [
        ("ALUSTAN_BASE_PROVIDERS_DIR", paths::BASE_PROVIDERS),
        ("ALUSTAN_BUILD_DIR", paths::BUILD),
        ("ALUSTAN_CACHE_DIR", paths::CACHE),
        ("ALUSTAN_KUBECONFIG", ""),
        ("ALUSTAN_MODULE_DIR", paths::MODULE),
        ("ALUSTAN_PROVIDERS_DIR", paths::PROVIDERS),
        ("ALUSTAN_TERMINATION_LOG", paths::TERMINATION_LOG),
        ("ALUSTAN_WORK_DIR", paths::WORK),
    ];
    values.into_iter().map(|(name, value)| env(name, value))
}

/// Environment variable from a field of the pod (downward API).
pub(crate) fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: path.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
    }
}

/// Returns the maximum size of an `emptyDir` volume.
pub(crate) fn scratch_size() -> Quantity {
    Quantity(SCRATCH.to_owned())
}

/// Returns an `emptyDir` volume.
pub(crate) fn scratch(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(scratch_size()),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

pub(crate) fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

/// Returns the resources of a container with this CPU request, memory request and memory limit.
pub(crate) fn resources(cpu: &str, memory: &str, limit: &str) -> ResourceRequirements {
    let quantities = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Quantity((*value).to_owned())))
            .collect()
    };
    ResourceRequirements {
        requests: Some(quantities(&[("cpu", cpu), ("memory", memory)])),
        limits: Some(quantities(&[("memory", limit)])),
        ..ResourceRequirements::default()
    }
}
