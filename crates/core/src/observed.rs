//! What `observe` saw: the only input of `decide` besides the resource, the settings and the time.

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

/// The answer to a question that takes a while: to a repository, to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// Asked; no answer yet. The answer wakes the resource.
    Pending,
    /// The answer.
    Known(T),
    /// The last try failed; the next one comes by itself.
    Failed {
        /// Why.
        failure: Failure,
        /// The last good answer.
        last: Option<T>,
        /// When it is asked again.
        retry_at: Timestamp,
    },
}

impl<T> Answer<T> {
    /// The answer, or the last good one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Failed { last, .. } => last.as_ref(),
            Self::Pending => None,
        }
    }
}

/// Everything that was seen of one resource's world.
#[derive(Clone)]
pub struct Seen {
    /// The run record.
    pub record: Option<RecordSeen>,
    /// The pin.
    pub pin: Option<Pin>,
    /// Run record of an earlier resource of the same name, if this resource has none.
    pub left_behind: Option<LeftBehind>,
    /// Whether the resource without a record is a copy of another one that exists: [`KEPT`](alustan_api::KEPT) names that.
    pub is_copy: bool,
    /// Of a deleted resource: the API server itself was asked, and has neither record nor pin.
    pub nothing_left: Option<NothingLeft>,
    /// The uid of the resource's namespace.
    pub namespace_uid: String,
    /// What is wrong with the spec itself, whatever the world is like.
    pub invalid: Option<Failure>,
    /// What resources may use.
    pub allowed: Arc<Allowed>,
    /// The `ServiceAccount`s that the spec names.
    pub accounts: BTreeMap<String, AccountSeen>,
    /// Why its state may not be used: it belongs to another resource.
    pub conflict: Option<Failure>,
    /// Values of the Secrets and `ConfigMap`s that the spec names.
    pub inputs: Result<InputsSeen, Box<Incomplete>>,
    /// What it takes values from, waits for, or stands before.
    pub stack: StackSeen,
    /// The commit and its context. For a suspended resource, this and the answers of the registry are [`Answer::Pending`]: neither
    /// repository nor registry is asked.
    pub source: Answer<SourceSeen>,
    /// The base image, resolved.
    pub base: Answer<PinnedImage>,
    /// Digest of the runner image, or that the registry has none, for [`crate::model::image::plan`].
    pub image: Answer<Option<String>>,
    /// The context in the registry, by digest; `None` when nobody asked for it yet.
    pub artifact: Option<Answer<String>>,
    /// The build of the runner image.
    pub build: Option<BuildSeen>,
    /// The Job of the current run.
    pub job: Option<JobSeen>,
    /// Denial of that Job: by a quota, a policy or an existing Job of that name.
    pub refused: Option<Waiting>,
    /// Runner Jobs of this resource, by run number.
    pub jobs: BTreeMap<i64, OwnJob>,
    /// What is lent to builds of this resource in another namespace.
    pub lent: Vec<LentSeen>,
    /// The claim of the cache volume.
    pub cache: CacheSeen,
    /// State that no run of the resource wrote.
    pub foreign_state: ForeignState,
    /// What others are told: what the record has of it, and what came up or arrived since.
    pub notices: Notices,
    /// The events that the operator tells of every resource, whatever it says itself.
    pub notified: BTreeSet<NotificationEvent>,
    /// Whose the objects with the outputs are. Somebody else's is told from none only while outputs
    /// wait to be handed on.
    pub outputs: OutputsSeen,
}

impl Seen {
    /// What is there of that which the spec names.
    pub fn found(&self) -> &InputsSeen {
        match &self.inputs {
            Ok(inputs) => inputs,
            Err(incomplete) => &incomplete.found,
        }
    }
}

/// A `ServiceAccount` that a spec names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountSeen {
    /// There is none.
    Absent,
    /// Nobody has said that resources may have it.
    Closed,
    /// Its owner lets resources have it.
    Open,
}

/// A runner Job that was made, perhaps long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnJob {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether it has condition `Complete` or `Failed`, or its engine container has terminated.
    pub finished: bool,
    /// Whether its engine container has terminated, but another container, such as an injected sidecar, still runs.
    pub lingers: bool,
}

/// A Secret that is lent to a build in another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentSeen {
    /// That namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether the build has ended or is gone.
    pub over: bool,
}

/// The claim of the cache volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSeen {
    /// There is none.
    Absent,
    /// It has no volume yet.
    Pending,
    /// It has its volume.
    Bound,
    /// Its volume is gone.
    Lost,
}

/// State that no run of a resource wrote. Observed of a deleted resource that has not applied anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignState {
    /// Whether the Secrets of the managed state hold a version: adopted, or pushed by a user.
    pub secrets: bool,
    /// Whether the claim of the cache volume is older than the resource: adopted with the state on it.
    pub claim: bool,
}

/// Neither record nor pin exist, or they cannot be read and the resource is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingLeft {
    /// Whether they went with their namespace, in which nothing can be made any more.
    pub namespace_terminating: bool,
    /// Whether record or pin exist and cannot be read.
    pub unreadable: bool,
}

/// The run record of an earlier resource of the same name, as after a restore from a backup.
#[derive(Clone, Debug)]
pub struct LeftBehind {
    /// The uid of that resource.
    pub uid: String,
    /// `resourceVersion` of the Secret with the record.
    pub version: String,
    /// The record; `None` if this version cannot read the record or its history.
    pub record: Option<RunRecord>,
    /// The history of that resource.
    pub history: History,
    /// The progress of its last run.
    pub told: Told,
    /// The value of [`labels::RESTORE_TO`](alustan_api::labels::RESTORE_TO).
    pub restore_to: Option<String>,
    /// The name, for messages, of the resource with that uid, if it still exists.
    pub owner: Option<String>,
    /// Pods of its runs that have not ended.
    pub pods: Vec<String>,
}

/// The run record with its version.
#[derive(Clone)]
pub struct RecordSeen {
    /// `resourceVersion` for compare-and-swap.
    pub version: String,
    /// The same of the report; `None` where there is none yet.
    pub report_version: Option<String>,
    /// The resource's own key.
    pub key: Vec<u8>,
    /// The record, with what the run says of itself ([`crate::model::progress::believed`]).
    pub record: RunRecord,
    /// The inputs of the current run, until it is recorded.
    pub inputs: Option<RunInputs>,
    /// The report of the current run as the run wrote it, until it is recorded.
    pub report: Option<RunReport>,
    /// The outputs that came with it.
    pub outputs: Option<Outputs>,
    /// Whether the report holds a state that a run could not save.
    pub unsaved: bool,
    /// The controller's memory.
    pub history: History,
}

/// Something that the spec names is not there.
#[derive(Clone)]
pub struct Incomplete {
    /// The first thing that is missing.
    pub failure: Failure,
    /// What is there.
    pub found: InputsSeen,
}

/// Values of what the spec names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct InputsSeen {
    /// Texts of the scripts.
    pub scripts: ScriptTexts,
    /// Data of `spec.backend.secretRef`.
    pub backend: BTreeMap<String, String>,
    /// Data of `spec.runner.envFromSecrets`, by Secret; only their digest is used.
    pub runner: BTreeMap<String, BTreeMap<String, String>>,
    /// Those of them that are gone: of a deleted resource, their values are the pin's.
    pub gone: BTreeSet<String>,
    /// The key of the registry's Secret that holds the docker configuration.
    pub registry_key: Option<String>,
    /// The docker configuration: only its digest is used, unless it is lent to a build elsewhere.
    pub docker_config: Option<String>,
    /// The docker configuration, where the registry's Secret cannot be a pull secret itself.
    pub pull_config: Option<String>,
    /// What the repository asks for, by the name of the file that the build reads: lent to builds
    /// elsewhere, and else not used.
    pub git: BTreeMap<String, Vec<u8>>,
}

/// The commit and what the module needs at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSeen {
    /// The commit's id.
    pub revision: String,
    /// The context's digest.
    pub context: String,
    /// The digest that the context has as an artifact in a registry.
    pub artifact: String,
    /// Path of the module in the context; empty for its root.
    pub path: String,
    /// The type of the module's own `backend` block.
    pub backend: Option<String>,
    /// Committer date of the revision.
    pub committed_at: Timestamp,
}

/// The build of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildSeen {
    /// The Job's name.
    pub job: String,
    /// The Job's uid.
    pub uid: String,
    /// When the Job was made.
    pub created_at: Timestamp,
    /// Whether there is a pod of it.
    pub has_pod: bool,
    /// When its pod was bound to a node.
    pub scheduled_at: Option<Timestamp>,
    /// Whether a Secret is lent to it.
    pub lent: bool,
    /// How far it is.
    pub state: BuildState,
}

/// How far a build is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildState {
    /// Going on; what it waits for, if it is stuck.
    Active(Option<Waiting>),
    /// The builder ended with exit code 0 at this moment.
    Done(Timestamp),
    /// It failed at this moment.
    Failed(Failure, Timestamp),
}

/// A runner Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSeen {
    /// Its uid.
    pub uid: String,
    /// Whether it has condition `Complete` or `Failed`, or its engine container has terminated.
    pub finished: bool,
    /// Whether there is a pod of it.
    pub has_pod: bool,
    /// When its pod was bound to a node.
    pub scheduled_at: Option<Timestamp>,
    /// Whether the engine container of a pod of it may still run.
    pub pods_alive: bool,
    /// What its pod waits for, if it is stuck.
    pub waiting: Option<Waiting>,
    /// How its pod ended, where it says so: `OOMKilled`, `Evicted: …`.
    pub ended: Option<String>,
}

/// What keeps a pod from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// In one word, mostly Kubernetes' own: [`IMAGE_PULL`], `Unschedulable`, …
    pub reason: String,
    /// For people.
    pub message: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

/// The reason of a pod that was scheduled and does not start, as where its volume cannot be attached.
pub const NOT_STARTED: &str = "PodNotStarted";

/// The reason of a pod whose image cannot be pulled.
pub const IMAGE_PULL: &str = "ImagePullBackOff";
/// The reason of a pod for which there is no node.
pub const UNSCHEDULABLE: &str = "Unschedulable";

/// The reason of an image that is not in the registry, although it was built.
pub const IMAGE_MISSING: &str = "ImageMissing";

/// Whose the objects with the outputs are, under the names that they should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputsSeen {
    /// The Secret.
    pub secret: Whose,
    /// The `ConfigMap`; absent where none is wanted.
    pub config_map: Whose,
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// There is none.
    Absent,
    /// It carries our labels for this resource.
    Ours,
    /// Somebody else made it.
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
