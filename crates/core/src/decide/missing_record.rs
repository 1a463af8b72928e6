//! Resources without a run record: new resources, resources restored from a backup, resources whose run record was deleted by hand, and
//! deleted resources that are kept only by finalizers of other controllers.

use alustan_api::labels::Component;
use alustan_api::run::{History, Lineage, RunRecord};
use alustan_api::{Reason, State, Terraform, names};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use crate::decide::case::has_finalizer;
use crate::decide::{deletion_hold, restore, state_volume};
use crate::model::facts::{self, DeletionHold, is_abandoned, keeps_all_objects};
use crate::model::summary::{Summary, UNKNOWN_HISTORY, abandon_suffix};
use crate::objects::secrets;
use crate::observed::{Answer, NothingLeft, OwnJob, Seen, SourceSeen};
use crate::settings::Settings;
use crate::status::render::{ImageView, View};
use crate::step::{Decision, Step};

/// Returns the decision for `tf` at `now` without a run record.
pub(super) fn decide(
    tf: &Terraform,
    seen: &Seen,
    source: &Answer<SourceSeen>,
    settings: &Settings,
    now: Timestamp,
) -> Decision {
    let (steps, summary) = next(tf, seen, settings, now);
    let view = View {
        tf,
        history: &History::default(),
        record: None,
        source,
        stack: &seen.stack,
        image: ImageView::default(),
    };
    Decision {
        steps,
        start: None,
        status: view.status(&summary, now),
        requeue_at: summary.requeue_at,
    }
}

/// Returns the steps and the summary for `tf` at `now`.
fn next(tf: &Terraform, seen: &Seen, settings: &Settings, now: Timestamp) -> (Vec<Step>, Summary) {
    let deleting = tf.metadata.deletion_timestamp.is_some();
    // The operator adds its finalizer before it creates the run record, and removes the finalizer last. So a resource without this
    // finalizer has nothing to destroy.
    if deleting && !has_finalizer(tf) {
        return (Vec::new(), without_own_finalizer());
    }
    if let Some(job) = seen.jobs.values().find(|job| !job.finished) {
        return with_active_job(tf, job);
    }
    let leaves_all = deleting && keeps_all_objects(tf);
    if let Some(left_behind) = seen.left_behind.as_ref().filter(|_| !leaves_all) {
        if deleting && DeletionHold::of(tf) == Some(DeletionHold::Protected) {
            return (Vec::new(), deletion_hold::protected(tf));
        }
        let released = restore::release(tf, left_behind).filter(|_| deleting);
        return released.unwrap_or_else(|| restore::take_over(tf, left_behind, settings, now));
    }
    if !deleting && let Some(summary) = restore::without_secrets(tf, seen, now) {
        return (Vec::new(), summary);
    }
    match seen.nothing_left.filter(|_| deleting) {
        Some(observed) => without_record_and_pin(tf, seen, observed),
        None => create_record(tf, seen),
    }
}

/// Returns the summary of a deleted resource that has only finalizers of other controllers. The operator writes status only.
fn without_own_finalizer() -> Summary {
    let message = "nothing to destroy; other finalizers remain";
    Summary::busy(State::Destroying, Reason::Destroyed, message)
}

/// Returns the steps that add the finalizer, set annotation [`KEPT`](alustan_api::KEPT) to the uid of `tf`, and create the run record, and
/// the summary. In a copied or restored resource, the annotation has the uid of the original.
fn create_record(tf: &Terraform, seen: &Seen) -> (Vec<Step>, Summary) {
    let history = History {
        reconcile_at: facts::requested(tf),
        ..History::default()
    };
    let mut steps = Vec::new();
    let is_kept = has_finalizer(tf) && facts::has_own_uid(tf);
    if !is_kept && tf.metadata.deletion_timestamp.is_none() {
        steps.push(Step::AddFinalizer);
    }
    if seen.record.is_none() {
        // Without the run record, it is unknown whether earlier runs applied anything. So the operator assumes that the last known run was
        // an apply: a deletion runs destroy, and a missing state is handled as lost. Run numbers continue.
        let last_run = last_known_run(tf, seen);
        let attempted = last_run.max(i64::from(is_unknown(tf, seen)));
        let record = RunRecord {
            number: attempted,
            attempted,
            state_made: last_run > 0 && was_managed(seen),
            lineage: if attempted > 0 {
                Lineage::Lost
            } else {
                Lineage::Unknown
            },
            ..RunRecord::default()
        };
        steps.push(Step::CreateRecord(Box::new(secrets::record(
            tf, &record, &history,
        ))));
    }
    let summary = if is_unknown(tf, seen) {
        let message = format!("{UNKNOWN_HISTORY}{}", abandon_suffix(tf));
        Summary::busy(State::Destroying, Reason::RunRecordMissing, message)
    } else {
        Summary::busy(
            State::Pending,
            Reason::AwaitingProcessing,
            "Awaiting processing",
        )
    };
    (steps, summary)
}

/// Whether `tf` is deleted and it is unknown whether anything was applied: `tf` is not a copy and has no status, pin or Job, and the value
/// of annotation [`KEPT`](alustan_api::KEPT) is not the uid of `tf`. The finalizer may then come from an earlier resource.
fn is_unknown(tf: &Terraform, seen: &Seen) -> bool {
    let deleting = tf.metadata.deletion_timestamp.is_some();
    // If annotation `KEPT` has the uid of an earlier resource, a status does not prove that a run was started: the status may only report
    // that a restore is required.
    let has_status = tf.status.is_some() && facts::other_uid(tf).is_none();
    let has_evidence = has_status || seen.pin.is_some() || !seen.jobs.is_empty();
    deleting && !facts::has_own_uid(tf) && !seen.is_copy && !has_evidence
}

/// Whether earlier runs may have created state Secrets: the pin has the `managed` backend, or does not exist.
fn was_managed(seen: &Seen) -> bool {
    let pin = seen.pin.as_ref();
    pin.is_none_or(|pin| pin.inputs.backend.managed.is_some())
}

/// Returns the number of the last run known from Jobs, pin or status.
fn last_known_run(tf: &Terraform, seen: &Seen) -> i64 {
    let job = seen.jobs.keys().next_back().copied();
    let pin = seen.pin.as_ref().map(|pin| pin.number);
    let status = tf.status.as_ref().and_then(|status| status.run);
    job.max(pin).max(status).unwrap_or_default()
}

/// Returns steps and summary if the run record was deleted while `job` is active. No other run starts, and no object that the active run
/// needs is deleted. If the resource is deleted and has annotation `alustan.io/abandon`, the Job is deleted, and its pod ends within its
/// grace period.
fn with_active_job(tf: &Terraform, job: &OwnJob) -> (Vec<Step>, Summary) {
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let mut steps = Vec::new();
    if !deleting && !has_finalizer(tf) {
        steps.push(Step::AddFinalizer);
    }
    if deleting && is_abandoned(tf) {
        steps.push(Step::DeleteJob {
            namespace: tf.namespace().unwrap_or_default(),
            name: job.name.clone(),
            uid: job.uid.clone(),
        });
    }
    let state = if deleting {
        State::Destroying
    } else {
        State::Pending
    };
    let message = format!(
        "the run record is missing while the last run is active; waiting for Job {name} to end; \
         see kubectl describe pods -n {namespace} -l job-name={name}; to stop it gracefully: \
         kubectl delete job {name} -n {namespace}",
        name = job.name,
        namespace = tf.namespace().unwrap_or_default(),
    );
    (steps, Summary::busy(state, Reason::RecordLost, message))
}

/// Returns steps and summary of a deleted resource without run record and without pin. Status and Jobs show whether anything was applied: a
/// successful destroy removes the apply from status, and clean-up deletes the Jobs before the run record.
fn without_record_and_pin(
    tf: &Terraform,
    seen: &Seen,
    observed: NothingLeft,
) -> (Vec<Step>, Summary) {
    let applied = facts::status_has_attempt(tf) || !seen.jobs.is_empty();
    let abandoned = keeps_all_objects(tf);
    if DeletionHold::of(tf) == Some(DeletionHold::Protected) && !abandoned {
        return (Vec::new(), deletion_hold::protected(tf));
    }
    if applied && !abandoned && !observed.namespace_terminating {
        let message = format!(
            "Secrets {} and {} are missing, so destroy cannot run; restore them from a backup{}",
            names::record(&tf.name_any()),
            names::pin(&tf.name_any()),
            abandon_suffix(tf),
        );
        return (Vec::new(), Summary::stalled(Reason::PinLost, message));
    }
    if is_unknown(tf, seen) && !abandoned && !observed.namespace_terminating {
        return create_record(tf, seen);
    }
    let message = if observed.unreadable {
        deletion_hold::unreadable(tf)
    } else if applied {
        "the run record and the pin are missing; the applied objects are kept".to_owned()
    } else {
        "nothing was applied".to_owned()
    };
    let mut kept_components = Vec::new();
    if abandoned {
        kept_components.push(Component::State);
    }
    if abandoned && (observed.unreadable || state_volume::may_hold_state(tf, seen)) {
        kept_components.push(Component::Cache);
    }
    if observed.unreadable {
        kept_components.extend([Component::Report, Component::Record]);
    }
    let steps = vec![
        Step::CleanUp {
            kept: kept_components,
        },
        Step::RemoveFinalizer,
    ];
    let summary = Summary::busy(State::Destroying, Reason::Destroyed, message);
    (steps, summary)
}
