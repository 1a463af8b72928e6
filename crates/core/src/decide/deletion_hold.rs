//! Summaries and messages for deleted resources whose managed objects are kept.

use alustan_api::{DeletionPolicy, Mode, Reason, Terraform, names};
use kube_core::ResourceExt;
use serde_json::json;

use crate::decide::case::ReconcileCase;
use crate::decide::{restore, state_volume};
use crate::model::summary::{Summary, abandon_suffix, patch};

/// Returns the summary of a deleted resource with `spec.deletionProtection`.
pub(super) fn protected(tf: &Terraform) -> Summary {
    let message = format!(
        "spec.deletionProtection is true: the deleted resource is kept and no run starts; to \
         destroy the managed objects: {}{}",
        patch(tf, &json!({ "deletionProtection": false })),
        abandon_suffix(tf),
    );
    Summary::stalled(Reason::DeletionProtected, message)
}

/// Returns the summary of a deleted resource with `spec.suspend`.
pub(super) fn suspended(tf: &Terraform) -> Summary {
    let message = format!(
        "spec.suspend is true: the deleted resource is kept and no destroy starts; to resume: {}{}",
        patch(tf, &json!({ "suspend": false })),
        abandon_suffix(tf),
    );
    Summary::stalled(Reason::Suspended, message)
}

/// Returns the summary of a deleted resource with `spec.mode: PlanOnly` that has applied changes.
pub(super) fn plan_only(tf: &Terraform) -> Summary {
    let message = format!(
        "spec.mode is PlanOnly, but this resource has applied changes before: the deleted resource \
         is kept and no destroy starts; to destroy the managed objects: {}; to keep them: {}{}",
        patch(tf, &json!({ "mode": Mode::Apply })),
        patch(tf, &json!({ "deletionPolicy": DeletionPolicy::Orphan })),
        abandon_suffix(tf),
    );
    Summary::stalled(Reason::PlanOnly, message)
}

/// Describes the objects that remain after a deletion without destroy.
pub(super) fn kept_objects(case: &ReconcileCase<'_>) -> String {
    let state = managed_state(case).or_else(|| {
        let volume = state_volume::may_hold_state(case.tf, case.seen);
        volume.then(|| on_volume(case.tf))
    });
    let state = state.map(|state| format!(" {state}")).unwrap_or_default();
    let unsaved = unsaved(case).unwrap_or_default();
    format!("the managed objects are kept; the state is kept{state}{unsaved}")
}

/// Describes the objects that are kept if the run record cannot be read.
pub(super) fn unreadable(tf: &Terraform) -> String {
    format!(
        "the run record cannot be read; the managed objects and the run record are kept; the state \
         is kept {}",
        in_secrets_and_on_volume(tf)
    )
}

/// Returns a message suffix with the location of an unsaved state, and the command to save it.
fn unsaved(case: &ReconcileCase<'_>) -> Option<String> {
    let name = case.tf.name_any();
    let on_volume = state_volume::may_hold_unsaved(case.seen, &case.history);
    let is_certain = case.record.unsaved || state_volume::holds_only_copy(case.seen, &case.history);
    let subject = if is_certain {
        "the unsaved state"
    } else {
        "the state that an interrupted run may not have saved"
    };
    let location = match (case.record.unsaved, on_volume) {
        (false, false) => return None,
        (true, _) => format!("Secret {}", names::report(&name)),
        (false, true) => format!("PersistentVolumeClaim {}", names::cache(&name)),
    };
    Some(format!(
        "; {subject} is kept in {location}, and its encryption key in Secret {}. To save the state, create the \
         resource again, then {}",
        names::record(&name),
        restore::how_to_restore(case.tf),
    ))
}

/// Returns a message suffix that locates the Secrets with the state of backend `managed`. `None` if the pin has another backend. Without a
/// pin, the run record shows whether state Secrets were created.
pub(super) fn managed_state(case: &ReconcileCase<'_>) -> Option<String> {
    let pin = case.seen.pin.as_ref();
    let managed = pin.map_or(case.current.state_made, |pin| {
        pin.inputs.backend.managed.is_some()
    });
    managed.then(|| in_secrets(case.tf))
}

/// Returns a message suffix that locates the Secrets with the state of `tf`.
pub(super) fn in_secrets(tf: &Terraform) -> String {
    format!(
        "in Secrets of this namespace: kubectl get secrets -n {} -l {}={}",
        tf.namespace().unwrap_or_default(),
        alustan_api::labels::NAME,
        tf.name_any(),
    )
}

/// Returns a message suffix that locates the Secrets and the cache volume with the state of `tf`.
pub(super) fn in_secrets_and_on_volume(tf: &Terraform) -> String {
    format!("{}, {}", in_secrets(tf), on_volume(tf))
}

/// Returns a message suffix with the `PersistentVolumeClaim` that has the state of `tf`.
pub(super) fn on_volume(tf: &Terraform) -> String {
    let claim = names::cache(&tf.name_any());
    format!("on the cache volume: PersistentVolumeClaim {claim}")
}
