//! The run record and the run report: two Secrets per resource that make a run happen at most once.
//!
//! The record holds decisions and is written by the controller alone; a runner reads it. The report
//! holds what a run says of itself. Module code runs with the runner's token, so a report may hold
//! anything: the controller checks and bounds every field before it uses it.
//!
//! Every write is a compare-and-swap on the Secret's `resourceVersion`. The controller starts a
//! run by raising [`RunRecord::number`] and resetting [`RunProgress`]; the runner claims the run with
//! the uid of its pod before it touches anything, and swaps [`RunProgress::phase`] to
//! [`RunPhase::Applying`] before it changes anything. The controller cancels by swapping
//! [`RunProgress::cancel`]: one of them wins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::engine::Engine;
use crate::notification::NotificationEvent;
use crate::report::{Failure, RunReport, UnsavedPlace};
use crate::spec::ApprovalRule;

pub use crate::run_kind::RunKind;
pub use crate::state_lock::StateLock;

/// Version of what controller, image and runner agree on. It is part of the image's tag: only a
/// new one rebuilds images when the operator is upgraded.
pub const PROTOCOL: u32 = 5;

/// The largest number of Secrets that hold a managed state: 1 GiB.
pub const MAX_SLOTS: u32 = 1024;

/// Keys of the data of both Secrets.
pub mod key {
    /// In the record: a [`super::RunRecord`] as JSON.
    pub const RECORD: &str = "record";
    /// In the record: [`super::RunInputs`] as JSON; removed once the run's report is recorded.
    pub const INPUTS: &str = "inputs";
    /// In the record: a [`super::History`] as JSON.
    pub const HISTORY: &str = "signed-history";
    /// [`HISTORY`] of operators without signatures. They refuse a record with the new name: their writes would make its signatures
    /// invalid.
    pub const UNSIGNED_HISTORY: &str = "history";
    /// In the record: 32 random bytes of this resource, key of its hashes and of its plans on the cache
    /// volume.
    pub const KEY: &str = "key";
    /// In the report: a [`super::RunProgress`] as JSON.
    pub const PROGRESS: &str = "progress";
    /// In the report: a [`crate::report::RunReport`] as JSON.
    pub const REPORT: &str = "report";
    /// In the report: [`super::Outputs`] as JSON; removed once they are handed on.
    pub const OUTPUTS: &str = "outputs";
    /// In the report: state that the engine could not save, compressed and sealed with [`KEY`];
    /// removed once a later run has pushed it. No other write may touch it.
    pub const LEFTOVER: &str = "leftover";

    /// In the record and the pin: the operator's signature of `entry`, in hexadecimal.
    pub fn signature(entry: &str) -> String {
        format!("{entry}.signature")
    }

    /// What the keys of logs begin with.
    const LOG: &str = "log-";

    /// In the report: the last 64 KiB that run `number` printed, gzipped, without what is known to be
    /// secret; of the last few runs that failed. Read by people.
    pub fn log(number: i64) -> String {
        format!("{LOG}{number}")
    }

    /// The run whose log `key` has.
    pub fn log_of(key: &str) -> Option<i64> {
        key.strip_prefix(LOG)?.parse().ok()
    }
}

/// Why a run was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Trigger {
    /// The resource is new.
    Created,
    /// The module changed between two commits.
    #[serde(rename_all = "camelCase")]
    Commit {
        /// The revision applied last.
        from: String,
        /// The revision now.
        to: String,
    },
    /// The resource's spec, or something that it names, changed.
    Spec,
    /// Values that the resource has from elsewhere changed.
    #[serde(rename_all = "camelCase")]
    Input {
        /// Where from: `Secret db`, `Terraform network`, `Ingress shop/web`.
        of: Vec<String>,
    },
    /// The interval of drift detection passed.
    Interval,
    /// The real objects differ from the configuration.
    Drift,
    /// Outputs are not where `spec.outputs` wants them, or not as it wants them.
    Outputs,
    /// The pin is gone.
    Pin,
    /// The previous run failed.
    #[serde(rename_all = "camelCase")]
    Retry {
        /// Failures so far with this configuration.
        failures: u32,
    },
    /// A person set [`crate::RECONCILE_AT`].
    Requested,
    /// A person approved a plan.
    #[serde(rename_all = "camelCase")]
    Approval {
        /// Its id.
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

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunPhase {
    /// Started by the controller, not yet claimed.
    #[default]
    Starting,
    /// Claimed by a pod; nothing is changed yet.
    Planning,
    /// Real objects may be changing. It can no longer be cancelled.
    Applying,
    /// The run has reported.
    Reported,
    /// The report is in the history; the next run may start.
    Recorded,
}

impl RunPhase {
    /// Whether no real object is changing: a run can still be cancelled, or is over.
    pub fn is_harmless(self) -> bool {
        self < Self::Applying || self == Self::Recorded
    }
}

/// What a run says of itself. Both sides write it: the controller resets it for each run, cancels and
/// closes it; the runner does the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunProgress {
    /// The run that it is about, [`RunRecord::number`].
    pub number: i64,
    /// [`RunSpec::trace_id`] of that run: numbers begin anew when the record is lost.
    pub trace_id: String,
    /// How far the run has come; at most [`RunPhase::Reported`].
    pub phase: RunPhase,
    /// The pod that runs it.
    pub claimed_by: Option<Claim>,
    /// Set by the controller to stop a run that has not begun to apply.
    pub cancel: bool,
    /// Set by the controller once the run is over without a report: no pod may go on with it.
    pub closed: bool,
    /// Whether the run came to [`RunPhase::Applying`], and the engine did not refuse to begin.
    pub began: bool,
    /// The lock of the managed backend, while the engine holds it.
    pub lock: Option<StateLock>,
    /// How many state slots the runner needs, when it needs more than it was given; at most
    /// [`MAX_SLOTS`] count.
    pub slots_wanted: u32,
    /// As of [`RunRecord::lineage`].
    pub lineage: Lineage,
    /// As of [`RunRecord::state_address`].
    pub state_address: Option<String>,
    /// As of [`RunRecord::own_backend`].
    pub own_backend: Option<OwnBackend>,
}

/// The current run, as the controller decided and last saw it. Number 0 is "no run yet".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunRecord {
    /// The run's number, counted per resource from 1.
    pub number: i64,
    /// What it runs, and with what.
    pub run: Option<RunSpec>,
    /// How far it has come.
    pub phase: RunPhase,
    /// The pod that runs it.
    pub claimed_by: Option<Claim>,
    /// Whether it is to stop, unless it has begun to apply.
    pub cancel: bool,
    /// The lock of the managed backend, while the engine holds it.
    pub lock: Option<StateLock>,
    /// How many state slots the runner needs, when it needs more than it was given.
    pub slots_wanted: u32,
    /// Number of the last apply that came to [`RunPhase::Applying`], or found everything as it
    /// would have made it; 0 while there was none.
    pub attempted: i64,
    /// [`Self::attempted`] when the current run was started.
    pub attempted_before: i64,
    /// Whether the Secrets of the managed state were made. From then on one that is missing is
    /// lost, and not new.
    pub state_made: bool,
    /// Why the controller gave up on a run that could not start.
    pub given_up: Option<Failure>,
    /// What is known of the state's lineage; told by the runner before it changes anything, and
    /// kept from run to run.
    pub lineage: Lineage,
    /// Where the state of `lineage` is, as the engine resolved it; told with it, and kept.
    pub state_address: Option<String>,
    /// The backend of the module itself that this is, where nobody else knows it; told with it,
    /// and kept: from there the state is copied when the backend changes.
    pub own_backend: Option<OwnBackend>,
    /// Number of the last run that came to [`RunPhase::Applying`], a destroy included; kept. It is
    /// part of a plan's id, so that an approval is good once.
    pub begun: i64,
    /// [`Self::begun`] when the current run was started.
    pub begun_before: i64,
    /// Pods of the last runs, newest first. They are proven to have ended, so a lock that one of
    /// them left behind may be released (rule 9).
    pub earlier_pods: Vec<String>,
}

/// A `backend` block of a module, as the engine resolved it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnBackend {
    /// Its type.
    pub kind: String,
    /// Its configuration.
    pub config: BTreeMap<String, Value>,
}

impl fmt::Debug for OwnBackend {
    /// Modules may have passwords in there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnBackend")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// What is known of the lineage of a resource's state (rule 11).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lineage {
    /// No run has looked yet.
    #[default]
    Unknown,
    /// The record was made anew where there were runs before: what they noted is lost.
    Lost,
    /// There was no state when a run of ours began to change things: what is there since is ours.
    New,
    /// A state of this lineage.
    Of(String),
}

/// What a run was started with, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSpec {
    /// What it does.
    pub kind: RunKind,
    /// Why.
    pub trigger: Trigger,
    /// Its Job.
    pub job: String,
    /// The commit, where one is known.
    pub revision: Option<String>,
    /// The context in the image.
    pub context: Option<String>,
    /// The context in the registry, by digest.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Whether its pod mounts the cache volume.
    #[serde(default)]
    pub cache: bool,
    /// Whether the artifact is unpacked when the pod starts, because `image` is a base image
    /// without the module.
    #[serde(default)]
    pub unpack: bool,
    /// The image that it runs in, by digest: the runner image, or its base.
    pub image: String,
    /// Architecture of the image and of the node.
    #[serde(default = "Architecture::own")]
    pub architecture: Architecture,
    /// The image's tag.
    pub tag: String,
    /// The config hash (rule 3).
    pub config_hash: String,
    /// The config hash without what `spec.variablesFrom` finds elsewhere.
    #[serde(default)]
    pub own_hash: String,
    /// Digests of what `spec.variablesFrom` finds elsewhere, by where: `Secret db`.
    #[serde(default)]
    pub found: BTreeMap<String, String>,
    /// A digest of who has a say in it, where anybody has: an approval mode, rules, a state that is
    /// taken over. A plan is judged anew when it changes.
    #[serde(default)]
    pub judged_by: String,
    /// Whether it is about destroying everything: a destroy, or the plan of one.
    #[serde(default)]
    pub destroys: bool,
    /// The engine in the image, where the operator's catalogue tells.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// The same in the logs of the operator and of the run: 32 hexadecimal digits, as of W3C Trace
    /// Context.
    #[serde(default)]
    pub trace_id: String,
    /// [`PROTOCOL`] of the operator that started it: before 5 the runner wrote into the record.
    #[serde(default)]
    pub protocol: u32,
    /// When it was started.
    pub started_at: Timestamp,
}

/// The pod that a run belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The pod's uid.
    pub pod_uid: String,
    /// The pod's name.
    pub pod: String,
    /// When it claimed the run.
    pub at: Timestamp,
}

/// What the runner needs, secrets included.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunInputs {
    /// Path of the module inside the context; empty for its root.
    pub path: String,
    /// Values of the module's variables, by name.
    pub variables: BTreeMap<String, Value>,
    /// Names in `spec.variables`, which the module is expected to declare.
    #[serde(default)]
    pub own_variables: BTreeSet<String>,
    /// Whether the run fails if the module does not declare one of them.
    #[serde(default)]
    pub strict_variables: bool,
    /// Names of the variables whose values are never printed: those of Secrets, and of outputs that
    /// are sensitive.
    #[serde(default)]
    pub secret_variables: BTreeSet<String>,
    /// Names of the environment variables that come from Secrets: their values are never printed.
    #[serde(default)]
    pub secret_environment: BTreeSet<String>,
    /// The user's scripts in place of the engine's own commands.
    pub scripts: ScriptTexts,
    /// Where the state lives.
    pub backend: BackendInputs,
    /// Time limits in seconds.
    pub timeouts: TimeLimits,
    /// Who has a say in what is applied.
    #[serde(default)]
    pub approval: ApprovalInputs,
    /// Whether a state of another lineage is taken over; its first plan then asks.
    #[serde(default)]
    pub adopt: bool,
    /// Where the state was with the last apply, if it may be copied from there.
    #[serde(default)]
    pub migrate: Option<BackendInputs>,
    /// The engine that what exists was applied with; none, if any other may be used.
    #[serde(default)]
    pub engine_before: Option<Engine>,
    /// Whether it is proven, without the record, that something of this resource was applied: with
    /// [`Lineage::Lost`] the state is ours then.
    #[serde(default)]
    pub applied_before: bool,
    /// The Secret that the plan is written to as people read it.
    #[serde(default)]
    pub plan_secret: Option<String>,
    /// Environment in place of that of Secrets that are gone, from the pin: for a destroy.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The `ServiceAccount` of its pod, where that is not the resource's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
}

/// Who has a say in what a run applies (rules 5 and 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApprovalInputs {
    /// Whether only an approved plan is applied.
    pub manual: bool,
    /// Whether the plan is one to destroy everything.
    pub destroy: bool,
    /// Rules that ask or deny, whatever `manual` says.
    pub rules: Vec<ApprovalRule>,
    /// The plan that a person approved.
    pub approved: Option<ApprovedPlan>,
    /// Whether a plan asks that removes every managed object of the state.
    #[serde(default)]
    pub emptying: bool,
    /// Time of the restore of the resource, [`Restored::at`]. A restore uses run numbers again, so the time is part of a plan's id: no earlier
    /// approval is for a later plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<Timestamp>,
}

/// A plan that a person approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedPlan {
    /// Its id, [`crate::report::PlanAsks::id`].
    pub id: String,
    /// The run that made it: its place on the cache volume.
    pub run: i64,
}

/// Texts of the user's scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScriptTexts {
    /// In place of `init`.
    pub init: Option<String>,
    /// In place of `plan`.
    pub plan: Option<String>,
    /// In place of `apply`.
    pub apply: Option<String>,
    /// In place of `destroy`.
    pub destroy: Option<String>,
}

/// How the runner configures the engine's backend (rule 11).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendInputs {
    /// The backend's type as the engine names it: `s3`, `http`, …; `None` leaves the module's own.
    pub kind: Option<String>,
    /// Whether a `backend` block must be written, because the module has none.
    pub write_block: bool,
    /// Partial configuration, passed in a file by `-backend-config`.
    pub config: BTreeMap<String, Value>,
    /// Environment of the engine with the backend's credentials.
    pub environment: BTreeMap<String, String>,
    /// Partial configuration that is secret, passed in the same file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_config: BTreeMap<String, String>,
    /// What is made before the first run, where it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// The managed backend: names of the Secrets that hold the state.
    pub managed: Option<ManagedState>,
}

impl BackendInputs {
    /// The partial configuration with what of it is secret.
    pub fn whole_config(&self) -> BTreeMap<String, Value> {
        let secret = self.secret_config.iter();
        let secret = secret.map(|(name, value)| (name.clone(), value.as_str().into()));
        self.config.clone().into_iter().chain(secret).collect()
    }
}

/// A place for states in S3 (`spec.backend.bootstrap`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// The bucket.
    pub bucket: String,
    /// Its region.
    pub region: String,
    /// The table with the locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// The server, where it is not that of AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// Secrets of the managed backend (rule 12).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedState {
    /// The Secret that says which slots hold the current and the previous version.
    pub pointer: String,
    /// The Secrets that hold parts of a version.
    pub slots: Vec<String>,
}

/// Time limits of a run, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeLimits {
    /// For init and plan.
    pub plan: u64,
    /// For apply.
    pub apply: u64,
    /// For destroy.
    pub destroy: u64,
}

/// Outputs of the module, as `output -json` prints them.
pub type Outputs = BTreeMap<String, Output>;

/// One output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Its value.
    pub value: Value,
    /// Whether the module marks it as sensitive.
    #[serde(default)]
    pub sensitive: bool,
}

/// What cannot be observed again: the only memory of the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// The last apply that succeeded.
    pub applied: Option<Applied>,
    /// Whether an apply failed half-way since the last that succeeded.
    pub unfinished: bool,
    /// When the real objects were last compared with the configuration.
    pub checked_at: Option<Timestamp>,
    /// The drift found by the last look, if any.
    pub drift: Option<DriftFound>,
    /// The plan that waits for a person.
    pub pending: Option<PendingPlan>,
    /// The last approval that a run was started for.
    pub approved: Option<ApprovalGiven>,
    /// Corrections in a row that the next look found undone.
    pub undone: CorrectionHistory,
    /// Failures of runs since the last success, for one configuration.
    pub failures: Failures,
    /// Failures of builds since the last success, for one image.
    pub build_failures: Failures,
    /// The base image as it was resolved, so that a moved tag rebuilds nothing.
    pub base: Option<PinnedImage>,
    /// The engine that what exists was applied with.
    pub engine: Option<Engine>,
    /// Architecture of the last run with a result. It outlasts a leader on a node of another architecture.
    pub architecture: Option<Architecture>,
    /// The last image that could not be pulled: where the pin has it, the registry is asked again.
    pub lost_image: Option<String>,
    /// Runs for values that are found elsewhere and changed, when they follow each other closely.
    pub input_runs: InputRuns,
    /// What is waited for, and since when.
    pub waiting: Option<WaitingSince>,
    /// The value of [`crate::RECONCILE_AT`] that was acted upon last.
    pub reconcile_at: Option<String>,
    /// What others are told, and what they were told.
    pub notices: Notices,
    /// Whether pods can use the cache volume.
    pub cache: CacheVolume,
    /// State that a run could not save, if no run has saved it since.
    pub unsaved: Option<UnsavedState>,
    /// The restore after which this resource continues the run numbers and the state of an earlier one.
    pub restored: Option<Restored>,
    /// Reports of the last runs, newest first.
    pub reports: Vec<RunReport>,
}

/// A run record of an earlier resource of the same name, bound to this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// Time of the restore.
    pub at: Timestamp,
    /// Number of the run that had not ended in the backup and may have changed real objects.
    #[serde(default)]
    pub open_run: Option<i64>,
}

/// A state that a run could not save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnsavedState {
    /// Number of the run.
    pub run: i64,
    /// Where the run kept the state.
    pub place: UnsavedPlace,
}

/// Whether pods can use the cache volume, which may be in a zone or on a node that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheVolume {
    /// Nothing is known to the contrary.
    #[default]
    Usable,
    /// A pod with it could not be scheduled or did not start. The next one does not use it.
    Suspect,
    /// A pod without it started after that. The claim is replaced.
    Unusable,
}

impl History {
    /// The report of run `number`, if it is still kept.
    pub fn report(&self, number: i64) -> Option<&RunReport> {
        self.reports.iter().find(|report| report.number == number)
    }
}

/// Messages to others about one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Notices {
    /// Those that have not arrived everywhere yet, oldest first; the last few.
    pub due: Vec<Notice>,
    /// The ids of those that arrived, or were given up, newest last; the last few of each event.
    pub told: BTreeMap<NotificationEvent, Vec<String>>,
}

/// Something that others are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// What kind of thing.
    pub event: NotificationEvent,
    /// The same for the same thing, however often it is looked at; no other notice has it.
    pub id: String,
    /// When the operator saw it first.
    pub since: Timestamp,
    /// The message: a CloudEvent 1.0 in JSON
    /// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>). Holds what
    /// the status said then, and no secret.
    pub message: Value,
}

/// A successful apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// The commit.
    pub revision: Option<String>,
    /// The context.
    pub context: Option<String>,
    /// The config hash (rule 3).
    pub config_hash: String,
    /// As of [`RunSpec::own_hash`].
    #[serde(default)]
    pub own_hash: String,
    /// As of [`RunSpec::found`].
    #[serde(default)]
    pub found: BTreeMap<String, String>,
    /// When it was done.
    pub at: Timestamp,
    /// Where the outputs went.
    #[serde(default)]
    pub handed_on: Option<PublishedOutputs>,
}

/// Where outputs were handed on to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedOutputs {
    /// The Secret.
    pub secret: String,
    /// The `ConfigMap`, where one was wanted.
    pub config_map: Option<String>,
    /// A digest of the keys, labels and annotations that were wanted.
    pub how: String,
}

/// A plan that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPlan {
    /// Its id.
    pub id: String,
    /// The run that made it.
    pub run: i64,
    /// What it was made for: the config hash of that run.
    pub config_hash: String,
    /// Who has a say, as of [`RunSpec::judged_by`].
    pub judged_by: String,
    /// Why a person is asked, besides `approval.mode: Manual`.
    pub because: Vec<String>,
    /// Since when it waits.
    pub since: Timestamp,
}

/// An approval that a run was started for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalGiven {
    /// The plan's id.
    pub plan: String,
    /// `spec.approval.by`: a user name that the policy `alustan-approvals` has compared with the user of the request.
    #[serde(default)]
    pub user: Option<String>,
    /// The field manager that set `spec.approval.plan`, where the API server knows it. Clients choose its name.
    #[serde(default, alias = "by")]
    pub manager: Option<String>,
    /// When that was.
    pub at: Option<Timestamp>,
    /// The run that was started for it.
    pub run: i64,
}

/// Consecutive corrections of the same drift that the next drift check found reverted (rule 7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorrectionHistory {
    /// [`crate::report::ChangeSet::shape`] of the last corrected drift.
    #[serde(rename = "shape")]
    pub change_digest: String,
    /// Number of corrections.
    #[serde(rename = "times")]
    pub count: u32,
    /// Whether the drift check after the last correction has not finished.
    pub unverified: bool,
}

/// Runs in a row that changed inputs caused (rule 14).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InputRuns {
    /// How many.
    pub times: u32,
    /// When the last one was started.
    pub last: Option<Timestamp>,
}

/// What a resource waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingSince {
    /// The field that says so: `spec.waitFor[0]`.
    pub field: String,
    /// Since when.
    pub since: Timestamp,
}

/// Drift as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftFound {
    /// When it was first seen.
    pub since: Timestamp,
    /// The run that saw it last.
    pub run: i64,
}

/// Failures in a row with one configuration (rule 10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failures {
    /// What failed: the config hash of a run; the tag of a build and a digest of the credentials it
    /// was built with; `destroy`.
    pub of: String,
    /// Failures that count against the budget.
    pub count: u32,
    /// Failures of the world since the last success; they cost no budget.
    pub world: u32,
    /// When the last one happened.
    pub at: Option<Timestamp>,
    /// What happened, for people.
    pub reason: String,
    /// The text that goes with it.
    pub message: String,
    /// The Job that was counted last, so that none counts twice.
    pub job_uid: Option<String>,
}

/// An image reference and what it was resolved to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PinnedImage {
    /// As configured.
    pub reference: String,
    /// By digest.
    pub resolved: String,
    /// What `spec.engine` asked for when it was found in the operator's catalogue.
    #[serde(default)]
    pub asked: Option<String>,
    /// The engine in it, where the operator's catalogue tells.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// [`PROTOCOL`] of the operator that found it.
    #[serde(default)]
    pub protocol: u32,
}

/// The pin: what destroy needs, kept since before the first apply.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// Number of the apply that it was written for.
    pub number: i64,
    /// The runner image by digest.
    pub image: String,
    /// Architecture of the image.
    #[serde(default = "Architecture::own")]
    pub architecture: Architecture,
    /// Its tag: a digest over everything that goes into it.
    pub tag: String,
    /// The commit.
    pub revision: Option<String>,
    /// The context in the image.
    pub context: Option<String>,
    /// The context in the registry, by digest.
    #[serde(default)]
    pub artifact: Option<String>,
    /// The base image, by digest: with the context it stands in for an image that is gone, or whose
    /// runner is of another [`PROTOCOL`].
    #[serde(default)]
    pub base: Option<String>,
    /// [`PROTOCOL`] of the runner in the image.
    #[serde(default)]
    pub protocol: u32,
    /// The Secret that pulls the image.
    pub pull_secret: Option<String>,
    /// The docker configuration of the registry's Secret.
    #[serde(default)]
    pub docker_config: Option<String>,
    /// The spec, but for the variables, which are among the inputs. A value, since a later version
    /// may not be able to read it, and must read the rest all the same.
    #[serde(default)]
    pub spec: Value,
    /// The inputs of the run.
    pub inputs: RunInputs,
    /// Values of the Secrets of `spec.runner.envFromSecrets`, by Secret.
    #[serde(default)]
    pub environment: BTreeMap<String, BTreeMap<String, String>>,
    /// The pin of the last apply that came to [`RunPhase::Applying`], as long as this one has not.
    #[serde(default)]
    pub before: Option<Box<Self>>,
}

impl Pin {
    /// The pin of what exists, if `attempted` is the last apply that came to
    /// [`RunPhase::Applying`]: an apply that failed before has changed nothing, and destroy must
    /// not run with what it would have applied. Where that is unknown, the latest.
    pub fn of_what_exists(&self, attempted: i64) -> &Self {
        match &self.before {
            Some(before) if self.number > attempted => before,
            Some(_) | None => self,
        }
    }
}
