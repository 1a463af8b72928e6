//! Where things are: the paths of runner and build pods, each of which a test may move.

use std::collections::BTreeMap;
use std::path::PathBuf;

use alustan_api::paths;

/// Environment variables by name.
pub type Vars = BTreeMap<String, String>;

/// The environment of this process; names and values that are no UTF-8 are left out.
pub fn process_vars() -> Vars {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The paths that the runner works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The context in the runner image.
    pub module: PathBuf,
    /// The providers in the runner image.
    pub providers: PathBuf,
    /// The providers that the base image carries.
    pub base_providers: PathBuf,
    /// The cache volume.
    pub cache: PathBuf,
    /// Whether the cache volume is one that stays when the pod goes.
    pub cache_kept: bool,
    /// Scratch space that ends with the pod.
    pub work: PathBuf,
    /// Scratch space of a build pod.
    pub build: PathBuf,
    /// Where kubelet reads the termination message.
    pub termination_log: PathBuf,
    /// This program.
    pub runner: PathBuf,
}

impl Layout {
    /// The paths of a pod, moved by `ALUSTAN_*_DIR` variables.
    pub fn from_vars(vars: &Vars) -> Self {
        let path = |name: &str, default: &str| {
            PathBuf::from(vars.get(name).map_or(default, String::as_str))
        };
        Self {
            module: path("ALUSTAN_MODULE_DIR", paths::MODULE),
            providers: path("ALUSTAN_PROVIDERS_DIR", paths::PROVIDERS),
            base_providers: path("ALUSTAN_BASE_PROVIDERS_DIR", paths::BASE_PROVIDERS),
            cache: path("ALUSTAN_CACHE_DIR", paths::CACHE),
            cache_kept: vars
                .get("ALUSTAN_CACHE_KEPT")
                .is_some_and(|it| it == "true"),
            work: path("ALUSTAN_WORK_DIR", paths::WORK),
            build: path("ALUSTAN_BUILD_DIR", paths::BUILD),
            termination_log: path("ALUSTAN_TERMINATION_LOG", "/dev/termination-log"),
            runner: std::env::current_exe().unwrap_or_else(|_| paths::RUNNER.into()),
        }
    }

    /// The writable copy of the module.
    pub fn module_copy(&self) -> PathBuf {
        self.work.join("module")
    }

    /// The plan of this run.
    pub fn plan_file(&self) -> PathBuf {
        self.work.join("plan.tfplan")
    }

    /// Where a script may leave the outputs.
    pub fn outputs_file(&self) -> PathBuf {
        self.work.join("outputs.json")
    }

    /// The engine's CLI configuration.
    pub fn cli_config(&self) -> PathBuf {
        self.work.join("engine.tfrc")
    }
}
