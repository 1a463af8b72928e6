//! Inputs of the runner, including secrets.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::Engine;
use crate::spec::{ApprovalRule, EngineSpec, Timeouts};
use crate::wrapper::WrapperName;

/// Inputs of the runner, including secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunInputs {
    /// Path of the module in the context. Empty for the root of the context.
    pub path: String,
    /// Values of variables, by name.
    pub variables: BTreeMap<String, Value>,
    /// Names in `spec.variables`. The module is expected to declare them.
    #[serde(default)]
    pub own_variables: BTreeSet<String>,
    /// Whether the run fails if the module does not declare a name in [`Self::own_variables`]. Ignored by destroy runs.
    #[serde(default)]
    pub strict_variables: bool,
    /// Files with values of variables, in order of precedence: paths relative to the folder of the module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub var_files: Vec<String>,
    /// Names of variables from Secrets and from sensitive outputs. The runner masks their values.
    #[serde(default)]
    pub secret_variables: BTreeSet<String>,
    /// Names of environment variables from Secrets. The runner masks their values.
    #[serde(default)]
    pub secret_environment: BTreeSet<String>,
    /// Scripts that replace commands of the engine.
    pub scripts: ScriptTexts,
    /// Program that runs the commands of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<WrapperName>,
    /// Backend that stores the state.
    pub backend: BackendInputs,
    /// Time limits, in seconds.
    pub timeouts: TimeLimits,
    /// Arguments of engine commands.
    #[serde(default, skip_serializing_if = "EngineArguments::is_default")]
    pub engine_arguments: EngineArguments,
    /// Which plans of the run need approval, and which plan is approved.
    #[serde(default)]
    pub approval: ApprovalInputs,
    /// Whether a state with an unknown lineage is adopted. The first plan then waits for approval.
    #[serde(default)]
    pub adopt: bool,
    /// Backend of the last apply, if the run may copy the state from it (`spec.backend.migrate`).
    #[serde(default)]
    pub migrate: Option<BackendInputs>,
    /// Engine of the last apply, with which the runner compares its engine. `None` if any engine is allowed.
    #[serde(default)]
    pub engine_before: Option<Engine>,
    /// Whether `status.lastApplied` records an apply of this resource. If true, an existing state belongs to the resource even if the lineage is
    /// [`Lineage::Lost`](super::Lineage::Lost).
    #[serde(default)]
    pub applied_before: bool,
    /// Name of the Secret for the text of the plan.
    #[serde(default)]
    pub plan_secret: Option<String>,
    /// Environment variables from the pin. They replace the variables of Secrets in `spec.runner.envFromSecrets` that no longer exist. Only
    /// for destroy.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Name of the `ServiceAccount` of the pod. `None` for the `ServiceAccount` that the operator creates for the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}

/// Approval of the plan of a run (rules 5 and 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApprovalInputs {
    /// Whether every plan with changes needs approval.
    pub manual: bool,
    /// Whether the plan is a destroy plan.
    pub destroy: bool,
    /// Rules in `spec.approval.rules`. The runner evaluates them whether [`Self::manual`] is true or false.
    pub rules: Vec<ApprovalRule>,
    /// Approved plan that the run may apply.
    pub approved: Option<ApprovedPlan>,
    /// Whether a plan that removes every managed object of the state needs approval.
    #[serde(default)]
    pub emptying: bool,
    /// Time of the restore of the resource, [`Restored::at`](super::Restored::at). Run numbers repeat after a restore, so the time is part of
    /// plan ids: an earlier approval is not valid for a later plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<Timestamp>,
    /// Id of the last discarded plan, [`History::discarded`](super::History::discarded). Part of plan ids: a new plan with the same changes as
    /// the discarded plan has another id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discarded: Option<String>,
}

/// Reference to an approved plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedPlan {
    /// Plan id, [`crate::report::PlanAsks::id`].
    pub id: String,
    /// Number of the run that created the plan. It locates the plan on the cache volume.
    pub run: i64,
}

/// Texts of `spec.scripts`, inline or from a `ConfigMap`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScriptTexts {
    /// Script that replaces `terraform init`.
    pub init: Option<String>,
    /// Script that replaces `terraform plan`.
    pub plan: Option<String>,
    /// Script that replaces `terraform apply`.
    pub apply: Option<String>,
    /// Script that replaces `terraform destroy`.
    pub destroy: Option<String>,
}

/// Configuration of the engine's backend (rule 11).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendInputs {
    /// Type of the backend in the engine: `s3`, `http`, …. `None` for the `backend` block of the module.
    pub kind: Option<String>,
    /// Whether the runner writes a `backend` block, because the module has none.
    pub write_block: bool,
    /// Partial configuration, passed in a file with `-backend-config`.
    pub config: BTreeMap<String, Value>,
    /// Environment variables of the engine with the credentials of the backend.
    pub environment: BTreeMap<String, String>,
    /// Arguments with secret values, passed in the same file as [`Self::config`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_config: BTreeMap<String, String>,
    /// Bucket and lock table to create before the first run if they do not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// Workspace of the engine. `None` for the workspace `default`, or the workspace in the environment variable `TF_WORKSPACE` of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Secrets of the managed state. `None` for other backends.
    pub managed: Option<ManagedState>,
}

impl BackendInputs {
    /// Returns the partial backend configuration (`-backend-config`), including its secret part.
    pub fn whole_config(&self) -> BTreeMap<String, Value> {
        let secret = self
            .secret_config
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()));
        self.config.clone().into_iter().chain(secret).collect()
    }
}

/// Bucket and lock table for states in S3 (`spec.backend.bootstrap`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// Name of the bucket.
    pub bucket: String,
    /// Region of the bucket.
    pub region: String,
    /// Name of the `DynamoDB` table with the locks. `None` if the lock is a file in the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Endpoint URL of an S3-compatible server. `None` for AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// Secrets of a managed state (rule 12).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedState {
    /// Name of the pointer Secret, which names the slots of the current and the previous version.
    pub pointer: String,
    /// Names of the slot Secrets.
    pub slots: Vec<String>,
}

/// Arguments of engine commands (`spec.engine`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EngineArguments {
    /// Value of `-parallelism`; `None` for the default of the engine.
    pub parallelism: Option<i32>,
    /// Whether plans compare the configuration with the state alone (`-refresh=false`).
    pub skips_refresh: bool,
    /// Value of `-lock-timeout`, in milliseconds; `None` for the default of the engine.
    pub lock_timeout: Option<u64>,
}

impl EngineArguments {
    /// Returns the arguments in `engine`.
    pub fn of(engine: &EngineSpec) -> Self {
        let milliseconds = |limit| {
            let milliseconds = std::time::Duration::from(limit).as_millis();
            u64::try_from(milliseconds).unwrap_or(u64::MAX)
        };
        Self {
            parallelism: engine.parallelism,
            skips_refresh: !engine.refresh,
            lock_timeout: engine.lock_timeout.map(milliseconds),
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Time limits of a run, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeLimits {
    /// Time limit of `init` and `plan`.
    pub plan: u64,
    /// Time limit of `apply`.
    pub apply: u64,
    /// Time limit of `destroy`.
    pub destroy: u64,
}

impl Default for TimeLimits {
    /// Returns the defaults of `spec.timeouts`. They replace limits that are missing in a value stored by an earlier version of the
    /// operator.
    fn default() -> Self {
        Self::of(&Timeouts::default(), u64::MAX)
    }
}

impl TimeLimits {
    /// Returns the limits of `timeouts`, each at most `max` seconds.
    pub fn of(timeouts: &Timeouts, max: u64) -> Self {
        let seconds = |limit| std::time::Duration::from(limit).as_secs().min(max);
        Self {
            plan: seconds(timeouts.plan),
            apply: seconds(timeouts.apply),
            destroy: seconds(timeouts.destroy),
        }
    }
}
