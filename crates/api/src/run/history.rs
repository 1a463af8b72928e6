//! History of a resource in the run record.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::engine::Engine;
use crate::notification::NotificationEvent;
use crate::output_value::OutputValue;
use crate::report::{RunReport, UnsavedPlace};
use crate::run::record::PLAN_REQUESTED;
use crate::spec::Mode;
use crate::status::{InventoryStatus, OmittedOutput};

/// History: facts of earlier runs that the controller cannot observe again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// Last successful apply.
    pub applied: Option<Applied>,
    /// Last plan of `spec.mode: PlanOnly`. `None` after a later apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<Planned>,
    /// Whether, after the last successful apply, an apply started to change objects and failed.
    pub unfinished: bool,
    /// Time of the last comparison of the real objects with the configuration, by a drift check or an apply. Also the time at which a user
    /// cancelled a drift check.
    pub checked_at: Option<Timestamp>,
    /// Number of consecutive drift checks that started more than one and a half intervals after the check or apply before. Counted up to the
    /// number that the status reports.
    #[serde(skip_serializing_if = "is_zero")]
    pub late_checks: u8,
    /// Drift that the last drift check found.
    pub drift: Option<DriftFound>,
    /// Plan that waits for approval.
    pub pending: Option<PendingPlan>,
    /// Last approval for which a run was started.
    pub approved: Option<ApprovalGiven>,
    /// Id of the last plan that a user discarded with [`crate::DISCARD_PLAN`]. Plans that are made later have other ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discarded: Option<String>,
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
    /// Architecture of the last run that succeeded or reached [`RunPhase::Applying`](super::RunPhase::Applying). It stays the same if the
    /// operator moves to a node of another architecture.
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
    /// Value of [`crate::PLAN_AT`] that was processed last, truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan_at: Option<String>,
    /// Value of [`crate::CANCEL_RUN`] that was processed last, truncated. A value that exists when a run starts does not cancel this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_run: Option<String>,
    /// Pending and delivered notifications.
    pub notices: Notices,
    /// Whether pods can use the cache volume.
    pub cache: CacheVolume,
    /// Shared `PersistentVolumeClaim` that a pod of the resource mounted last, and whose directory of the resource is not emptied yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_cache: Option<SharedCache>,
    /// State that a run could not save and no later run has saved.
    pub unsaved: Option<UnsavedState>,
    /// Managed objects in the state. `None` if no run has reported them.
    pub inventory: Option<InventoryStatus>,
    /// Restore, if this resource continues the run numbers and the state of an earlier resource.
    pub restored: Option<Restored>,
    /// Reports of the last runs, newest first, at most ten. Omits drift checks that found no drift. Always includes the runs of
    /// [`Self::drift`], [`Self::planned`] and [`Self::pending`].
    pub reports: Vec<RunReport>,
    /// Records of finished runs that exist as `TerraformRun`, newest first, at most `spec.history.runs`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<RecordedRun>,
}

/// A `TerraformRun` of the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRun {
    /// Number in the name of the record.
    pub number: i64,
    /// Number of runs for which the record stands.
    pub count: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

impl History {
    /// Whether a user discarded the plan with the id `plan`, and no plan after it.
    pub fn has_discarded(&self, plan: &str) -> bool {
        self.discarded.as_deref() == Some(plan)
    }

    /// Returns the report of run `number`, if [`Self::reports`] still contains it.
    pub fn report(&self, number: i64) -> Option<&RunReport> {
        self.reports.iter().find(|report| report.number == number)
    }

    /// Returns the report of the last run, except runs that annotation [`crate::PLAN_AT`] requested. `None` if [`Self::reports`] contains no
    /// other run.
    pub fn last_report(&self) -> Option<&RunReport> {
        let is_requested = |report: &&RunReport| report.trigger.starts_with(PLAN_REQUESTED);
        self.reports.iter().find(|report| !is_requested(report))
    }

    /// Returns the last plan with mode [`Mode::PlanOnly`]. `None` if `mode` is another one.
    pub fn last_plan(&self, mode: Mode) -> Option<&Planned> {
        self.planned.as_ref().filter(|_| mode == Mode::PlanOnly)
    }
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

/// A shared `PersistentVolumeClaim` that a pod of the resource has mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedCache {
    /// Name of the claim.
    pub claim: String,
    /// Uid of the claim. A claim that replaces it is usable again.
    pub uid: String,
    /// Whether pods can use the claim.
    #[serde(default)]
    pub usability: CacheVolume,
}

/// Notifications about one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Notices {
    /// Notifications that at least one receiver has not received yet, oldest first, at most eight.
    pub due: Vec<Notice>,
    /// Ids of delivered, expired and dropped notifications by event, newest last, at most eight per event.
    #[serde(rename = "told")]
    pub finished: BTreeMap<NotificationEvent, Vec<String>>,
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
    /// See [`RunSpec::own_hash`](super::RunSpec::own_hash).
    #[serde(default)]
    pub own_hash: String,
    /// See [`RunSpec::found`](super::RunSpec::found).
    #[serde(default)]
    pub found: BTreeMap<String, String>,
    /// Time at which the result was recorded.
    pub at: Timestamp,
    /// Objects with the outputs. `None` if the outputs were not published.
    #[serde(default, rename = "handedOn")]
    pub published: Option<PublishedOutputs>,
    /// Outputs for the status.
    #[serde(default, skip_serializing_if = "StatusOutputs::is_empty")]
    pub status_outputs: StatusOutputs,
}

/// Outputs that `spec.outputs.status` selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusOutputs {
    /// Values by name of the output.
    pub values: BTreeMap<String, OutputValue>,
    /// Selected outputs without a value in [`Self::values`].
    pub omitted: Vec<OmittedOutput>,
}

impl StatusOutputs {
    /// Whether no output was selected.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.omitted.is_empty()
    }
}

/// Successful plan of a resource with `spec.mode: PlanOnly`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Number of the run.
    pub run: i64,
    /// Planned revision.
    pub revision: Option<String>,
    /// Digest of the planned context.
    pub context: Option<String>,
    /// Config hash (rule 3).
    pub config_hash: String,
    /// See [`RunSpec::own_hash`](super::RunSpec::own_hash).
    pub own_hash: String,
    /// See [`RunSpec::found`](super::RunSpec::found).
    pub found: BTreeMap<String, String>,
    /// Whether the plan has changes.
    pub has_changes: bool,
}

/// Objects with published outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedOutputs {
    /// Name of the Secret.
    pub secret: String,
    /// Name of the `ConfigMap`, if `spec.outputs` requests one.
    pub config_map: Option<String>,
    /// Digest of `keys`, `labels`, `annotations` and `status` of `spec.outputs`.
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
    /// [`RunSpec::judged_by`](super::RunSpec::judged_by) of that run.
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
    /// `spec.outputs`. For a build, the key consists of the image tag, a digest of the registry credentials, and the builder. Both have a
    /// digest of the pod options if there are any.
    pub of: String,
    /// Number of failures that use the retry budget. `u32::MAX` after a failure that requires a change by the user.
    pub count: u32,
    /// Consecutive transient failures. They use no retry budget. Any other failure resets the number.
    #[serde(rename = "world")]
    pub transient: u32,
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
    /// [`PROTOCOL`](super::PROTOCOL) of the operator that resolved the image.
    #[serde(default)]
    pub protocol: u32,
    /// [`BUILD_PROTOCOL`](super::BUILD_PROTOCOL) of the operator that resolved the image; `None` for version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_protocol: Option<u32>,
}
