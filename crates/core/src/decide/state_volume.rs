//! States on the cache volume: the spec configures this location, or a run could not save its state to the backend (rule 2). The content of
//! a cache volume with a state is not reproducible.

use alustan_api::report::{RunReport, RunResult, UnsavedPlace};
use alustan_api::run::{
    BackendInputs, CacheVolume, History, Pin, RunRecord, RunSpec, UnsavedState,
};
use alustan_api::{ABANDON, BackendProvider, Reason, Terraform, labels, names};
use alustan_backends::{address_of, is_on_the_volume};
use kube_core::ResourceExt;

use crate::decide::case::ReconcileCase;
use crate::model::summary::Summary;
use crate::observed::{CacheSeen, Seen, Waiting};

/// Returns the unsaved state after a run with this `report`. `before`: the unsaved state before the run. `has_begun`: whether the run
/// reached phase `Applying`.
pub(super) fn unsaved_after(
    before: Option<UnsavedState>,
    run: &RunSpec,
    report: &RunReport,
    has_begun: bool,
) -> Option<UnsavedState> {
    let unsaved_in = |place| UnsavedState {
        run: report.number,
        place,
    };
    let has_result = !matches!(report.result, RunResult::Failed | RunResult::Cancelled);
    let is_still_unsaved = |unsaved: &UnsavedState| match unsaved.place {
        UnsavedPlace::Report => !report.recovered,
        UnsavedPlace::CacheVolume => !(report.recovered && run.has_own_volume()),
        UnsavedPlace::Unknown => !(report.recovered && run.has_own_volume() || has_result),
    };
    // A run that cannot reach the API server stores its state on the cache volume, and cannot report that it did so. So the cache volume
    // may hold the state of a run that ended without a report.
    let failure = report.failure.as_ref();
    let reason = failure.and_then(|failure| Reason::from_stored(&failure.reason));
    let is_interrupted = matches!(
        reason,
        Some(Reason::Interrupted | Reason::OutOfMemory | Reason::RunCancelled)
    );
    let may_hold = has_begun && run.has_own_volume() && is_interrupted;
    let reported = report.unsaved.map(unsaved_in);
    reported
        .or_else(|| before.filter(is_still_unsaved))
        .or_else(|| may_hold.then(|| unsaved_in(UnsavedPlace::Unknown)))
}

/// Whether the `PersistentVolumeClaim` of the cache volume exists, and the volume may hold a state that a run could not save.
pub(super) fn may_hold_unsaved(seen: &Seen, history: &History) -> bool {
    let place = history.unsaved.map(|unsaved| unsaved.place);
    let may_hold = matches!(
        place,
        Some(UnsavedPlace::CacheVolume | UnsavedPlace::Unknown)
    );
    seen.cache != CacheSeen::Absent && may_hold
}

/// Whether the `PersistentVolumeClaim` of the cache volume exists, and the volume holds the only copy of a state.
pub(super) fn holds_only_copy(seen: &Seen, history: &History) -> bool {
    let place = history.unsaved.map(|unsaved| unsaved.place);
    seen.cache != CacheSeen::Absent && place == Some(UnsavedPlace::CacheVolume)
}

/// Whether the cache volume holds the state of the last apply, or the only copy of an unsaved state. Pods then wait for the volume, and the
/// operator does not replace it.
pub(super) fn is_irreplaceable(seen: &Seen, history: &History) -> bool {
    holds_state(seen) || holds_only_copy(seen, history)
}

/// Returns whether pods can use the cache volume. A volume with the state of the last apply, or with the only copy of an unsaved state, is
/// always reported as usable, so that pods wait for it. A volume that may hold the unsaved state of an interrupted run is not replaced, but
/// pods start without it.
pub(super) fn usability(seen: &Seen, history: &History) -> CacheVolume {
    if is_irreplaceable(seen, history) {
        return CacheVolume::Usable;
    }
    match history.cache {
        CacheVolume::Unusable if may_hold_unsaved(seen, history) => CacheVolume::Suspect,
        recorded => recorded,
    }
}

/// Whether a run with `inputs` has its state on the cache volume.
pub(super) fn is_used_by(inputs: &BackendInputs) -> bool {
    address_of(inputs).is_some_and(|address| is_on_the_volume(&address))
}

/// Whether the state of the last apply is on the cache volume, according to run record or pin.
pub(super) fn holds_state(seen: &Seen) -> bool {
    let record = seen.record.as_ref().map(|record_seen| &record_seen.record);
    is_reported(record) || is_pinned(record, seen.pin.as_ref())
}

fn is_reported(record: Option<&RunRecord>) -> bool {
    let address = record.and_then(|record| record.state_address.as_deref());
    address.is_some_and(is_on_the_volume)
}

fn is_pinned(record: Option<&RunRecord>, pin: Option<&Pin>) -> bool {
    let attempted = record.map_or(i64::MAX, |record| record.attempted);
    let applied_pin = pin.filter(|_| attempted > 0);
    applied_pin.is_some_and(|pin| is_used_by(&pin.of_what_exists(attempted).inputs.backend))
}

/// Whether the cache volume may hold the state of `tf` and must be kept with the state.
pub(super) fn may_hold_state(tf: &Terraform, seen: &Seen) -> bool {
    let backend = tf.spec.backend.as_ref();
    let provider = backend.and_then(|backend| backend.provider);
    provider == Some(BackendProvider::Local) || holds_state(seen)
}

impl ReconcileCase<'_> {
    /// Returns a message suffix if the pod of `run` waits for a cache volume that holds the state or may hold an unsaved state: which state,
    /// and how to continue. Empty if a run without the volume loses no state.
    pub(super) fn volume_hint(&self, run: &RunSpec, waiting: &Waiting) -> String {
        let waits_for_volume = run.has_own_volume()
            && [Reason::Unschedulable, Reason::PodNotStarted]
                .iter()
                .any(|reason| waiting.reason == *reason);
        if !waits_for_volume {
            return String::new();
        }
        let claim = names::cache(&self.tf.name_any());
        if holds_state(self.seen) {
            return format!(
                "; the state is on PersistentVolumeClaim {claim}, and no run starts without it. If its \
                 volume is lost with a node or a zone, see Lost volume with the state in \
                 docs/operations.md"
            );
        }
        match self.history.unsaved {
            Some(UnsavedState {
                run: number,
                place: UnsavedPlace::CacheVolume,
            }) => format!(
                "; no run starts without PersistentVolumeClaim {claim}, which has the unsaved \
                 state of run {number}. If its volume is permanently lost, the last objects that \
                 run {number} created are missing in the stored state and must be imported. Only \
                 if you accept this loss: kubectl delete persistentvolumeclaim {claim} -n \
                 {namespace}",
                namespace = self.tf.namespace().unwrap_or_default(),
            ),
            Some(UnsavedState {
                run: number,
                place: UnsavedPlace::Unknown,
            }) => format!(
                "; the next run starts without PersistentVolumeClaim {claim}, which may have the \
                 unsaved state of the interrupted run {number}; the PersistentVolumeClaim is kept until a run \
                 succeeds",
            ),
            Some(UnsavedState {
                place: UnsavedPlace::Report,
                ..
            })
            | None => String::new(),
        }
    }

    /// Returns the summary if the cache volume with the state is lost. A run with `backend` would start with an empty state: an apply would
    /// create all objects again, and a destroy would destroy nothing.
    pub(super) fn volume_lost(&self, backend: &BackendInputs) -> Option<Summary> {
        let is_missing = matches!(self.seen.cache, CacheSeen::Absent | CacheSeen::Lost);
        let lost = is_missing && is_used_by(backend) && holds_state(self.seen);
        lost.then(|| {
            let (name, namespace) = (self.tf.name_any(), self.tf.namespace().unwrap_or_default());
            let claim = names::cache(&name);
            let message = format!(
                "the state was on the cache volume, and PersistentVolumeClaim {claim} or its \
                 volume is missing; nothing was changed, and no new volume is created. Restore the \
                 PersistentVolumeClaim, with its labels, from a backup. Only if neither a backup nor a \
                 PersistentVolume of the claim exists (kubectl get persistentvolumes), start with \
                 an empty state (existing objects are kept, and are created a second time): save \
                 the Secrets of the resource (kubectl get secrets -n {namespace} -l {}={name} -o \
                 json >{name}.json), then kubectl annotate tf {name} -n {namespace} \
                 {ABANDON}=true, delete the resource, and create it again",
                labels::NAME
            );
            Summary::stalled(Reason::StateLost, message)
        })
    }
}
