//! Run record and run report: two Secrets per resource, which ensure that a run is executed at most once.
//!
//! The run record contains number, inputs and history of runs. The controller writes it, and the runner reads it. The run report contains
//! claim, progress, result and outputs of a run. Module code can read the token of the runner, and can write any bytes into the report: the
//! controller validates and bounds each field before use.
//!
//! Every write is a compare-and-swap on the `resourceVersion` of the Secret. The controller starts a run: it increments
//! [`RunRecord::number`] and resets [`RunProgress`]. The runner claims the run with the uid of its pod before any other operation. It sets
//! [`RunProgress::phase`] to [`RunPhase::Applying`] before it changes objects. The controller cancels a run with [`RunProgress::cancel`].
//! If the controller cancels a run while the runner sets [`RunPhase::Applying`], only one of the two writes succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::engine::Engine;
use crate::notification::NotificationEvent;
use crate::report::{Failure, RunReport, UnsavedPlace};
use crate::spec::{ApprovalRule, Timeouts};

pub use crate::run_kind::RunKind;
pub use crate::state_lock::StateLock;

/// Version of the protocol between controller, image and runner. It is part of the image tag: an upgrade of the operator rebuilds images
/// only if the protocol changes.
pub const PROTOCOL: u32 = 5;

/// Version of the protocol between controller and runner in build pods. Version 3: with builder kind Append, the container `build` pulls
/// the context and communicates with the container `prepare`. If the runner in the base image has a different version, the build pod uses
/// the runner from the image of the operator. So the version is not part of the image tag.
pub const BUILD_PROTOCOL: u32 = 3;

/// Maximum number of state slots of a resource. Sufficient for the current, the previous and the next version of a state of 256 MiB.
pub const MAX_SLOTS: u32 = 1024;

/// Keys in the data of the run record and the run report.
pub mod key {
    /// In the run record: [`super::RunRecord`] as JSON.
    pub const RECORD: &str = "record";
    /// In the run record: [`super::RunInputs`] as JSON. Removed when the controller adds the report of the run to the history.
    pub const INPUTS: &str = "inputs";
    /// In the run record: [`super::History`] as JSON.
    pub const HISTORY: &str = "signed-history";
    /// In a run record that an earlier version of the operator wrote without signatures: [`super::History`] as JSON. When the operator
    /// signs the run record, it moves the history to [`HISTORY`]. The earlier version refuses the run record without this entry, and so
    /// cannot change a signed one.
    pub const UNSIGNED_HISTORY: &str = "history";
    /// In the run record: 32 random bytes per resource. They are the key of HMACs, and the encryption key of the unsaved state and of plans
    /// on the cache volume.
    pub const KEY: &str = "key";
    /// In the run report: [`super::RunProgress`] as JSON.
    pub const PROGRESS: &str = "progress";
    /// In the run report: [`crate::report::RunReport`] as JSON.
    pub const REPORT: &str = "report";
    /// In the run report: [`super::Outputs`] as JSON. Removed when the outputs are published.
    pub const OUTPUTS: &str = "outputs";
    /// In the run report: unsaved state, compressed and encrypted with [`KEY`]. A later run removes the unsaved state when it has saved it.
    /// A later run also removes it if the Secret has no space left for the outputs: the state that this run wrote to the backend is newer.
    /// All other writes must keep the unsaved state.
    pub const LEFTOVER: &str = "leftover";

    /// Returns the data key of the signature of `entry`, a data key of the run record or of the pin. The operator signs the value of
    /// `entry`. The signature is hexadecimal.
    pub fn signature(entry: &str) -> String {
        format!("{entry}.signature")
    }

    /// Prefix of the data keys of logs.
    const LOG: &str = "log-";

    /// Returns the data key of the log of run `number` in the run report. The value is the last 64 KiB of the log, gzipped, with known
    /// secrets masked. The run report keeps the logs of the last three failed runs.
    pub fn log(number: i64) -> String {
        format!("{LOG}{number}")
    }

    /// Returns the run number in the data key `key`. `None` if `key` is not the data key of a log.
    pub fn log_of(key: &str) -> Option<i64> {
        key.strip_prefix(LOG)?.parse().ok()
    }
}

/// Cause of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Trigger {
    /// No apply of the resource has succeeded yet.
    Created,
    /// The context changed between two revisions.
    #[serde(rename_all = "camelCase")]
    Commit {
        /// Revision of the last apply.
        from: String,
        /// Revision of this run.
        to: String,
    },
    /// The spec, or a Secret or ConfigMap that it references, changed.
    Spec,
    /// Values of `spec.variablesFrom` changed.
    #[serde(rename_all = "camelCase")]
    Input {
        /// Objects with changed values. Example: `Secret db`, `Terraform network`, `Ingress shop/web`.
        of: Vec<String>,
    },
    /// The interval of drift detection elapsed.
    Interval,
    /// The run corrects drift, or verifies a correction.
    Drift,
    /// The published outputs do not match `spec.outputs`, or their Secret or `ConfigMap` is missing.
    Outputs,
    /// The pin is missing.
    Pin,
    /// The previous run failed.
    #[serde(rename_all = "camelCase")]
    Retry {
        /// Number of failures with this configuration, including transient failures.
        failures: u32,
    },
    /// Annotation [`crate::RECONCILE_AT`] has a new value.
    Requested,
    /// A plan was approved.
    #[serde(rename_all = "camelCase")]
    Approval {
        /// Plan id.
        plan: String,
    },
    /// The resource was deleted.
    Deleted,
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |revision: &str| revision.get(..7).unwrap_or(revision).to_owned();
        match self {
            Self::Created => f.write_str("created"),
            Self::Commit { from, to } => write!(f, "commit {}..{}", short(from), short(to)),
            Self::Spec => f.write_str("spec"),
            Self::Input { of } => write!(f, "input {}", of.join(", ")),
            Self::Interval => f.write_str("interval"),
            Self::Drift => f.write_str("drift"),
            Self::Outputs => f.write_str("outputs"),
            Self::Pin => f.write_str("pin"),
            Self::Retry { failures } => write!(f, "retry {failures}"),
            Self::Requested => f.write_str("requested"),
            Self::Approval { plan } => write!(f, "approval {plan}"),
            Self::Deleted => f.write_str("deleted"),
        }
    }
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunPhase {
    /// The controller started the run, and no pod has claimed it.
    #[default]
    Starting,
    /// A pod claimed the run. No object is changed yet.
    Planning,
    /// The run may be changing objects. It can no longer be cancelled.
    Applying,
    /// The runner has written its report.
    Reported,
    /// The report is in the history. The next run may start.
    Recorded,
}

impl RunPhase {
    /// Whether a run in this phase changes no objects: it has not reached [`Self::Applying`], or its report is recorded.
    pub fn is_harmless(self) -> bool {
        self < Self::Applying || self == Self::Recorded
    }
}

/// Progress of a run, in the run report. The controller resets it for each run, and sets [`Self::cancel`] and [`Self::closed`]. The runner
/// writes all other fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunProgress {
    /// Number of the run, see [`RunRecord::number`].
    pub number: i64,
    /// [`RunSpec::trace_id`] of the run. Identifies the run if run numbers restart after the loss of the run record.
    pub trace_id: String,
    /// Phase of the run, at most [`RunPhase::Reported`].
    pub phase: RunPhase,
    /// Pod that claimed the run.
    pub claimed_by: Option<Claim>,
    /// Set by the controller to stop a run before [`RunPhase::Applying`].
    pub cancel: bool,
    /// Set by the controller when the run has ended. No pod may claim or continue the run.
    pub closed: bool,
    /// Whether the run may have changed objects. False before [`RunPhase::Applying`], and if the engine refused to start because of a
    /// locked state or a stale plan.
    pub began: bool,
    /// Lock of the managed state, while the engine holds it.
    pub lock: Option<StateLock>,
    /// Highest number of state slots that a run requested because the existing slots were too few. 0 without a request. The controller
    /// limits it to [`MAX_SLOTS`].
    pub slots_wanted: u32,
    /// See [`RunRecord::lineage`].
    pub lineage: Lineage,
    /// See [`RunRecord::state_address`].
    pub state_address: Option<String>,
    /// See [`RunRecord::own_backend`].
    pub own_backend: Option<OwnBackend>,
}

/// Current run: its inputs, and the progress that the controller last read from the run report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunRecord {
    /// Number of the run, counted per resource from 1. 0 if there was no run.
    pub number: i64,
    /// Inputs of the run without secrets.
    pub run: Option<RunSpec>,
    /// Phase of the run, as the controller observed it last.
    pub phase: RunPhase,
    /// Pod that claimed the run.
    pub claimed_by: Option<Claim>,
    /// Whether the controller cancelled the run. Has no effect on a run that reached [`RunPhase::Applying`].
    pub cancel: bool,
    /// Lock of the managed state, while the engine or `kubectl alustan state push` holds it.
    pub lock: Option<StateLock>,
    /// See [`RunProgress::slots_wanted`].
    pub slots_wanted: u32,
    /// Number of the last apply that reached [`RunPhase::Applying`] or succeeded without changes. 0 if there was none.
    pub attempted: i64,
    /// [`Self::attempted`] at the start of the current run.
    pub attempted_before: i64,
    /// Whether the Secrets of the managed state were created. If true, a missing pointer means that the state is lost. If false, the state
    /// does not exist yet.
    pub state_made: bool,
    /// Failure because of which the controller cancelled a run that could not start.
    pub given_up: Option<Failure>,
    /// Known lineage of the state. The runner reports it before it changes objects. Kept across runs.
    pub lineage: Lineage,
    /// Address of the state with [`Self::lineage`], as the engine resolved it. The runner reports it with the lineage. Kept across runs.
    pub state_address: Option<String>,
    /// `backend` block of the module that resolved to [`Self::state_address`]. The runner reports it with the lineage. Kept across runs: after a
    /// change of the backend, `spec.backend.migrate` copies the state from this backend.
    pub own_backend: Option<OwnBackend>,
    /// Number of the last run that reached [`RunPhase::Applying`], including destroy runs. Part of plan ids, so that an approval is valid
    /// once. Kept across runs.
    pub begun: i64,
    /// [`Self::begun`] at the start of the current run.
    pub begun_before: i64,
    /// Names of the pods of the last runs, newest first, at most ten. These pods have certainly ended, so a run may release a lock that one
    /// of them holds (rule 9).
    pub earlier_pods: Vec<String>,
}

/// `backend` block of a module, as the engine resolved it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnBackend {
    /// Type of the backend.
    pub kind: String,
    /// Configuration of the backend.
    pub config: BTreeMap<String, Value>,
}

impl fmt::Debug for OwnBackend {
    /// Omits the configuration, which may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnBackend")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Known lineage of the state of a resource (rule 11).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lineage {
    /// No run has read the state yet.
    #[default]
    Unknown,
    /// The run record of earlier runs was lost and created again, so the lineage of the state is unknown.
    Lost,
    /// No state existed when a run of this resource started to change objects. A state that was created later belongs to the resource.
    New,
    /// Lineage of the state.
    Of(String),
}

/// Inputs of a run without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSpec {
    /// Kind of the run.
    pub kind: RunKind,
    /// Cause of the run.
    pub trigger: Trigger,
    /// Name of the Job.
    pub job: String,
    /// Revision, if known.
    pub revision: Option<String>,
    /// Digest of the context in the image.
    pub context: Option<String>,
    /// Reference of the context in the registry, by digest.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Whether the pod mounts the cache volume.
    #[serde(default)]
    pub cache: bool,
    /// Whether the pod unpacks [`Self::artifact`] at start, because `image` is a base image without the module.
    #[serde(default)]
    pub unpack: bool,
    /// Image of the pod, by digest: the runner image or its base image.
    pub image: String,
    /// Architecture of the image and of the node.
    #[serde(default = "Architecture::own")]
    pub architecture: Architecture,
    /// Tag of the runner image.
    pub tag: String,
    /// Config hash (rule 3).
    pub config_hash: String,
    /// Config hash without the values of `spec.variablesFrom`.
    #[serde(default)]
    pub own_hash: String,
    /// Digests of the values of `spec.variablesFrom`, by object. Example of an object: `Secret db`.
    #[serde(default)]
    pub found: BTreeMap<String, String>,
    /// Digest of the approval settings: mode, rules, adoption, and `emptying: Allow`. Empty with the defaults. A pending plan with another
    /// digest is not applied: a run creates a new plan instead.
    #[serde(default)]
    pub judged_by: String,
    /// Whether the run destroys, or creates a destroy plan.
    #[serde(default)]
    pub destroys: bool,
    /// Engine in the image, if the catalogue of the operator contains the image.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// Trace id in the logs of the operator and of the run: 32 hexadecimal digits, as in W3C Trace Context.
    #[serde(default)]
    pub trace_id: String,
    /// [`PROTOCOL`] of the operator that started the run. Runners before version 5 wrote their progress and report to the run record.
    #[serde(default)]
    pub protocol: u32,
    /// Start time, set by the controller.
    pub started_at: Timestamp,
}

/// Claim of a run by a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Uid of the pod.
    pub pod_uid: String,
    /// Name of the pod.
    pub pod: String,
    /// Time of the claim.
    pub at: Timestamp,
}

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
    /// Names of variables from Secrets and from sensitive outputs. The runner masks their values.
    #[serde(default)]
    pub secret_variables: BTreeSet<String>,
    /// Names of environment variables from Secrets. The runner masks their values.
    #[serde(default)]
    pub secret_environment: BTreeSet<String>,
    /// Scripts that replace commands of the engine.
    pub scripts: ScriptTexts,
    /// Backend that stores the state.
    pub backend: BackendInputs,
    /// Time limits, in seconds.
    pub timeouts: TimeLimits,
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
    /// [`Lineage::Lost`].
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
    /// Time of the restore of the resource, [`Restored::at`]. Run numbers repeat after a restore, so the time is part of plan ids: an
    /// earlier approval is not valid for a later plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<Timestamp>,
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
    /// Secrets of the managed state. `None` for other backends.
    pub managed: Option<ManagedState>,
}

impl BackendInputs {
    /// Returns the partial backend configuration (`-backend-config`), including its secret part.
    pub fn whole_config(&self) -> BTreeMap<String, Value> {
        let secret = self.secret_config.iter();
        let secret = secret.map(|(name, value)| (name.clone(), value.as_str().into()));
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

/// Outputs of the module by name, in the format of `output -json`.
pub type Outputs = BTreeMap<String, Output>;

/// Output of the module.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Value with its JSON type, as in `output -json`.
    pub value: Value,
    /// Whether the module marks the output as sensitive.
    #[serde(default)]
    pub sensitive: bool,
}

/// History: facts of earlier runs that the controller cannot observe again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// Last successful apply.
    pub applied: Option<Applied>,
    /// Whether, after the last successful apply, an apply started to change objects and failed.
    pub unfinished: bool,
    /// Time of the last comparison of the real objects with the configuration, by a drift check or an apply.
    pub checked_at: Option<Timestamp>,
    /// Drift that the last drift check found.
    pub drift: Option<DriftFound>,
    /// Plan that waits for approval.
    pub pending: Option<PendingPlan>,
    /// Last approval for which a run was started.
    pub approved: Option<ApprovalGiven>,
    /// Consecutive corrections of the same drift. After each correction, the next drift check found the drift again.
    pub undone: CorrectionHistory,
    /// Failures of runs since the last success, for one configuration.
    pub failures: Failures,
    /// Failures of builds since the last success, for one image.
    pub build_failures: Failures,
    /// Base image, resolved to a digest once. A moved tag causes no build.
    pub base: Option<PinnedImage>,
    /// Engine of the last apply that started to change objects or succeeded.
    pub engine: Option<Engine>,
    /// Architecture of the last run that succeeded or reached [`RunPhase::Applying`]. It stays the same if the operator moves to a node of another
    /// architecture.
    pub architecture: Option<Architecture>,
    /// Last image that a run could not pull, by digest. The image may have been deleted from the registry. If the pin contains this image,
    /// the operator does not use the digest in the pin, and queries the registry for the image.
    pub lost_image: Option<String>,
    /// Consecutive runs caused by changed values of `spec.variablesFrom`.
    pub input_runs: InputRuns,
    /// Failing test of an object, for example a test in `spec.waitFor`.
    pub waiting: Option<WaitingSince>,
    /// Value of [`crate::RECONCILE_AT`] that was processed last.
    pub reconcile_at: Option<String>,
    /// Pending and delivered notifications.
    pub notices: Notices,
    /// Whether pods can use the cache volume.
    pub cache: CacheVolume,
    /// State that a run could not save and no later run has saved.
    pub unsaved: Option<UnsavedState>,
    /// Restore, if this resource continues the run numbers and the state of an earlier resource.
    pub restored: Option<Restored>,
    /// Reports of the last runs, newest first, at most ten. Omits drift checks that found no drift. Always includes the runs of
    /// [`Self::drift`] and [`Self::pending`].
    pub reports: Vec<RunReport>,
}

/// Restore by `kubectl alustan restore`: the operator assigned the run record of an earlier resource with the same name to this resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// Time of the restore.
    pub at: Timestamp,
    /// Number of the run that had not ended at the time of the backup and may have changed objects.
    #[serde(default)]
    pub open_run: Option<i64>,
}

/// State that a run could not save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnsavedState {
    /// Number of the run.
    pub run: i64,
    /// Location of the state.
    pub place: UnsavedPlace,
}

/// Whether pods can use the cache volume. The zone or the node of the volume may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheVolume {
    /// No problem is known.
    #[default]
    Usable,
    /// A pod with the volume could not be scheduled or did not start. The next pod runs without the volume.
    Suspect,
    /// A later pod without the volume started. The operator replaces the `PersistentVolumeClaim`.
    Unusable,
}

impl History {
    /// Returns the report of run `number`, if [`Self::reports`] still contains it.
    pub fn report(&self, number: i64) -> Option<&RunReport> {
        self.reports.iter().find(|report| report.number == number)
    }
}

/// Notifications about one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Notices {
    /// Notifications that at least one receiver has not received yet, oldest first, at most eight.
    pub due: Vec<Notice>,
    /// Ids of delivered, expired and dropped notifications by event, newest last, at most eight per event.
    pub told: BTreeMap<NotificationEvent, Vec<String>>,
}

/// Notification of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// Event of the notification.
    pub event: NotificationEvent,
    /// Deduplication id. Reconciles of the same event create the same id; other events have other ids.
    pub id: String,
    /// Time at which the operator first observed the event. The retry period starts here.
    pub since: Timestamp,
    /// Message: a CloudEvent 1.0 in JSON (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>). Contains
    /// the status at the time of the event, and no secrets.
    pub message: Value,
}

/// Successful apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Applied revision.
    pub revision: Option<String>,
    /// Digest of the applied context.
    pub context: Option<String>,
    /// Config hash (rule 3).
    pub config_hash: String,
    /// See [`RunSpec::own_hash`].
    #[serde(default)]
    pub own_hash: String,
    /// See [`RunSpec::found`].
    #[serde(default)]
    pub found: BTreeMap<String, String>,
    /// Time at which the result was recorded.
    pub at: Timestamp,
    /// Objects with the outputs. `None` if the outputs were not published.
    #[serde(default)]
    pub handed_on: Option<PublishedOutputs>,
}

/// Objects with published outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedOutputs {
    /// Name of the Secret.
    pub secret: String,
    /// Name of the `ConfigMap`, if `spec.outputs` requests one.
    pub config_map: Option<String>,
    /// Digest of `keys`, `labels` and `annotations` of `spec.outputs`.
    pub how: String,
}

/// Plan that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPlan {
    /// Plan id.
    pub id: String,
    /// Number of the run that created the plan.
    pub run: i64,
    /// Config hash of that run. The plan is valid for this configuration only.
    pub config_hash: String,
    /// [`RunSpec::judged_by`] of that run.
    pub judged_by: String,
    /// See [`crate::report::PlanAsks::because`].
    pub because: Vec<String>,
    /// Time at which the plan was recorded.
    pub since: Timestamp,
}

/// Approval for which a run was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalGiven {
    /// Plan id.
    pub plan: String,
    /// Value of `spec.approval.by`. The policy `alustan-approvals` ensures that it is the name of the user who sent the request.
    #[serde(default)]
    pub user: Option<String>,
    /// Field manager that set `spec.approval.plan`, if `metadata.managedFields` contains it. Clients choose the name.
    #[serde(default, alias = "by")]
    pub manager: Option<String>,
    /// Time of the approval.
    pub at: Option<Timestamp>,
    /// Number of the run that was started.
    pub run: i64,
}

/// Consecutive corrections of the same drift. After each correction, the next drift check found the drift again (rule 7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorrectionHistory {
    /// [`crate::report::ChangeSet::shape`] of the last correction or the last detected drift.
    #[serde(rename = "shape")]
    pub change_digest: String,
    /// Number of corrections after which the next drift check found the drift again.
    #[serde(rename = "times")]
    pub count: u32,
    /// Whether the drift check that verifies the last correction has yet to finish.
    pub unverified: bool,
}

/// Consecutive runs caused by changed inputs (rule 14).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InputRuns {
    /// Number of runs.
    pub times: u32,
    /// Start time of the last run.
    pub last: Option<Timestamp>,
}

/// Failing test of an object, for example a test in `spec.waitFor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingSince {
    /// Field of the test. Example: `spec.waitFor[0]`.
    pub field: String,
    /// Time at which the test first failed.
    pub since: Timestamp,
}

/// Detected drift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftFound {
    /// Time at which a drift check first found the drift.
    pub since: Timestamp,
    /// Number of the last drift check that found the drift.
    pub run: i64,
}

/// Consecutive failures with one configuration (rule 10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failures {
    /// Key of the failure counter. A new key starts a new counter. For a run, the key is the config hash. It has prefix `destroy` for a destroy,
    /// and a digest of the approval settings if they are not the defaults. After a failed publication of outputs, it also has a digest of
    /// `spec.outputs`. For a build, the key consists of the image tag, a digest of the registry credentials, and the builder.
    pub of: String,
    /// Number of failures that use the retry budget. `u32::MAX` after a failure that requires a change by the user.
    pub count: u32,
    /// Consecutive transient failures. They use no retry budget. Any other failure resets the number.
    pub world: u32,
    /// Time of the last failure.
    pub at: Option<Timestamp>,
    /// Reason of the last failure.
    #[serde(deserialize_with = "crate::reason::deserialize")]
    pub reason: String,
    /// Message of the last failure.
    pub message: String,
    /// Uid of the Job whose failure was counted last. The failure of a Job is counted only once.
    pub job_uid: Option<String>,
}

/// Image reference and the digest to which the operator resolved it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PinnedImage {
    /// Image reference from the configuration.
    pub reference: String,
    /// Image reference by digest.
    pub resolved: String,
    /// Value of `spec.engine` that selected the image from the catalogue of the operator. `None` for other images.
    #[serde(default)]
    pub asked: Option<String>,
    /// Engine in the image, if the catalogue of the operator contains the image.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// [`PROTOCOL`] of the operator that resolved the image.
    #[serde(default)]
    pub protocol: u32,
    /// [`BUILD_PROTOCOL`] of the operator that resolved the image; `None` for version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_protocol: Option<u32>,
}

/// Pin: everything that destroy needs, written before the first apply starts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// Number of the run for which the pin was written.
    pub number: i64,
    /// Runner image by digest.
    pub image: String,
    /// Architecture of the image.
    #[serde(default = "Architecture::own")]
    pub architecture: Architecture,
    /// Tag of the image: a digest of the inputs of the build (rule 1).
    pub tag: String,
    /// Revision of the run.
    pub revision: Option<String>,
    /// Digest of the context in the image.
    pub context: Option<String>,
    /// Reference of the context in the registry, by digest.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Base image by digest. Destroy uses the base image and the context if the runner image does not exist, or if the protocol version of
    /// its runner is not [`PROTOCOL`].
    #[serde(default)]
    pub base: Option<String>,
    /// [`PROTOCOL`] of the runner in the image.
    #[serde(default)]
    pub protocol: u32,
    /// Name of the pull secret of the image.
    pub pull_secret: Option<String>,
    /// Docker configuration with the credentials of the registry.
    #[serde(default)]
    pub docker_config: Option<String>,
    /// Spec without variables, which are part of [`Self::inputs`]. Stored as JSON value: a later version that cannot parse the spec can
    /// still read the rest of the pin.
    #[serde(default)]
    pub spec: Value,
    /// Inputs of the run.
    pub inputs: RunInputs,
    /// Values of the Secrets in `spec.runner.envFromSecrets`, by name of the Secret.
    #[serde(default)]
    pub environment: BTreeMap<String, BTreeMap<String, String>>,
    /// Pin of the last apply that reached [`RunPhase::Applying`]. Kept until the run [`Self::number`] reaches that phase.
    #[serde(default)]
    pub before: Option<Box<Self>>,
}

impl Pin {
    /// Returns the pin for destroy: the pin of the last apply that may have changed objects. `attempted` is the number of the last apply
    /// that reached [`RunPhase::Applying`]. If [`Self::number`] is higher than `attempted`, the run of `self` has changed no object:
    /// returns [`Self::before`] if it is set. Returns `self` in all other cases.
    pub fn of_what_exists(&self, attempted: i64) -> &Self {
        match &self.before {
            Some(before) if self.number > attempted => before,
            Some(_) | None => self,
        }
    }
}
