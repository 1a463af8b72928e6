//! Engine, its version, and arguments of its commands (`spec.engine`).

use kube_core::Duration;
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::engine_name::EngineName;
use crate::spec::boolean::yes;
use crate::spec::duration::{DURATION, DURATION_HELP, MAX_DURATION};
use crate::wrapper::WrapperName;

const VERSION: &str = r"self.matches('^[0-9]{1,9}(\\.[0-9]{1,9}){0,2}$') || self.matches('^([0-9]{1,9}\\.){2}[0-9]{1,9}-[0-9A-Za-z.-]+$')";
const VERSION_HELP: &str = "must be a version such as 1.12.6, or a version prefix such as 1.12";

/// Engine, its version, and arguments of its commands. Without `name` and `version`, the engine is that of the base image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.wrapperVersion) || has(self.wrapper)").message("wrapperVersion requires wrapper"))]
pub struct EngineSpec {
    /// See [`EngineName`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<EngineName>,
    /// Version in the catalogue of the operator (flag `--engine`). Example: `1.12.6`, or `1.12` for the newest release of 1.12. The
    /// operator resolves this field once, and again if this field or `name` changes. A newer version that is added to the catalogue later
    /// has no effect. Default: the newest release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new(VERSION).message(VERSION_HELP))]
    pub version: Option<String>,
    /// See [`WrapperName`]: the CRD contains the doc comment of the enum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<WrapperName>,
    /// Version of `wrapper` in the catalogue of the operator (flag `--engine`). Example: `1.0.0`, or `1.0` for the newest release of 1.0.
    /// Resolved once, like `version`. Default: the newest release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new(VERSION).message(VERSION_HELP))]
    pub wrapper_version: Option<String>,
    /// If true, runs may use another engine, or an older version of the engine, than the last apply. The new engine may not be able to read
    /// the state, and a change back may not be possible. If false, such a run is refused (`EngineChangeNotAllowed`). Default: false.
    #[serde(default)]
    pub allow_switch: bool,
    /// Maximum number of concurrent operations of the engine (`-parallelism` of plan, apply and destroy). Example: `20`. A change
    /// starts no run. Between 1 and 256. Default: 10, the default of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 256").message("must be between 1 and 256"))]
    pub parallelism: Option<i32>,
    /// If true, plans read the real objects before they compare. If false, plans compare the configuration with the state alone
    /// (`-refresh=false`): they send fewer requests, and drift of real objects is neither found nor corrected. Destroy always reads the
    /// objects. Default: true.
    #[serde(default = "yes")]
    pub refresh: bool,
    /// How long apply and destroy wait for a lock of the state that another client holds (`-lock-timeout`), before the run fails with
    /// `StateLocked` and is retried. Plans and drift checks take no lock. `timeouts` also limits the wait. A change starts no run. Example:
    /// `5m`. Default: none, the run fails at once and is retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_DURATION))]
    #[x_kube(validation = Rule::new(DURATION).message(DURATION_HELP))]
    pub lock_timeout: Option<Duration>,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            name: None,
            version: None,
            wrapper: None,
            wrapper_version: None,
            allow_switch: false,
            parallelism: None,
            refresh: yes(),
            lock_timeout: None,
        }
    }
}

impl EngineSpec {
    /// Returns the engine to search in the catalogue of the operator. `None` if neither engine nor version is set: the base image of the
    /// operator, or the wrapper, then determines the engine.
    pub fn requested(&self) -> Option<EngineName> {
        let is_requested = self.name.is_some() || self.version.is_some();
        is_requested.then(|| self.name.unwrap_or_default())
    }
}
