//! Paths in run pods and build pods.

/// Runner binary in base images and runner images.
pub const RUNNER: &str = "/usr/local/bin/alustan-runner";
/// Folder with the programs in the image of the operator, and with the runner in runner images.
pub const PROGRAMS: &str = "/usr/local/bin";
/// Context in the runner image: the module and its local modules.
pub const MODULE: &str = "/alustan/module";
/// Providers of the module in the runner image, as an unpacked filesystem mirror.
pub const PROVIDERS: &str = "/alustan/providers";
/// Optional filesystem mirror of providers in a base image. Terraform searches this path by default (implied local mirror directory).
pub const BASE_PROVIDERS: &str = "/usr/local/share/terraform/plugins";
/// Mount path of the cache volume in run pods and build pods.
pub const CACHE: &str = "/var/lib/alustan";
/// Mount path of the scratch volume in a run pod. Its content is lost with the pod.
pub const WORK: &str = "/work";
/// Mount path of the scratch volume in a build pod. The runner image must have no content at or below a mount path of the kaniko container:
/// kaniko omits such content without an error.
pub const BUILD: &str = "/kaniko-ctx";
/// Folder below [`BUILD`] with the socket through which the containers `build` and `prepare` communicate, with builder kind `Append`.
pub const HANDOVER: &str = "handover";
/// Folder in a pod. It contains the programs from the image of the operator that the base image may lack.
pub const INJECT: &str = "/alustan-inject";
/// File from which the kubelet reads the termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Docker configuration in the containers of the runner that pull the context and push the image.
pub const DOCKER_CONFIG: &str = "/alustan-docker";
/// Git credentials in the container that executes `init`, for remote modules.
pub const GIT: &str = "/alustan-git";
/// Tokens of module and provider registries in the container that executes `init`, one file per entry of `spec.terraformRegistries`.
pub const REGISTRIES: &str = "/alustan-registries";
/// Projected tokens for external audiences in run pods (`spec.runner.tokens`).
pub const TOKENS: &str = "/var/run/secrets/alustan.io/tokens";
/// Paths at, above and below which no other volume is mounted. `/run` is the target of the link `/var/run` of many images.
pub const PROTECTED: [&str; 16] = [
    "/alustan",
    DOCKER_CONFIG,
    GIT,
    INJECT,
    REGISTRIES,
    "/dev",
    "/kaniko",
    BUILD,
    "/proc",
    "/run/secrets",
    "/sys",
    "/tmp",
    PROGRAMS,
    CACHE,
    "/var/run/secrets",
    WORK,
];
/// User id and group id of runner containers.
pub const USER: i64 = 65532;

/// Layer of the runner image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Folder with the files of the layer, below `src` in [`BUILD`].
    pub source: &'static str,
    /// Absolute path of the files in the image.
    pub target: &'static str,
    /// User id and group id of the files.
    pub owner: i64,
}

/// Layer with the runner, for base images that may lack it.
pub const RUNNER_LAYER: Layer = Layer {
    source: "bin",
    target: PROGRAMS,
    owner: 0,
};
/// Layers of every runner image on top of its base image. The layer that changes most often is last: a commit to the module changes only
/// that layer.
pub const LAYERS: [Layer; 2] = [
    Layer {
        source: "providers",
        target: PROVIDERS,
        owner: USER,
    },
    Layer {
        source: "module",
        target: MODULE,
        owner: USER,
    },
];
