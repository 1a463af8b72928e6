//! Kubernetes events: one for each change of a watched condition.

use alustan_api::{Reason, TerraformStatus, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// An event about a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether the type is `Warning`, otherwise `Normal`.
    pub warning: bool,
    /// Reason of the condition that changed.
    pub reason: String,
    /// Message of the condition that changed.
    pub note: String,
}

/// Reasons that cause an event if condition `Ready` is Unknown. Steps with other reasons are too short for an event.
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

/// Returns the events for the transition from `previous` to `next`: `Ready` changed its status or reason, or `InSync` or `SourceReady`
/// became False.
pub fn events(previous: Option<&TerraformStatus>, next: &TerraformStatus) -> Vec<Event> {
    let watched = [("Ready", true), ("InSync", false), ("SourceReady", false)];
    let mut events: Vec<Event> = watched
        .into_iter()
        .filter_map(|(kind, every)| {
            let now = condition(next, kind)?;
            let before = previous.and_then(|status| condition(status, kind));
            let same = before.is_some_and(|old| {
                old.status == now.status
                    && reason::current(&old.reason) == reason::current(&now.reason)
            });
            let bad = now.status == "False";
            let told = match now.status.as_str() {
                "Unknown" => every && STEPS.iter().any(|step| now.reason == *step),
                status => every || status == "False",
            };
            (!same && told).then(|| Event {
                warning: bad,
                reason: now.reason.clone(),
                note: now.message.clone(),
            })
        })
        .collect();
    events.dedup_by(|one, other| one.reason == other.reason);
    events
}

/// Returns the condition of type `kind`.
pub(super) fn condition<'a>(status: &'a TerraformStatus, kind: &str) -> Option<&'a Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)
}
