//! Kubernetes events for changes of conditions `Ready`, `InSync` and `SourceReady`.

use alustan_api::{Reason, TerraformStatus, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// An event about a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// True for type `Warning`, false for type `Normal`.
    pub warning: bool,
    /// Reason of the condition that changed.
    pub reason: String,
    /// Message of the condition that changed.
    pub note: String,
}

/// Reasons that cause an event while condition `Ready` is Unknown. Other reasons cause no event, because they last only for a short time.
const STEPS: [Reason; 8] = [
    Reason::Building,
    Reason::Running,
    Reason::AwaitingApproval,
    Reason::Destroying,
    Reason::RunRecordMissing,
    Reason::Orphaned,
    Reason::Restored,
    Reason::Abandoned,
];

/// Returns the events for the transition from `previous` to `next`: one for each condition with a new status or reason. `InSync` and
/// `SourceReady` cause events only with status False. `Ready` with status Unknown causes events only for the reasons in `STEPS`.
pub fn events(previous: Option<&TerraformStatus>, next: &TerraformStatus) -> Vec<Event> {
    let watched = [("Ready", true), ("InSync", false), ("SourceReady", false)];
    let mut events: Vec<Event> = watched
        .into_iter()
        .filter_map(|(kind, all_changes)| {
            let next_condition = condition(next, kind)?;
            let previous_condition = previous.and_then(|status| condition(status, kind));
            let is_same = previous_condition.is_some_and(|previous| {
                previous.status == next_condition.status
                    && reason::current(&previous.reason) == reason::current(&next_condition.reason)
            });
            let is_failure = next_condition.status == "False";
            let is_reported = match next_condition.status.as_str() {
                "Unknown" => all_changes && STEPS.iter().any(|step| next_condition.reason == *step),
                status => all_changes || status == "False",
            };
            (!is_same && is_reported).then(|| Event {
                warning: is_failure,
                reason: next_condition.reason.clone(),
                note: next_condition.message.clone(),
            })
        })
        .collect();
    events.dedup_by(|left, right| left.reason == right.reason);
    events
}

/// Returns the condition of type `kind`.
pub(super) fn condition<'a>(status: &'a TerraformStatus, kind: &str) -> Option<&'a Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)
}
