//! Restore from a backup: assigns the run record of an earlier resource of the same name to a new resource. Keeps run numbers, engine, and
//! data about the state. Runs and approvals are not restored. Inputs, images and `ServiceAccounts` are not restored either: the operator
//! derives them from the new resource.

use alustan_api::report::UnsavedPlace;
use alustan_api::run::{History, Restored, UnsavedState};
use alustan_api::{ApprovalMode, KEPT, Reason, State, Terraform, names};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use crate::decide::case::RECHECK_INTERVAL;
use crate::model::facts;
use crate::model::progress;
use crate::model::restored_record::{Rebound, rebound};
use crate::model::summary::Summary;
use crate::objects::namespace;
use crate::observed::{LeftBehind, Seen};
use crate::settings::Settings;
use crate::step::{Object, Step, TakeOver};

/// Returns the command that restores `tf`.
pub(super) fn how_to_restore(tf: &Terraform) -> String {
    let namespace = tf.namespace().unwrap_or_default();
    format!("kubectl alustan restore {} -n {namespace}", tf.name_any())
}

/// After a restore and until the first apply, returns a copy of `tf` with `approval.mode: Manual`. Otherwise `None`.
pub(super) fn with_manual_first_plan(tf: &Terraform, history: &History) -> Option<Terraform> {
    is_first_plan(history).then(|| {
        let mut tf = tf.clone();
        tf.spec.approval.mode = ApprovalMode::Manual;
        tf
    })
}

/// Returns the time of the restore; `None` if the resource was not restored.
pub(super) fn restored_at(history: &History) -> Option<Timestamp> {
    history.restored.as_ref().map(|restored| restored.at)
}

/// Returns why the first plan after a restore waits for approval. `None` for any other plan.
pub(super) fn first_plan_reason(history: &History) -> Option<String> {
    let restored = history
        .restored
        .as_ref()
        .filter(|_| is_first_plan(history))?;
    let active_run = restored.open_run.map_or_else(String::new, |number| {
        format!(
            "; run {number} was active at the time of the backup: objects that it created may be \
             missing in the state; import them before approval"
        )
    });
    Some(format!(
        "the resource was restored from a backup{active_run}"
    ))
}

fn is_first_plan(history: &History) -> bool {
    history.restored.is_some() && history.applied.is_none()
}

/// Whether a restore of the record `left_behind` to `tf` is requested.
fn is_requested(tf: &Terraform, left_behind: &LeftBehind) -> bool {
    left_behind.restore_to.is_some() && left_behind.restore_to == tf.metadata.uid
}

/// Whether a restore to `tf` is in progress: the restore is requested, the record `left_behind` can be read, and the resource that owns the
/// record no longer exists. [`take_over`] completes the restore once the pods of earlier runs have ended.
fn is_in_progress(tf: &Terraform, left_behind: &LeftBehind) -> bool {
    is_requested(tf, left_behind) && left_behind.owner.is_none() && left_behind.record.is_some()
}

/// Returns steps and summary if `tf` is deleted before its restore. `tf` owns no objects: nothing is destroyed, and the Secrets of the
/// earlier resource are kept. `None` if the restore is in progress, because destroy then runs after the restore.
pub(super) fn release(tf: &Terraform, left_behind: &LeftBehind) -> Option<(Vec<Step>, Summary)> {
    let message = format!(
        "the resource was deleted before its restore: Secret {} and the managed objects are kept. \
         To destroy the objects, create the resource again, then {}, then delete it",
        names::record(&tf.name_any()),
        how_to_restore(tf),
    );
    (!is_in_progress(tf, left_behind)).then(|| {
        let summary = Summary::busy(State::Destroying, Reason::Orphaned, message);
        (vec![Step::RemoveFinalizer], summary)
    })
}

/// Returns steps and summary of `tf`, which has no record, while the record of an earlier resource of the same name exists.
pub(super) fn take_over(
    tf: &Terraform,
    left_behind: &LeftBehind,
    settings: &Settings,
    now: Timestamp,
) -> (Vec<Step>, Summary) {
    let secret = names::record(&tf.name_any());
    if let Some(owner) = &left_behind.owner {
        let message = format!(
            "Secret {secret} is the run record of {owner}, which still exists. Two resources with one state \
             would destroy each other's managed objects. To move the state to this resource, first delete the \
             owner with spec.deletionPolicy: Orphan. Otherwise keep the Secrets, and create this \
             resource with another name"
        );
        return (Vec::new(), Obstacle::Conflict.summary(message, now));
    }
    let Some(record) = &left_behind.record else {
        let message = format!(
            "Secret {secret} is the run record of an earlier resource of this name and cannot be read by this version of the operator. \
             Restore the Secret from the backup again with kubectl apply, or run the version of the operator that wrote the Secret"
        );
        return (Vec::new(), Obstacle::Unreadable.summary(message, now));
    };
    if !is_requested(tf, left_behind) {
        let message = format!(
            "Secret {secret} is the run record of an earlier resource of this name, for example \
             after a restore from a backup. No run starts, because it would create all objects a \
             second time. To continue with the state of that resource: {}. To start without it: \
             keep the Secrets, and create this resource with another name",
            how_to_restore(tf)
        );
        return (Vec::new(), Obstacle::NotRequested.summary(message, now));
    }
    if let Some(pod) = left_behind.pods.first() {
        let message = format!(
            "the restore waits for pod {pod} of an earlier run to end; see kubectl get pod {pod} \
             -n {}",
            tf.namespace().unwrap_or_default()
        );
        let waiting = Summary {
            requeue_at: Some(now + RECHECK_INTERVAL),
            ..Summary::blocked(State::Pending, Reason::RestorePending, message)
        };
        return (Vec::new(), waiting);
    }
    let Rebound { record, open_run } = rebound(record, &left_behind.progress);
    let history = History {
        reconcile_at: facts::requested(tf),
        restored: Some(Restored { at: now, open_run }),
        engine: left_behind.history.engine.as_ref().map(progress::engine),
        architecture: left_behind.history.architecture,
        unsaved: left_behind
            .history
            .unsaved
            .or_else(|| open_run.map(possibly_unsaved_state)),
        ..History::default()
    };
    let first_plan_reason = first_plan_reason(&history).unwrap_or_default();
    let message = format!(
        "run numbers continue after {}; {first_plan_reason}; the first plan waits for approval if it has changes",
        record.number
    );
    let marks = settings.marks_namespaces && record.attempted > 0;
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let mut steps = Vec::new();
    steps.extend((!deleting).then_some(Step::AddFinalizer));
    steps.extend(marks.then(|| {
        let namespace = Object::Namespace(namespace::marked(tf));
        Step::Ensure(Box::new(namespace))
    }));
    steps.push(Step::TakeOver(Box::new(TakeOver {
        uid: left_behind.uid.clone(),
        version: left_behind.version.clone(),
        record,
        history,
    })));
    let state = if deleting {
        State::Destroying
    } else {
        State::Pending
    };
    (steps, Summary::busy(state, Reason::Restored, message))
}

/// Returns the unsaved state that run `number` may have written to the cache volume after the backup.
const fn possibly_unsaved_state(number: i64) -> UnsavedState {
    UnsavedState {
        run: number,
        place: UnsavedPlace::Unknown,
    }
}

/// Returns the summary of `tf` if it comes from a backup and its Secrets are missing. `None` for a copy of an existing resource, because a
/// copy has no Secrets.
pub(super) fn without_secrets(tf: &Terraform, seen: &Seen, now: Timestamp) -> Option<Summary> {
    let is_known = seen.pin.is_some() || !seen.jobs.is_empty();
    let (name, namespace) = (tf.name_any(), tf.namespace().unwrap_or_default());
    let needs_restore = facts::other_uid(tf).is_some() && !seen.is_copy && !is_known;
    needs_restore.then(|| {
        let message = format!(
            "the resource comes from a backup (its annotation {KEPT} is the uid of a resource that \
             does not exist), and its run record is missing. No run starts, because it would \
             create all objects a second time. To continue with its state: restore the Secrets {}, \
             {} and, for a managed state, {}*, then {}. To start without a state: kubectl annotate \
             tf {name} -n {namespace} {KEPT}-",
            names::record(&name),
            names::report(&name),
            names::state(&name),
            how_to_restore(tf),
        );
        Obstacle::NotRequested.summary(message, now)
    })
}

/// Obstacle to a restore that a user must resolve.
#[derive(Clone, Copy)]
enum Obstacle {
    /// No restore is requested, or the run record of the earlier resource is missing.
    NotRequested,
    /// The resource that owns the run record still exists.
    Conflict,
    /// This version of the operator cannot read the run record.
    Unreadable,
}

impl Obstacle {
    fn summary(self, message: String, now: Timestamp) -> Summary {
        let reason = match self {
            Self::NotRequested => Reason::RestoreRequired,
            Self::Conflict => Reason::StateConflict,
            Self::Unreadable => Reason::RecordUnreadable,
        };
        // The resource that owns the run record may be in another namespace. Its deletion does not requeue `tf`, so `tf` is requeued
        // periodically.
        let requeue_at = match self {
            Self::Conflict => Some(now + RECHECK_INTERVAL),
            Self::NotRequested | Self::Unreadable => None,
        };
        Summary {
            requeue_at,
            ..Summary::stalled(reason, message)
        }
    }
}
