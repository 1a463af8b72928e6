//! Where things are inside runner and build pods.

/// The runner binary in every base image.
pub const RUNNER: &str = "/usr/local/bin/alustan-runner";
/// The folder of programs in the operator's image.
pub const PROGRAMS: &str = "/usr/local/bin";
/// The context in the runner image: the module and the local modules that it uses.
pub const MODULE: &str = "/alustan/module";
/// The providers of the module in the runner image, as an unpacked filesystem mirror.
pub const PROVIDERS: &str = "/alustan/providers";
/// A filesystem mirror that a base image may carry; the implied mirror of Terraform.
pub const BASE_PROVIDERS: &str = "/usr/local/share/terraform/plugins";
/// The cache volume, in runner pods and in the build's `prepare` container.
pub const CACHE: &str = "/var/lib/alustan";
/// Scratch space of a runner pod, gone with the pod.
pub const WORK: &str = "/work";
/// Scratch space of a build pod. No image content may live below a mount of the builder, where
/// kaniko would silently drop it.
pub const BUILD: &str = "/kaniko-ctx";
/// The folder in a build pod where a runner binary is put when the base image may have none.
pub const INJECT: &str = "/alustan-inject";
/// The docker configuration in the `prepare` container.
pub const DOCKER_CONFIG: &str = "/alustan-docker";
/// The credentials of the repository in the `prepare` container, for modules that are fetched.
pub const GIT: &str = "/alustan-git";
/// Tokens for others than the cluster, in runner pods: `spec.runner.tokens`.
pub const TOKENS: &str = "/var/run/secrets/alustan.io/tokens";
/// The user and group that runner containers run as.
pub const USER: i64 = 65532;

/// A folder of a build, as a layer of the runner image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Folder below `src` in the scratch space of the build.
    pub source: &'static str,
    /// Absolute path in the image.
    pub target: &'static str,
    /// User and group of its files.
    pub owner: i64,
}

/// The runner: in images whose base may lack it.
pub const RUNNER_LAYER: Layer = Layer {
    source: "bin",
    target: PROGRAMS,
    owner: 0,
};
/// What every runner image has on top of its base, in the order of how seldom it changes: a commit to the module changes
/// only the last one.
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
