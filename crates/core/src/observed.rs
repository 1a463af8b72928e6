//! Observation of a resource. The inputs of `decide` are this observation, the resource, the settings and the time.

mod stack;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use alustan_api::NotificationEvent;
use alustan_api::report::{Failure, RunReport};
use alustan_api::run::{
    History, Notices, Outputs, Pin, PinnedImage, RunInputs, RunProgress, RunRecord, ScriptTexts,
};
use k8s_openapi::jiff::Timestamp;

pub use crate::observed::stack::*;

use crate::model::allow_list::Allowed;

/// Result of a query to a repository or registry that runs in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// In progress. The result requeues the resource.
    Pending,
    /// The result.
    Known(T),
    /// The last attempt failed; it is retried automatically.
    Failed {
        /// The failure of that attempt.
        failure: Failure,
        /// The last successful result.
        last: Option<T>,
        /// Time of the next attempt.
        retry_at: Timestamp,
    },
}

impl<T> Answer<T> {
    /// Returns the result; after a failed attempt, the last successful result.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Failed { last, .. } => last.as_ref(),
            Self::Pending => None,
        }
    }
}

/// Everything observed about one resource.
#[derive(Clone)]
pub struct Seen {
    /// The run record.
    pub record: Option<RecordSeen>,
    /// The pin.
    pub pin: Option<Pin>,
    /// Run record of an earlier resource of the same name, if this resource has none.
    pub left_behind: Option<LeftBehind>,
    /// Whether this resource has no record and is a copy of a resource that exists, named by [`KEPT`](alustan_api::KEPT).
    pub is_copy: bool,
    /// Set for a deleted resource without record and pin, after a read from the API server instead of the cache.
    pub nothing_left: Option<NothingLeft>,
    /// Uid of the namespace of the resource.
    pub namespace_uid: String,
    /// Failure of an invalid spec, independent of other objects.
    pub invalid: Option<Failure>,
    /// Allow lists.
    pub allowed: Arc<Allowed>,
    /// `ServiceAccounts` that the spec names.
    pub accounts: BTreeMap<String, AccountSeen>,
    /// Failure if another resource owns the state.
    pub conflict: Option<Failure>,
    /// Values of the Secrets and ConfigMaps that the spec names.
    pub inputs: Result<InputsSeen, Box<Incomplete>>,
    /// Value sources, dependencies, dependents and tests.
    pub stack: StackSeen,
    /// Commit and context. For a suspended resource, this and the registry queries stay [`Answer::Pending`]: repository and registry are
    /// not queried.
    pub source: Answer<SourceSeen>,
    /// The base image, resolved to a digest.
    pub base: Answer<PinnedImage>,
    /// Digest of the runner image of [`crate::model::image::plan`]; `None` if the registry does not have it.
    pub image: Answer<Option<String>>,
    /// Reference of the context in the registry, by digest; `None` before the first query.
    pub artifact: Option<Answer<String>>,
    /// The build of the runner image.
    pub build: Option<BuildSeen>,
    /// The Job of the current run.
    pub job: Option<JobSeen>,
    /// Why the Job of the current run could not be created: a quota, a policy, or an existing Job of the same name.
    pub refused: Option<Waiting>,
    /// Runner Jobs of this resource, by run number.
    pub jobs: BTreeMap<i64, OwnJob>,
    /// Build Secrets of this resource in other namespaces.
    pub lent: Vec<LentSeen>,
    /// The `PersistentVolumeClaim` of the cache volume.
    pub cache: CacheSeen,
    /// State that no run of the resource wrote.
    pub foreign_state: ForeignState,
    /// Notifications in the run record, and notifications that have become due or were delivered since.
    pub notices: Notices,
    /// Events that the operator sends for every resource, in addition to `spec.notifications`.
    pub notified: BTreeSet<NotificationEvent>,
    /// Owners of the output objects. [`Whose::Foreign`] is distinguished from [`Whose::Absent`] only while outputs wait to be published.
    pub outputs: OutputsSeen,
}

impl Seen {
    /// Returns the inputs that exist, also if others are missing.
    pub fn found(&self) -> &InputsSeen {
        match &self.inputs {
            Ok(inputs) => inputs,
            Err(incomplete) => &incomplete.found,
        }
    }
}

/// A ServiceAccount that a spec names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountSeen {
    /// Does not exist.
    Absent,
    /// Exists without annotation `alustan.io/allow-runs: "true"`.
    Closed,
    /// Has annotation `alustan.io/allow-runs: "true"`.
    Open,
}

/// An existing runner Job, of the current or an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnJob {
    /// Name of the Job.
    pub name: String,
    /// Uid of the Job.
    pub uid: String,
    /// Whether it has condition `Complete` or `Failed`, or its engine container has terminated.
    pub finished: bool,
    /// Whether its engine container has terminated, but another container, such as an injected sidecar, still runs.
    pub lingers: bool,
}

/// A build Secret: credentials copied to the namespace of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentSeen {
    /// Namespace of the build.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Uid of the Secret.
    pub uid: String,
    /// Whether the build has ended or its Job is gone.
    pub over: bool,
}

/// Phase of the `PersistentVolumeClaim` of the cache volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSeen {
    /// Does not exist.
    Absent,
    /// Has no volume yet.
    Pending,
    /// Is bound to its volume.
    Bound,
    /// Lost its volume.
    Lost,
}

/// State that no run of a resource wrote. Observed for a deleted resource that has not applied anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignState {
    /// Whether the Secrets of the managed state hold a version: adopted, or pushed by a user.
    pub secrets: bool,
    /// Whether the `PersistentVolumeClaim` of the cache volume is older than the resource: adopted together with the state on the volume.
    pub claim: bool,
}

/// Describes a deleted resource whose run record and pin do not exist, or are unreadable while the deletion leaves all real objects in
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingLeft {
    /// Whether the namespace is terminating: nothing can be created in it.
    pub namespace_terminating: bool,
    /// Whether record or pin exist but are unreadable.
    pub unreadable: bool,
}

/// Run record of an earlier resource of the same name, for example after a restore from a backup.
#[derive(Clone, Debug)]
pub struct LeftBehind {
    /// Uid of the earlier resource.
    pub uid: String,
    /// `resourceVersion` of the Secret with the record.
    pub version: String,
    /// The record; `None` if this version cannot read the record or its history.
    pub record: Option<RunRecord>,
    /// History of the earlier resource.
    pub history: History,
    /// Reported progress of the last run of the earlier resource, unvalidated.
    pub told: Told,
    /// Uid of the resource for which the restore is requested: annotation [`RESTORE_TO`](alustan_api::labels::RESTORE_TO) of the record.
    pub restore_to: Option<String>,
    /// Name, for messages, of the earlier resource if it still exists.
    pub owner: Option<String>,
    /// Names of the pods of earlier runs that have not terminated.
    pub pods: Vec<String>,
}

/// The run record and the report, with their resource versions.
#[derive(Clone)]
pub struct RecordSeen {
    /// `resourceVersion` of the record, for compare-and-swap.
    pub version: String,
    /// `resourceVersion` of the report; `None` without a report Secret.
    pub report_version: Option<String>,
    /// HMAC key of the resource.
    pub key: Vec<u8>,
    /// The record, merged with the validated progress of the run ([`crate::model::progress::believed`]).
    pub record: RunRecord,
    /// Inputs of the current run, until it is recorded.
    pub inputs: Option<RunInputs>,
    /// Report of the current run, unvalidated, until it is recorded.
    pub report: Option<RunReport>,
    /// Outputs in that report.
    pub outputs: Option<Outputs>,
    /// Whether the report holds a state that a run could not save.
    pub unsaved: bool,
    /// History of earlier runs.
    pub history: History,
}

/// An object or key that the spec names does not exist.
#[derive(Clone)]
pub struct Incomplete {
    /// The first missing input.
    pub failure: Failure,
    /// The inputs that exist.
    pub found: InputsSeen,
}

/// Values of the Secrets and ConfigMaps that the spec names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct InputsSeen {
    /// Texts of the scripts.
    pub scripts: ScriptTexts,
    /// Data of `spec.backend.secretRef`.
    pub backend: BTreeMap<String, String>,
    /// Data of `spec.runner.envFromSecrets`, by Secret; used for the config hash only.
    pub runner: BTreeMap<String, BTreeMap<String, String>>,
    /// Names of the deleted Secrets in `runner`: a deleted resource uses their values from its pin.
    pub gone: BTreeSet<String>,
    /// Key of the docker configuration in the Secret of the registry.
    pub registry_key: Option<String>,
    /// The docker configuration. Only its digest is used, except in a build Secret.
    pub docker_config: Option<String>,
    /// The docker configuration, if the Secret of the registry cannot be a pull secret itself.
    pub pull_config: Option<String>,
    /// Credentials of the repository by file name; set only for builds in another namespace.
    pub git: BTreeMap<String, Vec<u8>>,
}

/// A commit, and the context of the module at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSeen {
    /// Commit id.
    pub revision: String,
    /// Digest of the context.
    pub context: String,
    /// Digest of the context as an OCI artifact.
    pub artifact: String,
    /// Path of the module in the context; empty for its root.
    pub path: String,
    /// Type of the `backend` block of the module.
    pub backend: Option<String>,
    /// Committer date of the revision.
    pub committed_at: Timestamp,
}

/// The build Job of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildSeen {
    /// Name of the Job.
    pub job: String,
    /// Uid of the Job.
    pub uid: String,
    /// Creation time of the Job.
    pub created_at: Timestamp,
    /// Whether the Job has a pod.
    pub has_pod: bool,
    /// Time at which its pod was bound to a node.
    pub scheduled_at: Option<Timestamp>,
    /// Whether the Job uses a build Secret.
    pub lent: bool,
    /// Progress of the build.
    pub state: BuildState,
}

/// Progress of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildState {
    /// Active, with the reason if its pod cannot start.
    Active(Option<Waiting>),
    /// The builder exited with code 0 at this time.
    Done(Timestamp),
    /// The build failed at this time.
    Failed(Failure, Timestamp),
}

/// The Job of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSeen {
    /// Uid of the Job.
    pub uid: String,
    /// Whether it has condition `Complete` or `Failed`, or its engine container has terminated.
    pub finished: bool,
    /// Whether the Job has a pod.
    pub has_pod: bool,
    /// Time at which its pod was bound to a node.
    pub scheduled_at: Option<Timestamp>,
    /// Whether the engine container of one of its pods may still run.
    pub pods_alive: bool,
    /// Why its pod cannot start.
    pub waiting: Option<Waiting>,
    /// How its pod terminated, if known: `OOMKilled`, `Evicted: …`.
    pub ended: Option<String>,
}

/// Why a pod does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Text of a [`Reason`](alustan_api::Reason), or a reason of Kubernetes.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

/// Owners of the output objects under their configured names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputsSeen {
    /// Owner of the Secret.
    pub secret: Whose,
    /// Owner of the ConfigMap; [`Whose::Absent`] if none is configured.
    pub config_map: Whose,
}

/// Owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The object does not exist.
    Absent,
    /// The object has the labels of this resource.
    Ours,
    /// The object exists without the labels of this resource.
    Foreign,
}

/// Progress entry of a report Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// No report Secret.
    #[default]
    Absent,
    /// Missing or unparsable progress entry.
    Unreadable,
    /// Unvalidated progress entry.
    Progress(Box<RunProgress>),
}
