//! The input of one reconciliation, and the target that it compares with the last apply.

use alustan_api::Terraform;
use alustan_api::run::{History, PinnedImage, RunInputs, RunRecord};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::model::config_hash::Config;
use crate::model::image::ImagePlan;
use crate::model::summary::Summary;
use crate::observed::{OutputsSeen, RecordSeen, Seen, SourceSeen};
use crate::queue::Class;
use crate::settings::Settings;
use crate::step::Step;

/// How often a resource looks whether what stands against it still does, where nobody would tell it: its
/// state belongs to another, an account is not for its runs.
pub(crate) const CONFLICT: SignedDuration = SignedDuration::from_mins(1);

/// One look at one resource.
pub(crate) struct ReconcileCase<'a> {
    pub(crate) tf: &'a Terraform,
    pub(crate) seen: &'a Seen,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Timestamp,
    pub(crate) record: &'a RecordSeen,
    /// The record and the memory as they are once `steps` are done.
    pub(crate) current: RunRecord,
    pub(crate) history: History,
    pub(crate) outputs: OutputsSeen,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn has_finalizer(tf: &Terraform) -> bool {
    tf.finalizers()
        .iter()
        .any(|finalizer| finalizer == alustan_api::FINALIZER)
}

/// What is to be applied.
pub(crate) struct Target {
    pub(crate) source: SourceSeen,
    /// In which image, or why nobody can tell.
    pub(crate) runner: Result<Runner, Summary>,
    /// Digest of all that is not found elsewhere, see [`Config::own`].
    pub(crate) own: String,
    /// With what, or what is missing of that. The image can be built all the same.
    pub(crate) wanted: Result<Wanted, Summary>,
}

/// The image in which it is applied.
#[derive(Clone)]
pub(crate) struct Runner {
    pub(crate) base: PinnedImage,
    pub(crate) plan: ImagePlan,
}

/// With what it is applied.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) inputs: RunInputs,
    pub(crate) config: Config,
}

/// What waits for an image.
#[derive(Clone, Copy)]
pub(crate) struct Waits {
    /// Its place in the queue.
    pub(crate) class: Class,
    /// Whether nothing is said of it, since what it is for is applied.
    pub(crate) quietly: bool,
}
