//! What must hold after each edit.

use alustan_api::{Reason, Terraform};
use kube::api::DynamicObject;

use crate::mutate::world::status;

/// Maximum size of a message in the status, in bytes.
const MAX_MESSAGE: usize = 32 << 10;

/// Reasons that mean an error of the operator or of the cluster, not of the resource.
const INTERNAL: [Reason; 12] = [
    Reason::ApiError,
    Reason::Failed,
    Reason::Forbidden,
    Reason::ObjectUnreadable,
    Reason::RecordForged,
    Reason::RecordLost,
    Reason::RecordUnreadable,
    Reason::ReportInvalid,
    Reason::ReportNotRecorded,
    Reason::ResourceUnreadable,
    Reason::RunRecordConflict,
    Reason::Unknown,
];

/// Reasons of condition `Stalled` that do not refer to a field with an invalid value.
const WITHOUT_FIELD: [Reason; 4] = [
    Reason::PlanOnly,
    Reason::RunCancelled,
    Reason::Suspended,
    Reason::PlanDiscarded,
];

/// Checks a refusal by the API server: it names the field.
///
/// # Errors
/// What is wrong with the refusal.
pub(crate) fn refusal(code: u16, message: &str) -> Result<(), String> {
    if ![400, 403, 422].contains(&code) {
        return Err(format!("status {code}: {}", start(message)));
    }
    let names_field = ["spec", "metadata.annotations", "ObjectMeta.annotations"]
        .iter()
        .any(|field| message.contains(field));
    if names_field {
        Ok(())
    } else {
        Err(format!("no field in the refusal: {}", start(message)))
    }
}

/// Checks a resource that the operator has reconciled: it is readable, and its status explains the situation.
///
/// # Errors
/// What is wrong with the status.
pub(crate) fn explanation(resource: &DynamicObject) -> Result<(), String> {
    let read: Result<Terraform, _> =
        serde_json::from_value(serde_json::to_value(resource).unwrap());
    read.map_err(|error| format!("admitted, and not readable: {error}"))?;
    let status = status(resource);
    let condition = |kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .ok_or_else(|| format!("no condition {kind}: {status:?}"))
    };
    let ready = condition("Ready")?;
    let stalled = condition("Stalled")?.status == "True";
    let reconciling = condition("Reconciling")?.status == "True";
    let reason = &ready.reason;
    let message = &ready.message;
    let problem = |problem: &str| Err(format!("{problem}: {reason}: {}", start(message)));
    if ready.status != "True" && !reconciling && !stalled {
        return problem("neither Ready nor Reconciling nor Stalled");
    }
    if message.is_empty() || message.len() > MAX_MESSAGE || status.message.is_empty() {
        return problem("the message is empty or long");
    }
    match Reason::from_stored(reason) {
        None => return problem("unknown reason"),
        Some(reason) if INTERNAL.contains(&reason) => return problem("internal error"),
        Some(reason) if stalled && !WITHOUT_FIELD.contains(&reason) => {}
        Some(_) => return Ok(()),
    }
    if ["spec.", "metadata.annotations", "alustan.io/"]
        .iter()
        .any(|field| message.contains(field))
    {
        Ok(())
    } else {
        problem("Stalled without a field")
    }
}

/// Returns the status of condition `Ready` and its reason.
pub(crate) fn ready(resource: &DynamicObject) -> (String, String) {
    let conditions = status(resource).conditions;
    conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .map(|condition| (condition.status, condition.reason))
        .unwrap_or_default()
}

/// Returns whether condition `Stalled` is true.
pub(crate) fn is_stalled(resource: &DynamicObject) -> bool {
    let conditions = status(resource).conditions;
    conditions
        .iter()
        .any(|condition| condition.type_ == "Stalled" && condition.status == "True")
}

/// Returns the beginning of a text.
pub(crate) fn start(text: &str) -> String {
    text.chars().take(400).collect()
}
