//! Paths in run pods and build pods.

/// Runner binary in base images and runner images.
pub const RUNNER: &str = "/usr/local/bin/alustan-runner";
/// Folder of programs in the operator's image and of the runner in runner images.
pub const PROGRAMS: &str = "/usr/local/bin";
/// Context in the runner image: the module and its local modules.
pub const MODULE: &str = "/alustan/module";
/// Providers of the module in the runner image, as an unpacked filesystem mirror.
pub const PROVIDERS: &str = "/alustan/providers";
/// Optional filesystem mirror in a base image: the implied mirror of Terraform.
pub const BASE_PROVIDERS: &str = "/usr/local/share/terraform/plugins";
/// Mount path of the cache volume in run pods and build pods.
pub const CACHE: &str = "/var/lib/alustan";
/// Scratch volume of a run pod. Its content is lost with the pod.
pub const WORK: &str = "/work";
/// Scratch volume of a build pod. Image content must not be at or below a mount path of the builder: kaniko skips it silently.
pub const BUILD: &str = "/kaniko-ctx";
/// Folder in a pod for programs from the operator's image that the base image may lack.
pub const INJECT: &str = "/alustan-inject";
/// Docker configuration in the containers of the runner that pull the context and push the image.
pub const DOCKER_CONFIG: &str = "/alustan-docker";
/// Credentials of the repository in the container of `init`, for modules that it fetches.
pub const GIT: &str = "/alustan-git";
/// Projected tokens for external audiences in run pods (`spec.runner.tokens`).
pub const TOKENS: &str = "/var/run/secrets/alustan.io/tokens";
/// User id and group id of runner containers.
pub const USER: i64 = 65532;

/// Layer of the runner image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Folder below `src` in [`BUILD`].
    pub source: &'static str,
    /// Absolute path in the image.
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
