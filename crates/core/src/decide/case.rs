//! Input of one reconcile, and the configuration that `decide` compares with the last apply.

use alustan_api::Terraform;
use alustan_api::run::{History, PinnedImage, RunInputs, RunRecord};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use crate::model::config_hash::Config;
use crate::model::image::ImagePlan;
use crate::model::summary::Summary;
use crate::observed::{OutputsSeen, RecordSeen, Seen, SourceSeen};
use crate::queue::Class;
use crate::settings::Settings;
use crate::step::Step;

/// Requeue interval of a resource if the change that it waits for does not requeue it. Examples: its state belongs to another resource, or
/// its ServiceAccount does not allow runs.
pub(super) const CONFLICT: SignedDuration = SignedDuration::from_mins(1);

/// Input of a reconcile of a resource, and the steps and records that the reconcile has computed so far.
pub(super) struct ReconcileCase<'a> {
    pub(super) tf: &'a Terraform,
    pub(super) seen: &'a Seen,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    pub(super) record: &'a RecordSeen,
    /// Run record after the execution of `steps`. Field `history` is the history after the execution of `steps`.
    pub(super) current: RunRecord,
    pub(super) history: History,
    pub(super) outputs: OutputsSeen,
    pub(super) steps: Vec<Step>,
}

pub(super) fn has_finalizer(tf: &Terraform) -> bool {
    tf.finalizers()
        .iter()
        .any(|finalizer| finalizer == alustan_api::FINALIZER)
}

/// The configuration to apply.
pub(super) struct Target {
    pub(super) source: SourceSeen,
    /// Runner image, or the summary that reports why the image is unknown.
    pub(super) runner: Result<Runner, Summary>,
    /// Digest of the configuration without the values of `spec.variablesFrom`, see [`Config::own_hash`].
    pub(super) own_hash: String,
    /// Inputs of the run, or the summary of the missing input. The image can be built while an input is missing.
    pub(super) wanted: Result<RunConfig, Summary>,
}

/// Base image, and the inputs of the build of the runner image.
#[derive(Clone)]
pub(super) struct Runner {
    pub(super) base: PinnedImage,
    pub(super) plan: ImagePlan,
}

/// Inputs of the run and their digests.
#[derive(Clone)]
pub(super) struct RunConfig {
    pub(super) inputs: RunInputs,
    pub(super) config: Config,
}

/// Priority in the queue, and effect on condition `Ready`, of a run that waits for its image.
#[derive(Clone, Copy)]
pub(super) struct ImageWait {
    /// Priority of the waiting run in the queue: change, plan or drift.
    pub(super) class: Class,
    /// Whether the status and reason of condition `Ready` stay unchanged, because the configuration is already applied.
    pub(super) keeps_ready: bool,
}
