//! What the operator observes about a resource in one reconcile: [`Seen`], the objects of the cluster, and the parts of
//! [`ImageSeen`](crate::model::image::ImageSeen), the runner image.

pub mod allow_list;

mod stack;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use alustan_api::report::{Failure, RunReport};
use alustan_api::run::{
    History, Notices, Outputs, Pin, RunDetails, RunInputs, RunProgress, RunRecord, ScriptTexts,
};
use alustan_api::{Commit, NotificationEvent};
use k8s_openapi::jiff::Timestamp;

pub use crate::observed::stack::*;

use self::allow_list::Allowed;

/// Result of a query to a repository or registry. Queries run in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// The query is in progress. Its result requeues the resource.
    Pending,
    /// The result of the query.
    Known(T),
    /// The last attempt failed. The query is retried automatically.
    Failed {
        /// The failure of the last attempt.
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

    /// Returns the answer of `next` to a known result. A failed answer stays failed and loses its last successful result.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Answer<U>) -> Answer<U> {
        match self {
            Self::Pending => Answer::Pending,
            Self::Known(value) => next(value),
            Self::Failed {
                failure, retry_at, ..
            } => Answer::Failed {
                failure,
                last: None,
                retry_at,
            },
        }
    }
}

/// Version of a stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// Observed objects of the cluster. Input of the first phase of a decision, [`prepare`](crate::decide::prepare::prepare).
#[derive(Clone)]
pub struct Seen {
    /// Run record and run report; `None` if the resource has no run record.
    pub record: Option<RecordSeen>,
    /// Pin; `None` if its Secret does not exist.
    pub pin: Option<Pin>,
    /// Version of the pin, for compare-and-swap; `None` without a pin.
    pub pin_version: Option<ObjectVersion>,
    /// Run record of an earlier resource of the same name. Set only if this resource has no run record.
    pub left_behind: Option<LeftBehind>,
    /// Whether this resource is a copy of an existing resource: this resource has no run record, and annotation [`KEPT`](alustan_api::KEPT)
    /// contains the uid of the existing resource.
    pub is_copy: bool,
    /// Set for a deleted resource that has neither a readable run record nor a readable pin, see [`NothingLeft`]. The operator has read the
    /// missing Secrets from the API server, because the watch cache may be stale.
    pub nothing_left: Option<NothingLeft>,
    /// Time at which this operator started to lead.
    pub leading_since: Timestamp,
    /// Uid of the namespace of the resource. Empty until the API server has returned the uid.
    pub namespace_uid: String,
    /// Failure of an invalid spec: a field that this version of the operator cannot read, an invalid URL or image name, or a reference to
    /// another resource that is not allowed.
    pub invalid: Option<Failure>,
    /// Allow lists in ConfigMap `alustan-allowed`.
    pub allowed: Arc<Allowed>,
    /// `ServiceAccounts` that the spec names, by name.
    pub accounts: BTreeMap<String, AccountSeen>,
    /// Failure if the Terraform state belongs to another resource (rule 11).
    pub conflict: Option<Failure>,
    /// Values of the Secrets and ConfigMaps that the spec names.
    pub inputs: Result<InputsSeen, Box<Incomplete>>,
    /// Value sources (`spec.variablesFrom`), dependencies, dependents and tests (`waitFor`, `destroyWaitFor`, `healthChecks`).
    pub stack: StackSeen,
    /// The Job of the current run.
    pub job: Option<JobSeen>,
    /// Why the API server refused the Job of the current run: a quota, a policy, or an existing Job of the same name.
    pub refused: Option<Waiting>,
    /// Jobs of the current and earlier runs of this resource, by run number.
    pub jobs: BTreeMap<i64, OwnJob>,
    /// Build Secrets of this resource.
    pub build_secrets: Vec<BuildSecretSeen>,
    /// The `PersistentVolumeClaim` of the cache volume.
    pub cache: CacheSeen,
    /// The shared `PersistentVolumeClaim` that the resource selects as cache volume. [`SharedClaimSeen::Absent`] if it selects none.
    pub shared_claim: SharedClaimSeen,
    /// Names of the shared `PersistentVolumeClaim`s of the resources of the namespace. Observed only for a resource with pod options, which
    /// may not mount them.
    pub shared_claims: BTreeSet<String>,
    /// Terraform state that no run of the resource wrote, see [`ForeignState`].
    pub foreign_state: ForeignState,
    /// Notifications in the run record. Includes notifications that became due or were delivered after the operator last wrote the record.
    pub notices: Notices,
    /// Events for which the operator sends notifications for every resource, in addition to the events in `spec.notifications` of a
    /// resource.
    pub notified: BTreeSet<NotificationEvent>,
    /// Owners of the outputs Secret and ConfigMap. [`Ownership::Foreign`] occurs only while the operator has outputs to publish. At other
    /// times, an object without the labels of this resource is observed as [`Ownership::Absent`].
    pub outputs: OutputsSeen,
}

impl Seen {
    /// Returns the values of the Secrets and ConfigMaps that exist, even if the spec also names missing ones.
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
    /// The ServiceAccount does not exist.
    Absent,
    /// The ServiceAccount exists without annotation `alustan.io/allow-runs: "true"`.
    Closed,
    /// The ServiceAccount has annotation `alustan.io/allow-runs: "true"`.
    Open,
}

/// An existing Job of the current or an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnJob {
    /// Name of the Job.
    pub name: String,
    /// Uid of the Job.
    pub uid: String,
    /// Whether the Job has condition `Complete` or `Failed`, or its engine container has terminated.
    pub finished: bool,
    /// Whether the engine container has terminated, but another container, such as an injected sidecar, still runs.
    pub lingers: bool,
    /// Whether the Job is beyond the total limit of finished run Jobs
    /// ([`JobRetention::is_marked`](crate::job_retention::JobRetention::is_marked)).
    pub is_beyond_limit: bool,
}

/// A build Secret: credentials for the pod of a build in another namespace, or a token of a GitHub App for the pod of a build or run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildSecretSeen {
    /// Namespace of the build or run.
    pub namespace: String,
    /// Name of the Secret, equal to the name of the Job of the build or run.
    pub name: String,
    /// Uid of the Secret.
    pub uid: String,
    /// Whether the build or run has ended, or its Job does not exist. The operator then deletes the Secret.
    pub build_ended: bool,
}

/// Phase of the `PersistentVolumeClaim` of the cache volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSeen {
    /// The `PersistentVolumeClaim` does not exist.
    Absent,
    /// The `PersistentVolumeClaim` has no volume yet.
    Pending,
    /// The `PersistentVolumeClaim` is bound to its volume.
    Bound,
    /// The volume of the `PersistentVolumeClaim` is lost.
    Lost,
}

/// A shared `PersistentVolumeClaim` that a resource selects as cache volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SharedClaimSeen {
    /// The claim lacks annotation [`ALLOW_CACHE`](alustan_api::labels::ALLOW_CACHE), and is not the default of the operator.
    NotAllowed,
    /// The claim does not exist.
    #[default]
    Absent,
    /// The claim is being deleted. Kubernetes keeps it while a pod refers to it.
    Terminating {
        /// Whether finished Jobs of the operator refer to it.
        has_finished_users: bool,
    },
    /// The claim is the cache volume of the resource with this name.
    Owned(String),
    /// The volume of the claim is lost.
    Lost,
    /// The claim has no volume yet. It may get one when a pod uses it.
    Pending {
        /// Uid of the claim.
        uid: String,
    },
    /// The claim is bound to its volume.
    Bound {
        /// Uid of the claim.
        uid: String,
    },
}

impl SharedClaimSeen {
    /// Returns the uid of a claim that pods can mount, now or as soon as it has a volume.
    pub fn usable_uid(&self) -> Option<&str> {
        match self {
            Self::Bound { uid } | Self::Pending { uid } => Some(uid),
            Self::Absent
            | Self::NotAllowed
            | Self::Terminating { .. }
            | Self::Owned(_)
            | Self::Lost => None,
        }
    }
}

/// Terraform state that no run of a resource wrote. Observed only for a deleted resource whose runs have not applied anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignState {
    /// Whether the Secrets of the managed state contain a state. The resource adopted this state, or a user pushed it.
    pub secrets: bool,
    /// Whether the `PersistentVolumeClaim` of the cache volume is older than the resource. Then the resource has adopted the volume and a
    /// state that may be on it.
    pub claim: bool,
}

/// Set for a deleted resource without run record and pin. If the deletion keeps all managed objects (annotation `alustan.io/abandon` or
/// `deletionPolicy: Orphan`), an unreadable run record or pin is treated as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingLeft {
    /// Whether the namespace is terminating, so that no object can be created in it.
    pub namespace_terminating: bool,
    /// Whether the run record or the pin exists but is unreadable.
    pub unreadable: bool,
}

/// Run record of an earlier resource of the same name, for example after a restore from a backup.
#[derive(Clone, Debug)]
pub struct LeftBehind {
    /// Uid of the earlier resource.
    pub uid: String,
    /// `resourceVersion` of the Secret with the record.
    pub version: String,
    /// The run record; `None` if this version of the operator cannot read the record or its history.
    pub record: Option<RunRecord>,
    /// History of the earlier resource.
    pub history: History,
    /// Progress that the last run of the earlier resource reported, unvalidated.
    pub progress: ReportedProgress,
    /// Uid of the resource to which a user wants to restore the earlier resource: annotation
    /// [`RESTORE_TO`](alustan_api::labels::RESTORE_TO) of the run record.
    pub restore_to: Option<String>,
    /// Name of the earlier resource, for messages; `None` if the earlier resource no longer exists.
    pub owner: Option<String>,
    /// Names of the pods of the earlier resource that have not terminated.
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
    /// The record, merged with the validated progress of the run ([`crate::model::progress::merge_progress`]).
    pub record: RunRecord,
    /// Inputs of the current run; removed when the run is recorded in the history.
    pub inputs: Option<RunInputs>,
    /// Report of the current run, unvalidated; removed when the run is recorded in the history.
    pub report: Option<RunReport>,
    /// Outputs of the current run, in the run report.
    pub outputs: Option<Outputs>,
    /// Details of the current run, unvalidated; removed when the run is recorded in the history.
    pub details: Option<RunDetails>,
    /// Whether the report Secret holds an unsaved state.
    pub unsaved: bool,
    /// History of earlier runs.
    pub history: History,
}

/// Inputs of a spec that names a missing object, or a missing key of an object.
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
    /// Texts of the scripts in `spec.scripts`.
    pub scripts: ScriptTexts,
    /// Data of `spec.backend.secretRef`.
    pub backend: BTreeMap<String, String>,
    /// Data of the Secrets in `spec.runner.envFromSecrets`, by Secret. The config hash and the pin include the data. The run pod gets the
    /// data from the Secrets, with `envFrom`.
    pub runner: BTreeMap<String, BTreeMap<String, String>>,
    /// Names of deleted Secrets in `spec.runner.envFromSecrets`. Instead of these Secrets, destroy uses their data in the pin.
    pub gone: BTreeSet<String>,
    /// Names of environment variables of runs from Secrets in pod options. The runner masks their values.
    pub pod_secret_variables: BTreeSet<String>,
    /// Data key of the docker configuration in the Secret of `containerRegistry.secretRef`.
    pub registry_key: Option<String>,
    /// Docker configuration with the registry credentials. The operator copies it to the pin and to build Secrets. If it changes, the
    /// operator counts the failures of builds from zero.
    pub docker_config: Option<String>,
    /// Docker configuration from which the operator derives a pull secret. Set if the kubelet or kaniko cannot read the format of the
    /// Secret in `containerRegistry.secretRef`, or if that Secret is missing during a destroy.
    pub pull_config: Option<String>,
    /// Git credentials by file name; set only if images are built in another namespace.
    pub git: BTreeMap<String, Vec<u8>>,
    /// Tokens of `spec.terraformRegistries`, by their key in a build Secret. If a token changes, the operator counts the failures of builds
    /// from zero.
    pub registry_tokens: BTreeMap<String, Vec<u8>>,
}

/// Token of an installation of a GitHub App (`gitRepo.githubApp`). Does not implement `Debug`, so that it cannot be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct GitToken(String);

impl GitToken {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// Returns the token, for the code that uses it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// A revision, and the context of the module at this revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSeen {
    /// Commit id; for a source other than a git repository, `sha256:` and a digest.
    pub revision: String,
    /// Digest of the context.
    pub context: String,
    /// Digest of the OCI artifact that contains the context.
    pub artifact: String,
    /// Path of the module in the context; empty for its root.
    pub path: String,
    /// Type of the `backend` block of the module.
    pub backend: Option<String>,
    /// Committer date of the revision; 1970 for a source other than a git repository.
    pub committed_at: Timestamp,
    /// Subject and author of the revision. `None` for a source other than a git repository.
    pub commit: Option<Commit>,
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
    /// Uid of the resource that started the build.
    pub started_by: String,
    /// Digest of the options of the build pod; empty without options.
    pub pod_digest: String,
    /// Whether the Job has a pod.
    pub has_pod: bool,
    /// Time at which the build pod was bound to a node; `None` if it is not bound.
    pub scheduled_at: Option<Timestamp>,
    /// Whether the build Secret of this Job exists.
    pub has_build_secret: bool,
    /// Progress of the build.
    pub state: BuildState,
}

/// Progress of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildState {
    /// The build is active. Contains the reason if the build pod cannot start.
    Active(Option<Waiting>),
    /// The builder exited with code 0 at this time.
    Done(Timestamp),
    /// The build failed at this time.
    Failed(Failure, Timestamp),
}

/// The Job of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSeen {
    /// Uid of the Job; empty if the Job is deleted and only its pod exists.
    pub uid: String,
    /// Whether the Job has condition `Complete` or `Failed`, its engine container has terminated, or the Job is deleted.
    pub finished: bool,
    /// Whether the Job has a pod.
    pub has_pod: bool,
    /// Time at which the pod of the Job was bound to a node; `None` if it is not bound.
    pub scheduled_at: Option<Timestamp>,
    /// Whether the engine container of a pod of the Job may still run.
    pub pods_alive: bool,
    /// Why the pod of the Job cannot start.
    pub waiting: Option<Waiting>,
    /// How the pod of the Job terminated, if known: `OOMKilled`, `Evicted: …`.
    pub ended: Option<String>,
}

/// Why a pod does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Text of a [`Reason`](alustan_api::Reason), or a reason that Kubernetes reports, for example `CreateContainerConfigError`.
    pub reason: String,
    /// Why the pod does not start, and what a user can do about it, if known.
    pub message: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

/// For the outputs Secret and the ConfigMap that `spec.outputs` names: whether the object exists and belongs to this resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputsSeen {
    /// The outputs Secret.
    pub secret: Ownership,
    /// The ConfigMap with outputs; [`Ownership::Absent`] if `spec.outputs` names no ConfigMap.
    pub config_map: Ownership,
}

/// Whether an object exists and to which resource it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The object does not exist.
    Absent,
    /// The object has the labels of this resource.
    Ours,
    /// The object exists without the labels of this resource.
    Foreign,
}

/// Progress entry of a report Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReportedProgress {
    /// The report Secret does not exist.
    #[default]
    Absent,
    /// The progress entry is missing or cannot be parsed.
    Unreadable,
    /// The progress entry, unvalidated.
    Progress(Box<RunProgress>),
}
