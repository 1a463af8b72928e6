//! Options that are always refused, in resources and in the defaults of the operator.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::{PodOptions, PodResources, PodVolume, PodVolumeMount, names, paths};
use k8s_openapi::api::core::v1::{EnvVar, VolumeProjection};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::violation::Violation;
use crate::pod_policy::{ARCHITECTURE, LINUX, OPERATING_SYSTEM, SCRATCH};
use crate::quantity;

/// Names of the volumes of the operator.
const OWN_VOLUMES: [&str; 10] = [
    "build",
    "cache",
    "docker",
    "git",
    "inject",
    "registries",
    "tmp",
    "tmp-registry",
    "tokens",
    "work",
];
/// Prefixes of the keys of labels and annotations of the operator and of the Job controller.
const OWN_PREFIXES: [&str; 2] = ["alustan.io/", "batch.kubernetes.io/"];
/// Other keys of labels and annotations of the operator and of the Job controller.
const OWN_KEYS: [&str; 10] = [
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    "azure.workload.identity/skip-containers",
    "azure.workload.identity/use",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "controller-uid",
    "eks.amazonaws.com/skip-containers",
    "job-name",
    "karpenter.sh/do-not-disrupt",
    "kubectl.kubernetes.io/default-container",
];
/// Environment variable with which the engine selects a workspace.
const WORKSPACE: &str = "TF_WORKSPACE";
/// Prefix of the environment variables of the operator.
const OWN_VARIABLES: &str = "ALUSTAN_";

/// Pod options, and the constraints that they must satisfy.
#[derive(Clone, Copy)]
pub(super) struct Check<'a> {
    pub(super) options: &'a PodOptions,
    /// Environment variables that the operator sets in all containers.
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Minimum of `terminationGracePeriodSeconds`.
    pub(super) grace: i64,
}

impl Check<'_> {
    /// Returns the first option that is always refused.
    pub(super) fn always(self) -> Option<Violation> {
        self.own_key()
            .or_else(|| self.own_pull_secret())
            .or_else(|| self.own_variable())
            .or_else(|| self.own_variable_source())
            .or_else(|| {
                self.options
                    .volumes
                    .iter()
                    .enumerate()
                    .find_map(volume_violation)
            })
            .or_else(|| {
                self.options
                    .volume_mounts
                    .iter()
                    .enumerate()
                    .find_map(mount_violation)
            })
            .or_else(|| self.short_grace())
            .or_else(|| self.options.resources.as_ref().and_then(invalid_resources))
    }

    fn own_key(self) -> Option<Violation> {
        let PodOptions {
            labels,
            annotations,
            node_selector,
            ..
        } = self.options;
        let labels = labels.keys().map(|key| ("labels", key));
        let annotations = annotations.keys().map(|key| ("annotations", key));
        let reserved = labels.chain(annotations).find(|(_, key)| is_own_key(key));
        let reserved = reserved.map(|(field, key)| {
            Violation::new(
                format!("{field}.{key}"),
                "this key is reserved for the operator; remove it",
            )
        });
        let reserved = reserved.or_else(|| {
            node_selector.contains_key(ARCHITECTURE).then(|| {
                let cause = "the operator sets this label; set spec.runner.architecture instead";
                Violation::new(format!("nodeSelector.{ARCHITECTURE}"), cause)
            })
        });
        reserved.or_else(|| {
            let system = node_selector.get(OPERATING_SYSTEM)?;
            (system != LINUX).then(|| {
                let cause = "runs and builds need Linux nodes; remove this label";
                Violation::new(format!("nodeSelector.{OPERATING_SYSTEM}"), cause)
            })
        })
    }

    fn own_pull_secret(self) -> Option<Violation> {
        let mut secrets = self.options.image_pull_secrets.iter().enumerate();
        secrets.find_map(|(index, secret)| {
            own_secret(&format!("imagePullSecrets[{index}].name"), &secret.name)
        })
    }

    fn own_variable(self) -> Option<Violation> {
        let mut variables = self.options.env.iter().enumerate();
        variables.find_map(|(index, variable)| {
            let name = &variable.name;
            if name.starts_with(OWN_VARIABLES) || self.environment.contains_key(name) {
                let cause = format!("variable {name} is set by the operator; remove it");
                return Some(Violation::new(format!("env[{index}].name"), cause));
            }
            if name == WORKSPACE {
                let cause =
                    format!("{WORKSPACE} selects another state; set spec.workspace instead");
                return Some(Violation::new(format!("env[{index}].name"), cause));
            }
            let path = format!("env[{index}].valueFrom.secretKeyRef.name");
            own_secret(&path, secret_of(variable)?)
        })
    }

    fn own_variable_source(self) -> Option<Violation> {
        let mut sources = self.options.env_from.iter().enumerate();
        sources.find_map(|(index, source)| {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let is_part = !prefix.is_empty() && OWN_VARIABLES.starts_with(prefix);
            if prefix.starts_with(OWN_VARIABLES) || is_part {
                let cause = format!(
                    "variables {OWN_VARIABLES}… are set by the operator; use another prefix"
                );
                return Some(Violation::new(format!("envFrom[{index}].prefix"), cause));
            }
            let secret = source.secret_ref.as_ref()?;
            own_secret(&format!("envFrom[{index}].secretRef.name"), &secret.name)
        })
    }

    fn short_grace(self) -> Option<Violation> {
        let seconds = self.options.termination_grace_period_seconds?;
        (seconds < self.grace).then(|| {
            let cause = format!(
                "{seconds} is less than {}, the time that a pod may need to save its work; \
                 increase the value, or remove it",
                self.grace
            );
            Violation::new("terminationGracePeriodSeconds", cause)
        })
    }
}

fn is_own_key(key: &str) -> bool {
    OWN_KEYS.contains(&key) || OWN_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Returns the Secret that contains the value of `variable`.
pub(super) fn secret_of(variable: &EnvVar) -> Option<&str> {
    let source = variable.value_from.as_ref()?;
    source
        .secret_key_ref
        .as_ref()
        .map(|secret| secret.name.as_str())
}

/// Returns the violation if the operator may have created the Secret `name`.
fn own_secret(path: &str, name: &str) -> Option<Violation> {
    names::is_reserved_secret(name).then(|| {
        let cause = format!(
            "Secret {name} is reserved for the operator: names must not end in -run, -report, -pin, \
             -plan, -state, -state-slot-N or -registry; use another Secret"
        );
        Violation::new(path, cause)
    })
}

fn volume_violation((index, volume): (usize, &PodVolume)) -> Option<Violation> {
    let path = format!("volumes[{index}]");
    let name = &volume.name;
    if OWN_VOLUMES.contains(&name.as_str()) {
        let cause = format!("the operator has a volume {name}; use another name");
        return Some(Violation::new(format!("{path}.name"), cause));
    }
    let sources = [
        volume.config_map.is_some(),
        volume.secret.is_some(),
        volume.projected.is_some(),
        volume.csi.is_some(),
        volume.empty_dir.is_some(),
        volume.persistent_volume_claim.is_some(),
    ];
    if sources.into_iter().filter(|is_set| *is_set).count() != 1 {
        let cause = "exactly one of configMap, secret, projected, csi, emptyDir and \
                     persistentVolumeClaim must be set";
        return Some(Violation::new(path, cause));
    }
    let secret = volume
        .secret
        .as_ref()
        .and_then(|secret| secret.secret_name.as_deref());
    let csi = volume
        .csi
        .as_ref()
        .and_then(|csi| csi.node_publish_secret_ref.as_ref());
    let claim = volume.persistent_volume_claim.as_ref();
    let projected = volume
        .projected
        .iter()
        .flat_map(|projected| &projected.sources);
    let size = volume
        .empty_dir
        .as_ref()
        .and_then(|empty_dir| empty_dir.size_limit.as_ref());
    secret
        .and_then(|name| own_secret(&format!("{path}.secret.secretName"), name))
        .or_else(|| unbounded_scratch(&format!("{path}.emptyDir.sizeLimit"), size?))
        .or_else(|| own_secret(&format!("{path}.csi.nodePublishSecretRef.name"), &csi?.name))
        .or_else(|| {
            own_claim(
                &format!("{path}.persistentVolumeClaim.claimName"),
                &claim?.claim_name,
            )
        })
        .or_else(|| {
            let mut sources = projected.flatten().enumerate();
            sources.find_map(|(index, source)| {
                projection_violation(&format!("{path}.projected.sources[{index}]"), source)
            })
        })
}

/// Returns the violation if `size` is not a positive quantity of at most [`SCRATCH`]. The kubelet ignores a limit of zero, and the pod could
/// then fill the node.
fn unbounded_scratch(path: &str, size: &Quantity) -> Option<Violation> {
    let is_zero = !quantity::exceeds(size, &Quantity("0".to_owned()));
    let is_large = quantity::exceeds(size, &Quantity(SCRATCH.to_owned()));
    (is_zero || is_large).then(|| {
        let cause = format!(
            "{:?} is not a size between 1 and {SCRATCH}; change it, or use a persistentVolumeClaim",
            size.0
        );
        Violation::new(path, cause)
    })
}

/// Returns the violation if the operator may have created the `PersistentVolumeClaim` `name`.
fn own_claim(path: &str, name: &str) -> Option<Violation> {
    names::is_reserved_claim(name).then(|| {
        let cause = format!(
            "PersistentVolumeClaim {name} is reserved for a cache volume: names must not end in \
             -cache; use another claim"
        );
        Violation::new(path, cause)
    })
}

/// Returns the violation if a volume is a claim that resources of the namespace share as cache volume: the pod would get the directories of
/// all of them.
pub(super) fn shared_claim(
    options: &PodOptions,
    shared_claims: &BTreeSet<String>,
) -> Option<Violation> {
    let mut volumes = options.volumes.iter().enumerate();
    volumes.find_map(|(index, volume)| {
        let name = &volume.persistent_volume_claim.as_ref()?.claim_name;
        shared_claims.contains(name).then(|| {
            let cause = format!(
                "PersistentVolumeClaim {name} is a shared cache volume with the directories of other \
                 resources (spec.cache.claimName, or --cache of the operator); use another claim"
            );
            let path = format!("volumes[{index}].persistentVolumeClaim.claimName");
            Violation::new(path, cause)
        })
    })
}

fn projection_violation(path: &str, source: &VolumeProjection) -> Option<Violation> {
    if source.service_account_token.is_some() {
        let cause = "tokens of the ServiceAccount are not allowed; set spec.runner.tokens instead";
        return Some(Violation::new(format!("{path}.serviceAccountToken"), cause));
    }
    let secret = source.secret.as_ref()?;
    own_secret(&format!("{path}.secret.name"), &secret.name)
}

fn mount_violation((index, mount): (usize, &PodVolumeMount)) -> Option<Violation> {
    let path = &mount.mount_path;
    let field = format!("volumeMounts[{index}].mountPath");
    let parts = path.strip_prefix('/').unwrap_or_default().split('/');
    let is_normal = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(':');
    if !parts.clone().all(is_normal) {
        let cause = format!(
            "{path:?} is not an absolute path without '.', '..', ':' and empty parts; use a path \
             such as /etc/company"
        );
        return Some(Violation::new(field, cause));
    }
    let is_below = |path: &str, folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let protected = paths::PROTECTED
        .iter()
        .find(|protected| is_below(path, protected) || is_below(protected, path))?;
    let cause = format!(
        "{path} is at, above or below {protected}, a path of the operator; use another path, such as \
         /etc/company"
    );
    Some(Violation::new(field, cause))
}

/// Returns the violation if a mount names a volume that `options` do not contain.
pub(super) fn unknown_volume(options: &PodOptions) -> Option<Violation> {
    let mut mounts = options.volume_mounts.iter();
    let exists = |name: &str| options.volumes.iter().any(|volume| volume.name == name);
    mounts.find(|mount| !exists(&mount.name)).map(|mount| {
        let PodVolumeMount {
            name, mount_path, ..
        } = mount;
        let cause = format!(
            "mount {mount_path} names volume {name}, which does not exist; add it to volumes"
        );
        Violation::new("volumeMounts", cause)
    })
}

/// Returns the violation if a value is not a quantity, or if a request exceeds its limit.
fn invalid_resources(resources: &PodResources) -> Option<Violation> {
    let PodResources { limits, requests } = resources;
    let limits_with_field = limits.iter().map(|entry| ("limits", entry));
    let mut all = limits_with_field.chain(requests.iter().map(|entry| ("requests", entry)));
    let invalid = all.find(|(_, (_, value))| quantity::parse(value).is_none());
    let invalid = invalid.map(|(field, (name, value))| {
        let cause = format!("{:?} is not a quantity such as 500m or 4Gi", value.0);
        Violation::new(format!("resources.{field}.{name}"), cause)
    });
    invalid.or_else(|| {
        let mut requests = requests.iter();
        requests.find_map(|(name, request)| {
            let limit = limits.get(name)?;
            quantity::exceeds(request, limit).then(|| {
                let cause = format!(
                    "request {} exceeds limit {}; reduce the request, or increase the limit",
                    request.0, limit.0
                );
                Violation::new(format!("resources.requests.{name}"), cause)
            })
        })
    })
}
