//! What `decide` asks for. [`Step`] is the whole write surface of the operator.

use alustan_api::TerraformStatus;
use alustan_api::labels::Component;
use alustan_api::run::{History, RunInputs, RunProgress, RunRecord};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolumeClaim, Secret, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::jiff::Timestamp;

use crate::observed::LentSeen;
use crate::queue::Class;

/// One write. Each can be done again without harm.
#[derive(Clone)]
pub enum Step {
    /// Keep the resource until it is destroyed.
    AddFinalizer,
    /// Create the run record with a new key.
    CreateRecord(Box<Secret>),
    /// Bind the objects of an earlier resource of the same name to this one.
    TakeOver(Box<TakeOver>),
    /// Swap the record; nothing after this step happens when somebody else was faster.
    SwapRecord(Box<Swap>),
    /// Swap the progress in the report, and remove report and outputs; nothing after this step happens when
    /// somebody else, as the run, was faster.
    SwapReport(Box<RunProgress>),
    /// Apply an object.
    Ensure(Box<Object>),
    /// Push the context to the registry; the answer wakes the resource.
    PushContext,
    /// Create a Job; one that is there already is the same one.
    CreateJob(Box<Job>),
    /// Delete a Job and its pods, unless it is another one by now.
    DeleteJob {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// `CreateBuildSecret` this Secret to the build Job of the same name, which becomes its owner.
    CreateBuildSecret(Box<Secret>),
    /// Delete a Secret that was lent, unless it is another one by now.
    DeleteBuildSecret(Box<LentSeen>),
    /// Delete an object with outputs that are handed on elsewhere by now, or no longer.
    DeleteOutputs(OutputsObject),
    /// Delete the claim of the cache volume, which lost its volume.
    DeleteClaim,
    /// Delete all objects of the resource but the components `kept`, which are labelled as orphaned: its builds in another namespace too,
    /// and the mark of its namespace, if nothing else that was applied is in there.
    CleanUp {
        /// What may hold the only copy of a state, or the key that opens it.
        kept: Vec<Component>,
    },
    /// Let the resource go.
    RemoveFinalizer,
}

/// An object with outputs, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputsObject {
    /// The Secret.
    Secret(String),
    /// The `ConfigMap`.
    ConfigMap(String),
}

impl OutputsObject {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Secret(name) | Self::ConfigMap(name) => name,
        }
    }
}

/// Defines the kinds of steps, and the list of all of them.
macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// A [`Step`] without what it carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is a variant of Step, which says what it is")]
        pub enum StepKind {
            $($kind),*
        }

        impl StepKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

kinds!(
    AddFinalizer,
    CreateRecord,
    TakeOver,
    SwapRecord,
    SwapReport,
    Ensure,
    PushContext,
    CreateJob,
    DeleteJob,
    CreateBuildSecret,
    DeleteBuildSecret,
    DeleteOutputs,
    DeleteClaim,
    CleanUp,
    RemoveFinalizer,
);

impl Step {
    /// Which one it is.
    pub fn kind(&self) -> StepKind {
        match self {
            Self::AddFinalizer => StepKind::AddFinalizer,
            Self::CreateRecord(_) => StepKind::CreateRecord,
            Self::TakeOver(_) => StepKind::TakeOver,
            Self::SwapRecord(_) => StepKind::SwapRecord,
            Self::SwapReport(_) => StepKind::SwapReport,
            Self::Ensure(_) => StepKind::Ensure,
            Self::PushContext => StepKind::PushContext,
            Self::CreateJob(_) => StepKind::CreateJob,
            Self::DeleteJob { .. } => StepKind::DeleteJob,
            Self::CreateBuildSecret(_) => StepKind::CreateBuildSecret,
            Self::DeleteBuildSecret(_) => StepKind::DeleteBuildSecret,
            Self::DeleteOutputs(_) => StepKind::DeleteOutputs,
            Self::DeleteClaim => StepKind::DeleteClaim,
            Self::CleanUp { .. } => StepKind::CleanUp,
            Self::RemoveFinalizer => StepKind::RemoveFinalizer,
        }
    }
}

/// The objects of an earlier resource of the same name: state, volume, outputs and report get the uid of this resource. What is derived
/// again (accounts, roles, pin, plan, Jobs) is deleted. The run record comes last, by compare-and-swap.
#[derive(Clone, Debug)]
pub struct TakeOver {
    /// The uid of the earlier resource.
    pub uid: String,
    /// `resourceVersion` of its run record.
    pub version: String,
    /// The record of this resource.
    pub record: RunRecord,
    /// The history of this resource.
    pub history: History,
}

/// A compare-and-swap of the run record: it fails when the record is no longer the one that was
/// seen (or that the previous swap of the same pass wrote). `None` leaves a key as it is.
#[derive(Clone)]
pub struct Swap {
    /// The new record.
    pub record: RunRecord,
    /// The new memory.
    pub history: Option<History>,
    /// What becomes of the inputs.
    pub inputs: Keep<RunInputs>,
}

impl Swap {
    /// A swap of `record` for itself: what comes after it is not done for an old record.
    pub fn unchanged(record: &RunRecord) -> Self {
        Self {
            record: record.clone(),
            history: None,
            inputs: Keep::Same,
        }
    }
}

/// What becomes of a key.
#[derive(Clone)]
pub enum Keep<T> {
    /// It stays as it is.
    Same,
    /// It is replaced.
    Set(Box<T>),
    /// It is removed.
    Drop,
}

/// An object that is applied.
#[derive(Clone, Debug)]
pub enum Object {
    /// A Secret.
    Secret(Secret),
    /// A `ConfigMap`.
    ConfigMap(ConfigMap),
    /// The cache volume's claim.
    Claim(Box<PersistentVolumeClaim>),
    /// The runner's account.
    Account(ServiceAccount),
    /// What the runner may do.
    Role(Role),
    /// The binding of the two.
    Binding(RoleBinding),
    /// What keeps its pod from being evicted.
    Budget(PodDisruptionBudget),
    /// The mark of the namespace; nothing else of it is touched.
    Namespace(Namespace),
}

/// What is to be done, and what is said about it.
#[derive(Clone)]
pub struct Decision {
    /// Writes, in order.
    pub steps: Vec<Step>,
    /// A run that is wanted: done after `steps` once the dispatcher has a slot for it.
    pub start: Option<Start>,
    /// The new status.
    pub status: TerraformStatus,
    /// When to look again, if nothing else happens.
    pub requeue_at: Option<Timestamp>,
}

/// A run that is wanted.
#[derive(Clone)]
pub struct Start {
    /// Its place in the queue.
    pub class: Class,
    /// The writes that start it.
    pub steps: Vec<Step>,
    /// The status once it is started.
    pub status: TerraformStatus,
}
