//! Run record: the current run, its cause and its inputs without secrets.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::engine::Engine;
use crate::report::Failure;
use crate::revision;
use crate::run::progress::{Claim, Lineage, OwnBackend, RunPhase, RunProgress};
use crate::run_kind::RunKind;
use crate::spec::Mode;
use crate::state_lock::StateLock;
use crate::terraform_run::Commit;

/// Start of the text of [`Trigger::PlanRequested`]. The value of annotation [`crate::PLAN_AT`] follows.
pub const PLAN_REQUESTED: &str = "plan requested ";

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
    /// Annotation [`crate::PLAN_AT`] has a new value.
    #[serde(rename_all = "camelCase")]
    PlanRequested {
        /// Value of the annotation, truncated.
        request: String,
    },
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
        match self {
            Self::Created => f.write_str("created"),
            Self::Commit { from, to } => {
                let kind = if revision::is_digest(to) {
                    "revision"
                } else {
                    "commit"
                };
                write!(
                    f,
                    "{kind} {}..{}",
                    revision::short(from),
                    revision::short(to)
                )
            }
            Self::Spec => f.write_str("spec"),
            Self::Input { of } => write!(f, "input {}", of.join(", ")),
            Self::Interval => f.write_str("interval"),
            Self::Drift => f.write_str("drift"),
            Self::Outputs => f.write_str("outputs"),
            Self::Pin => f.write_str("pin"),
            Self::Retry { failures } => write!(f, "retry {failures}"),
            Self::Requested => f.write_str("requested"),
            Self::PlanRequested { request } => write!(f, "{PLAN_REQUESTED}{request}"),
            Self::Approval { plan } => write!(f, "approval {plan}"),
            Self::Deleted => f.write_str("deleted"),
        }
    }
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
    /// See [`RunProgress::slots_wanted`](super::RunProgress::slots_wanted).
    pub slots_wanted: u32,
    /// Number of the last apply that reached [`RunPhase::Applying`] or succeeded without changes. 0 if there was none.
    pub attempted: i64,
    /// [`Self::attempted`] at the start of the current run.
    pub attempted_before: i64,
    /// Whether the Secrets of the managed state were created. If true, a missing pointer means that the state is lost. If false, the state
    /// does not exist yet.
    pub state_made: bool,
    /// Failure because of which the controller cancelled a run that could not start. With [`Reason::RunCancelled`](crate::Reason::RunCancelled), a
    /// user cancelled the run. The controller interrupts a run that a user cancels after it reached [`RunPhase::Applying`].
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
    /// Whether the clean-up of the deleted resource has started. The write of this field replaces the version of the run record, so that a run
    /// that was decided before cannot start any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cleaned_up: bool,
}

impl RunRecord {
    /// Whether a pod of an earlier run acquired `lock`. The pod has certainly ended, so the current run may release the lock (rule 9).
    pub fn has_ended_holder(&self, lock: &StateLock) -> bool {
        self.earlier_pods.iter().any(|pod| lock.is_of_pod(pod))
    }
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
    /// Subject and author of the revision, if it is a commit that was read for this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// Digest of the context in the image.
    pub context: Option<String>,
    /// Reference of the context in the registry, by digest.
    #[serde(default)]
    pub artifact: Option<String>,
    /// Whether the pod mounts the cache volume.
    #[serde(default)]
    pub cache: bool,
    /// Shared `PersistentVolumeClaim` with the cache volume. `None` for the claim of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_claim: Option<String>,
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
    /// Digest of the options of the pod. Empty without options.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Whether the run destroys, or creates a destroy plan.
    #[serde(default)]
    pub destroys: bool,
    /// `spec.mode` at the start of the run.
    #[serde(default, skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    /// Engine in the image, if the catalogue of the operator contains the image.
    #[serde(default)]
    pub engine: Option<Engine>,
    /// Trace id in the logs of the operator and of the run: 32 hexadecimal digits, as in W3C Trace Context.
    #[serde(default)]
    pub trace_id: String,
    /// [`PROTOCOL`](super::PROTOCOL) of the operator that started the run. Runners before version 5 wrote their progress and report to the run
    /// record.
    #[serde(default)]
    pub protocol: u32,
    /// Start time, set by the controller.
    pub started_at: Timestamp,
}

impl RunSpec {
    /// Whether annotation [`crate::PLAN_AT`] requested the run.
    pub fn is_requested_plan(&self) -> bool {
        matches!(self.trigger, Trigger::PlanRequested { .. })
    }

    /// Whether the run creates a speculative plan: no run applies the plan, and the run writes no state.
    pub fn is_speculative(&self) -> bool {
        self.kind == RunKind::Drift && (self.mode == Mode::PlanOnly || self.is_requested_plan())
    }

    /// Whether the pod mounts the cache volume that belongs to the resource alone. Only this volume keeps states.
    pub fn has_own_volume(&self) -> bool {
        self.cache && self.cache_claim.is_none()
    }
}

impl RunProgress {
    /// Returns the progress that the controller writes for a run that starts, is cancelled or is recorded. The serialized form must not depend on
    /// anything but `record`: a runner claims a run by replacing exactly these bytes.
    pub fn of(record: &RunRecord) -> Self {
        let run = record.run.as_ref();
        Self {
            number: record.number,
            trace_id: run.map(|run| run.trace_id.clone()).unwrap_or_default(),
            phase: record.phase.min(RunPhase::Reported),
            claimed_by: record.claimed_by.clone(),
            cancel: record.cancel,
            closed: record.phase == RunPhase::Recorded,
            began: record.number > 0 && record.begun == record.number,
            lock: record.lock.clone(),
            slots_wanted: record.slots_wanted,
            lineage: record.lineage.clone(),
            state_address: record.state_address.clone(),
            own_backend: record.own_backend.clone(),
        }
    }
}
