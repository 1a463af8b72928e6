//! A state on the cache volume, by explicit choice (rule 2): that volume holds what cannot be made
//! again.

use alustan_api::report::{Failure, NOT_SAVED, RunReport, RunResult};
use alustan_api::run::{BackendInputs, CacheVolume, History, Pin, RunRecord, RunSpec};
use alustan_api::{ABANDON, BackendProvider, Terraform, labels, names};
use alustan_backends::{address_of, is_on_the_volume};
use kube::ResourceExt;

use crate::decide::Case;
use crate::seen::{CacheSeen, NOT_STARTED, Seen, UNSCHEDULABLE, Waiting};
use crate::status::Situation;

/// Report of the run that could not save its state, if no run had a result since: each run saves that state first.
pub(crate) fn unsaved(history: &History) -> Option<&RunReport> {
    since_result(history, is_unsaved)
}

/// Report of the run that was interrupted or killed, if no run had a result since. Without a connection to the API server, it may have kept
/// its state on the cache volume and reported nothing.
pub(crate) fn interrupted(history: &History) -> Option<&RunReport> {
    since_result(history, |failure| {
        ["Interrupted", "OutOfMemory"].contains(&failure.reason.as_str())
    })
}

/// Report of the newest run with a `wanted` failure after the last run with a result.
fn since_result(history: &History, wanted: fn(&Failure) -> bool) -> Option<&RunReport> {
    let failed =
        |report: &&RunReport| matches!(report.result, RunResult::Failed | RunResult::Cancelled);
    let mut since = history.reports.iter().take_while(failed);
    since.find(|report| report.failure.as_ref().is_some_and(wanted))
}

/// Whether a run with this failure could not save its state. A run that failed for another reason has that reason.
fn is_unsaved(failure: &Failure) -> bool {
    failure.reason == "StateNotSaved" || failure.message.contains(NOT_SAVED)
}

/// Whether the claim exists and may hold a state that a run could not save.
pub(crate) fn has_unsaved(seen: &Seen, history: &History) -> bool {
    let may_hold = unsaved(history).or_else(|| interrupted(history)).is_some();
    seen.cache != CacheSeen::Absent && may_hold
}

/// Whether pods can use the cache volume. One that holds a state, or the only copy of one that a run could not save, counts as usable, so
/// that it is waited for. One that may hold the state of an interrupted run is done without, but not replaced.
pub(crate) fn usability(seen: &Seen, history: &History) -> CacheVolume {
    let in_report = seen.record.as_ref().is_some_and(|record| record.unsaved);
    if holds_state(seen) || unsaved(history).is_some() && !in_report {
        return CacheVolume::Usable;
    }
    match history.cache {
        CacheVolume::Unusable if interrupted(history).is_some() => CacheVolume::Suspect,
        known => known,
    }
}

/// Whether a run with `inputs` has its state there.
pub(crate) fn is_used_by(inputs: &BackendInputs) -> bool {
    address_of(inputs).is_some_and(|address| is_on_the_volume(&address))
}

/// Whether what exists has its state there, as far as anything tells.
pub(crate) fn holds_state(seen: &Seen) -> bool {
    let record = seen.record.as_ref().map(|it| &it.record);
    is_told(record) || is_pinned(record, seen.pin.as_ref())
}

fn is_told(record: Option<&RunRecord>) -> bool {
    let address = record.and_then(|record| record.state_address.as_deref());
    address.is_some_and(is_on_the_volume)
}

fn is_pinned(record: Option<&RunRecord>, pin: Option<&Pin>) -> bool {
    let attempted = record.map_or(i64::MAX, |record| record.attempted);
    let exists = pin.filter(|_| attempted > 0);
    exists.is_some_and(|pin| is_used_by(&pin.of_what_exists(attempted).inputs.backend))
}

/// Whether it may hold the state of `tf`: it stays where the state stays.
pub(crate) fn may_hold_state(tf: &Terraform, seen: &Seen) -> bool {
    let backend = tf.spec.backend.as_ref();
    let wanted = backend.and_then(|backend| backend.provider);
    wanted == Some(BackendProvider::Local) || holds_state(seen)
}

impl Case<'_> {
    /// What the cache volume may hold for which the pod of `run` waits, and how to continue, as the end of a message. Empty if a run
    /// without the volume loses nothing.
    pub(crate) fn volume_hint(&self, run: &RunSpec, why: &Waiting) -> String {
        let waits = run.cache && [UNSCHEDULABLE, NOT_STARTED].contains(&why.reason.as_str());
        if !waits || holds_state(self.seen) {
            return String::new();
        }
        let claim = names::cache(&self.tf.name_any());
        if let Some(report) = unsaved(&self.history).filter(|_| !self.record.unsaved) {
            return format!(
                "; no run starts without PersistentVolumeClaim {claim}, where run {number} kept the state that it could not save. If its \
                 volume is lost for good, so is that state: what run {number} created last is missing in the stored state, and has to be \
                 imported. Only if you accept that: kubectl delete persistentvolumeclaim {claim} -n {namespace}",
                number = report.number,
                namespace = self.tf.namespace().unwrap_or_default(),
            );
        }
        interrupted(&self.history).map_or_else(String::new, |report| {
            format!(
                "; the next run starts without PersistentVolumeClaim {claim}, where run {} may have kept its state when it was \
                 interrupted; the claim is kept until a run succeeds",
                report.number
            )
        })
    }

    /// That a run with `backend` would find nothing where the state was: everything would be made a
    /// second time, and nothing be destroyed.
    pub(crate) fn volume_lost(&self, backend: &BackendInputs) -> Option<Situation> {
        let gone = matches!(self.seen.cache, CacheSeen::Absent | CacheSeen::Lost);
        let lost = gone && is_used_by(backend) && holds_state(self.seen);
        lost.then(|| {
            let (name, namespace) = (self.tf.name_any(), self.tf.namespace().unwrap_or_default());
            let claim = names::cache(&name);
            let message = format!(
                "the state was on the cache volume, and PersistentVolumeClaim {claim} or its volume \
                 is gone; nothing was changed, and no new volume is made in its place. Restore the \
                 claim, with its labels, from a backup. Only if there is none, and no \
                 PersistentVolume of the claim (kubectl get persistentvolumes), begin anew with \
                 nothing (what exists stays, and is made a second time): save the Secrets of the \
                 resource (kubectl get secrets -n {namespace} -l {}={name} -o json >{name}.json), \
                 then kubectl annotate tf {name} -n {namespace} {ABANDON}=true, delete it, and \
                 create it again",
                labels::NAME
            );
            Situation::stalled("StateLost", message)
        })
    }
}
