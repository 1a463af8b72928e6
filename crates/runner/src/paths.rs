//! Paths in run pods and build pods. Environment variables override the paths in tests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use alustan_api::paths;

/// Environment variables by name.
pub type Vars = BTreeMap<String, String>;

/// Returns the environment variables of this process. Skips names and values that are not UTF-8.
pub fn process_vars() -> Vars {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Paths that the runner uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Folder with the context in the runner image.
    pub module: PathBuf,
    /// Folder in the runner image with the providers that the base image does not contain.
    pub providers: PathBuf,
    /// Folder with the providers in the base image.
    pub base_providers: PathBuf,
    /// Mount path of the cache volume.
    pub cache: PathBuf,
    /// Whether the cache volume belongs to the resource alone and outlives the pod, so that it can keep a state. False for scratch space and
    /// for a shared claim.
    pub cache_kept: bool,
    /// Scratch space of a run pod, deleted with the pod.
    pub work: PathBuf,
    /// Scratch space of a build pod.
    pub build: PathBuf,
    /// File from which the kubelet reads the termination message.
    pub termination_log: PathBuf,
    /// Path of the runner program.
    pub runner: PathBuf,
}

impl Paths {
    /// Returns the paths of a pod, with overrides from `ALUSTAN_*_DIR` variables.
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
                .is_some_and(|value| value == "true"),
            work: path("ALUSTAN_WORK_DIR", paths::WORK),
            build: path("ALUSTAN_BUILD_DIR", paths::BUILD),
            termination_log: path("ALUSTAN_TERMINATION_LOG", paths::TERMINATION_LOG),
            runner: std::env::current_exe().unwrap_or_else(|_| paths::RUNNER.into()),
        }
    }

    /// Returns the path of the writable copy of the context.
    pub fn module_copy(&self) -> PathBuf {
        self.work.join("module")
    }

    /// Returns the path of the plan file of this run.
    pub fn plan_file(&self) -> PathBuf {
        self.work.join("plan.tfplan")
    }

    /// Returns the path to which a script may write the outputs (`ALUSTAN_OUTPUTS_FILE`).
    pub fn outputs_file(&self) -> PathBuf {
        self.work.join("outputs.json")
    }

    /// Returns the path of the CLI configuration of the engine.
    pub fn cli_config(&self) -> PathBuf {
        self.work.join("engine.tfrc")
    }
}
