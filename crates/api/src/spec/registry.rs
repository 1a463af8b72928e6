//! Container registry of the runner image, builder and removal of old images (`spec.containerRegistry`).

use kube_core::Duration;
use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::references::{KeyRef, OBJECT, OBJECT_HELP};
use crate::spec::boolean::yes;
use crate::spec::duration::{DURATION, DURATION_HELP, MAX_DURATION, seconds};
use crate::spec::pod::PodOptions;
use crate::spec::registry_provider::RegistryProvider;

const AGE: &str = r"self.matches('^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('8760h')";
const AGE_HELP: &str = "must be a duration from 1h to 8760h, such as 168h";

/// Maximum number of characters of an image reference: host, port, and 255 characters for each of repository and digest.
const MAX_IMAGE: u64 = 1024;

/// Container registry for the runner image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.dockerfile) || (self.dockerfile != '' && !self.dockerfile.startsWith('/') && !self.dockerfile.split('/').exists(part, part == '..'))").message("dockerfile must be a path in the repository, without '..', such as docker/Dockerfile"))]
#[x_kube(validation = Rule::new("!has(self.dockerfile) || !has(self.builder) || !has(self.builder.kind) || self.builder.kind != 'Append'").message("builder.kind Append cannot build a dockerfile: use Kaniko, or remove dockerfile"))]
pub struct ContainerRegistry {
    /// Image repository without a tag. Example: `docker.io/owner/name` or `registry.example.com:5000/x`.
    #[schemars(length(max = MAX_IMAGE))]
    #[x_kube(validation = Rule::new("self.size() > 0").message("must not be empty"))]
    pub image_name: String,
    /// Key of a Secret with a docker configuration in JSON format: the credentials of the registry. If the Secret does not have the key,
    /// `.dockerconfigjson` is used, then `.dockercfg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyRef>,
    /// Base image of the runner image. It must contain the engine. It takes precedence over `spec.engine`. Default: the base image of the
    /// operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_IMAGE))]
    pub base_image: Option<String>,
    /// Path of a Dockerfile in the repository. The runner image is based on the image that the Dockerfile builds. The Dockerfile must start
    /// with `ARG ALUSTAN_BASE` and `FROM ${ALUSTAN_BASE}`. Only allowed if the operator runs with `--allow-dockerfiles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub dockerfile: Option<String>,
    /// Provider of the registry. With `aws` (ECR), `gcp` (Artifact Registry) and `azure` (ACR), the operator and the build pod authenticate
    /// with the workload identity of their ServiceAccount and need no Secret. These providers are only allowed for registries in
    /// `--identity-registry` of the operator. Default: generic.
    #[serde(default)]
    pub provider: RegistryProvider,
    /// ServiceAccount of the build pod. With a `provider` other than generic, its workload identity needs permission to push images. The
    /// pod gets no token for the Kubernetes API. The ServiceAccount must be allowed as described in `spec.runner.serviceAccountName`.
    /// Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(OBJECT).message(OBJECT_HELP))]
    pub service_account_name: Option<String>,
    /// If true, the registry is accessed by plain http. Use it only in a trusted network. Default: false.
    #[serde(default)]
    pub insecure: bool,
    /// Builder of the runner image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<Builder>,
    /// Removal of old images from the image repository `imageName`. Default: no image is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
}

/// Builder of the runner image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.kind) || self.kind != 'Append' || !(has(self.image) || has(self.cacheRepository) || has(self.cacheLifetime))").message("image, cacheRepository and cacheLifetime require kind Kaniko"))]
#[x_kube(validation = Rule::new("!has(self.pod) || !has(self.pod.terminationGracePeriodSeconds) || self.pod.terminationGracePeriodSeconds >= 5").message("pod.terminationGracePeriodSeconds must be at least 5"))]
pub struct Builder {
    /// See [`BuilderKind`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<BuilderKind>,
    /// Image of the builder. Its entrypoint must accept the arguments of kaniko. Default: the builder image of the operator
    /// (`--builder-image`), a pinned kaniko.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_IMAGE))]
    pub image: Option<String>,
    /// If true, kaniko caches layers in the registry for the next build. `Append` does not use this cache: it finds layers by digest.
    /// Default: true.
    #[serde(default = "yes")]
    pub cache: bool,
    /// Repository for cached layers. Default: `imageName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_IMAGE))]
    pub cache_repository: Option<String>,
    /// Lifetime of cached layers. Default: the default of the builder; two weeks for kaniko.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub cache_lifetime: Option<Duration>,
    /// Options of build pods: resources, scheduling, volumes, environment. `env`, `envFrom` and `volumeMounts` apply to the container
    /// `prepare`, which executes `init`. A change starts neither a build nor a run, but replaces a build pod that cannot start. If builds
    /// run in the namespace of `--build-namespace`, only `resources` is allowed. Resources that share a build use the options of the
    /// resource that started it. See docs/pods.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<PodOptions>>,
}

/// Kind of builder. `Kaniko`: a builder container unpacks the base image, copies the module into it and pushes the result. It runs as root, so the
/// namespace must allow PodSecurity *baseline*. `Append`: the build pod adds the module to the base image as layers, without a builder container
/// and without root (PodSecurity *restricted*). The images of both kinds contain the same files. A change of the kind starts neither a build nor a
/// run. Default: Kaniko with `image`, `cacheRepository`, `cacheLifetime` or `containerRegistry.dockerfile`, else the kind of the operator
/// (`--builder`).
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum BuilderKind {
    /// Kaniko, or a program with the arguments of kaniko. Runs as root in its container.
    #[default]
    Kaniko,
    /// Adds layers to the base image in the registry. Runs without root.
    Append,
}

/// Conditions for the removal of an image. The operator removes an image, with its context, if all conditions are met: the image was built for this
/// namespace, it is not one of the `keep` newest images, it is older than `olderThan`, and no resource uses it for the next run, for its last runs
/// or in its pin.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// Number of newest images to keep, whether resources use them or not. Between 1 and 1000. Default: 10.
    #[serde(default = "ten")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1000").message("must be between 1 and 1000"))]
    pub keep: i32,
    /// Minimum age of a removed image. At least 1h. The age of an image of builder kind Append is the age of its git commit. Images of
    /// kind Append from `spec.source` have no commit: this field does not protect them. Default: 168h.
    #[serde(default = "one_week")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(AGE).message(AGE_HELP))]
    pub older_than: Duration,
}

fn ten() -> i32 {
    10
}

fn one_week() -> Duration {
    seconds(604_800)
}
