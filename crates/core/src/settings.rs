//! Configuration of the operator.

use std::collections::BTreeMap;
use std::fmt;

use alustan_api::cli_config::CliConfig;
use alustan_api::{Architecture, BuilderKind, Engine, Terraform, Wrapper};
use k8s_openapi::jiff::SignedDuration;

use crate::pod_policy::PodPolicy;

/// Settings of the operator that are inputs of `decide`.
#[expect(clippy::struct_excessive_bools, reason = "each bool is one setting")]
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Base image, which contains the runner. Used for resources that set neither a base image nor an engine.
    pub base_image: String,
    /// Catalogue: base images by engine, version and wrapper. Each image contains the runner.
    pub engines: Vec<EngineImage>,
    /// Default kind of builder.
    pub builder: BuilderKind,
    /// Image of the builder: kaniko, or an image that accepts the arguments of kaniko.
    pub builder_image: String,
    /// Additional arguments of the builder.
    pub builder_args: Vec<String>,
    /// Capabilities of the builder container.
    pub builder_capabilities: Vec<String>,
    /// Whether build pods have a user namespace, so that root in the container is unprivileged on the node.
    pub builder_user_namespaces: bool,
    /// Namespace of all builds; `None` for the namespace of the resource.
    pub build_namespace: Option<String>,
    /// Image of the operator. If the base image may lack the runner, builds copy the runner from this image.
    pub operator_image: String,
    /// Registries that use plain HTTP, as `host:port`.
    pub insecure_registries: Vec<String>,
    /// Additional CA certificates, as PEM.
    pub ca_bundle: Option<String>,
    /// `--architecture`: architecture of resources without `runner.architecture`.
    pub architecture: Option<Architecture>,
    /// CPU architecture on which the operator runs. Used if no other setting selects an architecture.
    pub own_architecture: Architecture,
    /// `--pod-user`: user of the containers of runs and builds.
    pub pod_user: PodUser,
    /// `--terraform-cli-config`: CLI configuration of the engine in builds and runs.
    pub cli_config: Option<CliConfig>,
    /// Environment variables of all containers, for example `HTTPS_PROXY`.
    pub environment: BTreeMap<String, String>,
    /// Whether images may be built from a Dockerfile of the repository.
    pub dockerfiles: bool,
    /// Registries, or path prefixes in them, that resources may access with the cloud identity of the operator. Example:
    /// `registry.example.com/team`.
    pub identity_registries: Vec<String>,
    /// Maximum time that a pod may wait for a node.
    pub scheduling_timeout: SignedDuration,
    /// Maximum of each timeout in `spec.timeouts`. The operator uses this value instead of a longer timeout.
    pub max_timeout: SignedDuration,
    /// Whether resources may reference objects in other namespaces (rule 17).
    pub cross_namespace_refs: bool,
    /// Whether the operator sets label `alustan.io/holds-state` on namespaces that contain Terraform state. An operator with
    /// `--watch-namespaces` sets no label, because it has no cluster-wide permission to patch namespaces.
    pub marks_namespaces: bool,
    /// Defaults and limits of pod options.
    pub pods: PodPolicy,
    /// Cache volume of resources with neither `cache.enabled` nor `cache.claimName`.
    pub cache: CacheDefault,
}

/// Cache volume of resources that do not select one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheDefault {
    /// No volume: pods use scratch space.
    None,
    /// A `PersistentVolumeClaim` per resource.
    #[default]
    PerResource,
    /// The `PersistentVolumeClaim` of this name in the namespace of the resource.
    Claim(String),
}

impl Settings {
    /// Returns the namespace in which the image of `tf` is built.
    pub fn build_namespace_of<'a>(&'a self, tf: &'a Terraform) -> &'a str {
        let own_namespace = tf.metadata.namespace.as_deref();
        let namespace = self.build_namespace.as_deref().or(own_namespace);
        namespace.unwrap_or_default()
    }

    /// Whether images of `tf` are built in another namespace. A pod cannot use Secrets of another namespace, so the operator copies the
    /// credentials of the build to a build Secret.
    pub fn builds_elsewhere(&self, tf: &Terraform) -> bool {
        tf.metadata.namespace.as_deref() != Some(self.build_namespace_of(tf))
    }

    /// Returns the kind of builder of `tf`: `builder.kind` of the spec. If it is not set: kaniko if the spec sets a builder image, a layer
    /// cache or a Dockerfile, else the default kind of the operator.
    pub fn builder_of(&self, tf: &Terraform) -> BuilderKind {
        let registry = &tf.spec.container_registry;
        let builder = registry.builder.as_ref();
        let needs_kaniko = registry.dockerfile.is_some()
            || builder.is_some_and(|builder| {
                builder.image.is_some()
                    || builder.cache_repository.is_some()
                    || builder.cache_lifetime.is_some()
            });
        let default = if needs_kaniko {
            BuilderKind::Kaniko
        } else {
            self.builder
        };
        builder.and_then(|builder| builder.kind).unwrap_or(default)
    }

    /// Returns the architecture of builds and runs of `tf`. `recorded`: architecture of the last run of `tf` with a result.
    pub fn architecture_of(&self, tf: &Terraform, recorded: Option<Architecture>) -> Architecture {
        let runner = tf.spec.runner.as_ref();
        runner
            .and_then(|runner| runner.architecture)
            .or(self.architecture)
            .or(recorded)
            .unwrap_or(self.own_architecture)
    }

    /// Whether the cloud identity of the operator may be used to access `repository`. `repository` is an image name without tag.
    pub fn allows_identity_for(&self, repository: &str) -> bool {
        let mut allowed = self.identity_registries.iter();
        allowed.any(|allowed| {
            let rest = repository.strip_prefix(allowed.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// User of all containers of runs and builds, except the container of kaniko, which runs as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodUser {
    /// Pods set this id as user, group and `fsGroup`.
    Id(i64),
    /// Pods set neither user, group nor `fsGroup`. The cluster sets user and `fsGroup` when it admits a pod, as an SCC of OpenShift does.
    SetByCluster,
}

impl PodUser {
    /// Returns user, group and `fsGroup` of pods; `None` if the cluster sets them.
    pub fn id(self) -> Option<i64> {
        match self {
            Self::Id(id) => Some(id),
            Self::SetByCluster => None,
        }
    }
}

/// Catalogue entry: a base image, its engine and its wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineImage {
    /// Engine in the image.
    pub engine: Engine,
    /// Wrapper in the image; `None` for an image without a wrapper.
    pub wrapper: Option<Wrapper>,
    /// Image reference.
    pub image: String,
}

impl fmt::Display for EngineImage {
    /// Formats engine and wrapper: `opentofu 1.12.6`, `opentofu 1.12.6 with terragrunt 1.0.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.engine)?;
        match &self.wrapper {
            Some(wrapper) => write!(f, " with {wrapper}"),
            None => Ok(()),
        }
    }
}

/// Default image of kaniko.
pub const KANIKO: &str = "ghcr.io/osscontainertools/kaniko:v1.28.3";

/// Capabilities that kaniko needs for arbitrary Dockerfiles (<https://github.com/osscontainertools/kaniko>, "Security"). PodSecurity
/// *baseline* allows all of them.
pub const KANIKO_CAPABILITIES: [&str; 7] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETFCAP",
    "SETGID",
    "SETUID",
];
