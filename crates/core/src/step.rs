//! Result of `decide`: a [`Decision`] with the [`Step`]s, which are all writes of a reconcile except status and events.

use alustan_api::labels::Component;
use alustan_api::run::{History, RunInputs, RunProgress, RunRecord};
use alustan_api::{TerraformRun, TerraformStatus};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolumeClaim, Secret, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::jiff::Timestamp;

use crate::drift_schedule::DueCheck;
use crate::observed::BuildSecretSeen;
use crate::queue::Class;

/// One idempotent write.
#[derive(Clone)]
pub enum Step {
    /// Add the finalizer, and set annotation [`KEPT`](alustan_api::KEPT) to the uid of the resource. The finalizer keeps a deleted resource
    /// until destroy has succeeded.
    AddFinalizer,
    /// Create the run record with a new random HMAC key.
    CreateRecord(Box<Secret>),
    /// Assign the objects of an earlier resource of the same name to this resource, for a restore from a backup.
    TakeOver(Box<TakeOver>),
    /// Replace the run record by compare-and-swap. A conflict cancels the remaining steps.
    SwapRecord(Box<Swap>),
    /// Check that no other process has replaced the observed run record; otherwise cancel the remaining steps. The swap contains the
    /// observed record, so a successful swap changes nothing.
    CheckRecord(Box<Swap>),
    /// Replace the progress entry of the report Secret by compare-and-swap, and remove the report entry and the outputs entry. A conflict,
    /// for example with a write of the runner, cancels the remaining steps.
    SwapReport(Box<RunProgress>),
    /// Apply an object (server-side apply).
    Ensure(Box<Object>),
    /// Push the context to the registry. The result requeues the resource.
    PushContext,
    /// Start the removal of unused images and contexts from the registry repository (`spec.containerRegistry.prune`). It is due once a day,
    /// and once after each new image.
    PruneImages,
    /// Create a Job. The step also succeeds if a Job with the same name and inputs exists.
    CreateJob(Box<Job>),
    /// Delete a Job and its pods; uid is a precondition.
    DeleteJob {
        /// Namespace of the Job.
        namespace: String,
        /// Name of the Job.
        name: String,
        /// Uid of the Job.
        uid: String,
    },
    /// Create a build Secret. The Job of the same name, a build or a run, becomes the owner of the Secret.
    CreateBuildSecret(Box<Secret>),
    /// Delete a build Secret; uid is a precondition.
    DeleteBuildSecret(Box<BuildSecretSeen>),
    /// Delete a Secret or ConfigMap with outputs that `spec.outputs` no longer names.
    DeleteOutputs(OutputsObject),
    /// Write the record of a finished run (server-side apply). A refused write, for example because of a quota, is only logged.
    RecordRun(Box<TerraformRun>),
    /// Delete the `TerraformRun` of this name.
    DeleteRun(String),
    /// Delete the `PersistentVolumeClaim` of the cache volume, because its volume is lost or pods do not start with it.
    DeleteClaim,
    /// Create a Job that empties the directory of the resource in a shared cache volume. A Job that the API server refuses, for example
    /// because of a quota, is skipped: the directory contains reproducible data.
    EmptyCache(Box<Job>),
    /// Delete the finished Jobs that use the shared `PersistentVolumeClaim` of this name, which is being deleted. Kubernetes keeps the claim
    /// while a pod refers to it.
    ReleaseClaim(String),
    /// Delete all objects of the resource, including builds in another namespace. Remove label `alustan.io/holds-state` from the namespace,
    /// if no other resource has state in the namespace. Objects of the components in `kept` are not deleted, but labelled as orphaned.
    CleanUp {
        /// Components whose objects may contain the only copy of a Terraform state, or the encryption key of a state.
        kept: Vec<Component>,
    },
    /// Remove the finalizer.
    RemoveFinalizer,
}

/// An object with outputs, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputsObject {
    /// Name of a Secret.
    Secret(String),
    /// Name of a ConfigMap.
    ConfigMap(String),
}

impl OutputsObject {
    /// Returns the name of the Secret or ConfigMap.
    pub fn name(&self) -> &str {
        match self {
            Self::Secret(name) | Self::ConfigMap(name) => name,
        }
    }
}

/// Defines [`StepKind`] and the list of its variants.
macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// Kind of a [`Step`], without its data.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "see the documentation of the variants of Step")]
        pub enum StepKind {
            $($kind),*
        }

        impl StepKind {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

kinds!(
    AddFinalizer,
    CreateRecord,
    TakeOver,
    SwapRecord,
    CheckRecord,
    SwapReport,
    Ensure,
    PushContext,
    PruneImages,
    CreateJob,
    DeleteJob,
    CreateBuildSecret,
    DeleteBuildSecret,
    DeleteOutputs,
    RecordRun,
    DeleteRun,
    DeleteClaim,
    EmptyCache,
    ReleaseClaim,
    CleanUp,
    RemoveFinalizer,
);

impl Step {
    /// Returns the kind of the step.
    pub fn kind(&self) -> StepKind {
        match self {
            Self::AddFinalizer => StepKind::AddFinalizer,
            Self::CreateRecord(_) => StepKind::CreateRecord,
            Self::TakeOver(_) => StepKind::TakeOver,
            Self::SwapRecord(_) => StepKind::SwapRecord,
            Self::CheckRecord(_) => StepKind::CheckRecord,
            Self::SwapReport(_) => StepKind::SwapReport,
            Self::Ensure(_) => StepKind::Ensure,
            Self::PushContext => StepKind::PushContext,
            Self::PruneImages => StepKind::PruneImages,
            Self::CreateJob(_) => StepKind::CreateJob,
            Self::DeleteJob { .. } => StepKind::DeleteJob,
            Self::CreateBuildSecret(_) => StepKind::CreateBuildSecret,
            Self::DeleteBuildSecret(_) => StepKind::DeleteBuildSecret,
            Self::DeleteOutputs(_) => StepKind::DeleteOutputs,
            Self::RecordRun(_) => StepKind::RecordRun,
            Self::DeleteRun(_) => StepKind::DeleteRun,
            Self::DeleteClaim => StepKind::DeleteClaim,
            Self::EmptyCache(_) => StepKind::EmptyCache,
            Self::ReleaseClaim(_) => StepKind::ReleaseClaim,
            Self::CleanUp { .. } => StepKind::CleanUp,
            Self::RemoveFinalizer => StepKind::RemoveFinalizer,
        }
    }
}

/// Transfer of the objects of an earlier resource of the same name to this resource, for a restore. The uid label of state, cache volume,
/// outputs and report is set to the uid of this resource. Objects that the operator can create again (ServiceAccounts, Roles, pin, plan,
/// Jobs) are deleted. The run record is transferred last, by compare-and-swap.
#[derive(Clone, Debug)]
pub struct TakeOver {
    /// Uid of the earlier resource.
    pub uid: String,
    /// `resourceVersion` of the run record of the earlier resource.
    pub version: String,
    /// Run record of this resource.
    pub record: RunRecord,
    /// History of this resource.
    pub history: History,
}

/// A compare-and-swap of the run record. The first swap of a reconcile fails if the stored record differs from the observed record. A later
/// swap fails if the stored record differs from the record that the previous swap wrote.
#[derive(Clone)]
pub struct Swap {
    /// The new record.
    pub record: RunRecord,
    /// The new history; `None` to keep the current history.
    pub history: Option<History>,
    /// Whether the swap keeps, replaces or removes the inputs of the run.
    pub inputs: Keep<RunInputs>,
}

impl Swap {
    /// Builds a swap that writes `record`, and keeps history and inputs. If the observed record is outdated, the swap fails and the remaining
    /// steps are cancelled. A swap that changes nothing keeps the resource version: it detects earlier writes, and prevents no later ones.
    pub fn unchanged(record: &RunRecord) -> Self {
        Self {
            record: record.clone(),
            history: None,
            inputs: Keep::Same,
        }
    }
}

/// Change of one entry in the data of a Secret.
#[derive(Clone)]
pub enum Keep<T> {
    /// Keep the value.
    Same,
    /// Replace the value.
    Set(Box<T>),
    /// Remove the entry.
    Drop,
}

/// An object for server-side apply.
#[derive(Clone, Debug)]
pub enum Object {
    /// A Secret.
    Secret(Secret),
    /// A ConfigMap.
    ConfigMap(ConfigMap),
    /// The `PersistentVolumeClaim` of the cache volume.
    Claim(Box<PersistentVolumeClaim>),
    /// The ServiceAccount of the runner.
    Account(ServiceAccount),
    /// The Role of the runner.
    Role(Role),
    /// The RoleBinding of the runner.
    Binding(RoleBinding),
    /// The `PodDisruptionBudget` that prevents eviction of a runner pod.
    Budget(PodDisruptionBudget),
    /// The namespace, with label `alustan.io/holds-state` as the only applied field.
    Namespace(Namespace),
}

/// Result of a reconcile: writes, wanted run or build, status and requeue time.
#[derive(Clone)]
pub struct Decision {
    /// Writes, in order.
    pub steps: Vec<Step>,
    /// Wanted run or build. It starts after `steps`, when the dispatcher grants it a slot.
    pub start: Option<Start>,
    /// The new status.
    pub status: TerraformStatus,
    /// Latest time of the next reconcile, if no event causes one earlier.
    pub requeue_at: Option<Timestamp>,
}

/// A run or build that waits for a slot.
#[derive(Clone)]
pub struct Start {
    /// Priority class in the queue.
    pub class: Class,
    /// The drift check that waits; `None` for other runs, and for builds.
    pub check: Option<DueCheck>,
    /// Writes that start the run or build.
    pub steps: Vec<Step>,
    /// Status after the start.
    pub status: TerraformStatus,
}
