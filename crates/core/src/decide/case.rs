//! Input of one reconcile, and what the reconcile has decided so far.

use alustan_api::Terraform;
use alustan_api::report::Failure;
use alustan_api::run::{History, RunRecord};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use crate::model::image::ImageSeen;
use crate::model::pod_options;
use crate::observed::{OutputsSeen, RecordSeen, Seen};
use crate::settings::Settings;
use crate::step::Step;

/// Requeue interval of a resource if the change that it waits for does not requeue it. Examples: its state belongs to another resource, or
/// its ServiceAccount does not allow runs.
pub(super) const RECHECK_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// Input of a reconcile of a resource, and the steps and records that the reconcile has computed so far.
pub(super) struct ReconcileCase<'a> {
    pub(super) tf: &'a Terraform,
    pub(super) seen: &'a Seen,
    pub(super) image: &'a ImageSeen,
    /// Violation of the allow lists that prevents builds and runs.
    pub(super) refusal: Option<&'a Failure>,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    pub(super) record: &'a RecordSeen,
    /// Run record after the execution of `steps`. Field `history` is the history after the execution of `steps`.
    pub(super) current: RunRecord,
    pub(super) history: History,
    pub(super) outputs: OutputsSeen,
    pub(super) steps: Vec<Step>,
}

impl ReconcileCase<'_> {
    /// Returns the digest of the options of the pod of a run. `destroys`: whether the run destroys, or creates a destroy plan.
    pub(super) fn pod_digest(&self, destroys: bool) -> String {
        let attempted = self.current.attempted;
        let pin = self
            .seen
            .pin
            .as_ref()
            .map(|pin| pin.of_what_exists(attempted));
        let options = pod_options::of_run(
            self.tf,
            pin,
            destroys,
            &self.seen.shared_claims,
            self.settings,
        );
        pod_options::digest(&options)
    }
}

pub(super) fn has_finalizer(tf: &Terraform) -> bool {
    tf.finalizers()
        .iter()
        .any(|finalizer| finalizer == alustan_api::FINALIZER)
}
