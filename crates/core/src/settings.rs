//! What the operator itself is configured with.

use std::collections::BTreeMap;

use alustan_api::{Architecture, BuilderKind, Engine, Terraform};
use k8s_openapi::jiff::SignedDuration;

/// The operator's configuration, as far as behaviour depends on it.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The base image of resources that name none; it carries the runner.
    pub base_image: String,
    /// Base images by engine; they carry the runner, too.
    pub engines: Vec<EngineImage>,
    /// How images are built, unless a resource says otherwise.
    pub builder: BuilderKind,
    /// The image of the builder: kaniko, or one that takes the same arguments.
    pub builder_image: String,
    /// Further arguments of the builder.
    pub builder_args: Vec<String>,
    /// Capabilities of the builder's container.
    pub builder_capabilities: Vec<String>,
    /// Whether build pods have a user namespace of their own, so that root in them is nobody on the node.
    pub builder_user_namespaces: bool,
    /// The namespace of all builds; `None` for that of the resource.
    pub build_namespace: Option<String>,
    /// The operator's own image: the runner in it goes into images built from foreign bases.
    pub operator_image: String,
    /// Registries that are spoken to in plain http, as `host:port`.
    pub insecure_registries: Vec<String>,
    /// Certificates (PEM) to trust besides the usual ones.
    pub ca_bundle: Option<String>,
    /// `--architecture`: architecture of resources without `runner.architecture`.
    pub architecture: Option<Architecture>,
    /// Architecture of the operator, the last default.
    pub own_architecture: Architecture,
    /// Environment of every container: proxies.
    pub environment: BTreeMap<String, String>,
    /// Whether an image may be built from a Dockerfile of its repository.
    pub dockerfiles: bool,
    /// Repositories that resources may use by the operator's own identity in a cloud; each is a
    /// registry, or a part of its repositories: `registry.example.com/team`.
    pub identity_registries: Vec<String>,
    /// How long a pod may wait for a node.
    pub scheduling_timeout: SignedDuration,
    /// Maximum of the time limits of a run. Longer ones in `spec.timeouts` count as this.
    pub max_timeout: SignedDuration,
    /// Whether resources may refer to objects in other namespaces (rule 17).
    pub cross_namespace_refs: bool,
    /// Whether namespaces that hold state are labelled: that needs a right in the cluster, which an
    /// operator of some namespaces has not.
    pub marks_namespaces: bool,
}

impl Settings {
    /// The namespace in which the image of `tf` is built.
    pub fn builds_in<'a>(&'a self, tf: &'a Terraform) -> &'a str {
        let own = tf.metadata.namespace.as_deref();
        let namespace = self.build_namespace.as_deref().or(own);
        namespace.unwrap_or_default()
    }

    /// Whether that is another than that of `tf`: then it has none of the objects that `tf` names, and
    /// credentials are lent to the build.
    pub fn lends(&self, tf: &Terraform) -> bool {
        tf.metadata.namespace.as_deref() != Some(self.builds_in(tf))
    }

    /// How the image of `tf` is built. A builder image, a layer cache and a Dockerfile need kaniko.
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

    /// Returns the architecture of builds and runs of `tf`. `recorded`: architecture of its last run with a result.
    pub fn architecture_of(&self, tf: &Terraform, recorded: Option<Architecture>) -> Architecture {
        let runner = tf.spec.runner.as_ref();
        runner
            .and_then(|runner| runner.architecture)
            .or(self.architecture)
            .or(recorded)
            .unwrap_or(self.own_architecture)
    }

    /// Whether the operator's own identity may be used for `repository`, named without a tag.
    pub fn lends_identity_to(&self, repository: &str) -> bool {
        let mut allowed = self.identity_registries.iter();
        allowed.any(|allowed| {
            let rest = repository.strip_prefix(allowed.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// A base image with an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineImage {
    /// The engine in it.
    pub engine: Engine,
    /// The image.
    pub image: String,
}

/// The kaniko that is used when nothing else is configured.
pub const KANIKO: &str = "ghcr.io/osscontainertools/kaniko:v1.28.3";

/// Capabilities that kaniko needs for any Dockerfile
/// (<https://github.com/osscontainertools/kaniko>, "Security"); PodSecurity *baseline* allows all.
pub const KANIKO_CAPABILITIES: [&str; 7] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETFCAP",
    "SETGID",
    "SETUID",
];
