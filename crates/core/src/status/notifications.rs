//! Notifications about a resource. Each is delivered at least once; an outdated notification is dropped.

use std::collections::BTreeSet;

use alustan_api::report::RunResult;
use alustan_api::run::{Notice, Notices, RunKind};
use alustan_api::{NotificationEvent, Reason, State, Terraform, TerraformStatus, reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;
use serde_json::{Value, json};

use crate::digest;
use crate::model::summary::USER_REQUESTED;

/// Time after an event within which its notification is delivered. After this time, the notification is dropped, and is not sent to a sink
/// that is added later.
pub const DELIVERY_PERIOD: SignedDuration = SignedDuration::from_hours(1);

/// Maximum time, after a successful destroy, for which the operator keeps the finalizer to deliver the last notification.
pub const FINAL_DELIVERY_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// Maximum number of undelivered notifications of a resource. If there are more, the oldest is dropped.
const MAX_UNDELIVERED: usize = 8;

/// Maximum number of ids of delivered notifications that are stored per event. A notification with a stored id is not sent again.
const MAX_DELIVERED_IDS: usize = 8;

/// Whether a sink of `tf` or of the operator subscribes to `event`. `notified`: events that the operator sends for every resource.
pub fn is_subscribed(
    tf: &Terraform,
    notified: &BTreeSet<NotificationEvent>,
    event: NotificationEvent,
) -> bool {
    let mut subscriptions = tf.spec.notifications.iter();
    notified.contains(&event) || subscriptions.any(|notification| notification.tells(event))
}

/// Returns the end of the delivery period of `notice`.
pub fn expires_at(notice: &Notice) -> Timestamp {
    let period = match notice.event {
        NotificationEvent::Destroyed => FINAL_DELIVERY_TIMEOUT,
        _ => DELIVERY_PERIOD,
    };
    notice.since + period
}

/// Adds the notifications to `notices` that the change from the previous status to `status` causes. `tf` contains the previous status.
/// `notified`: events that the operator sends for every resource.
pub fn note(
    notices: &mut Notices,
    tf: &Terraform,
    status: &TerraformStatus,
    notified: &BTreeSet<NotificationEvent>,
    now: Timestamp,
) {
    let previous = tf
        .status
        .as_ref()
        .and_then(|status| StatusView::of(tf, status));
    let previous = previous.map(|view| view.facts()).unwrap_or_default();
    let Some(view) = StatusView::of(tf, status) else {
        return;
    };
    for Fact { event, id, at } in view.facts() {
        let is_known =
            is_delivered(notices, event, &id) || notices.due.iter().any(|due| due.id == id);
        // A condition keeps its transition time if only its reason changes. So for a fact that the previous status does not contain, the
        // transition time may be too early, and `now` is used instead. For `Succeeded`, the time is the time of the apply, which the status
        // contains.
        let is_older =
            previous.iter().any(|fact| fact.id == id) || event == NotificationEvent::Succeeded;
        let at = if is_older { at } else { now };
        if !is_known
            && is_subscribed(tf, notified, event)
            && now.duration_since(at) < DELIVERY_PERIOD
        {
            let message = view.message(event, &id, at);
            notices.due.push(Notice {
                event,
                id,
                since: now,
                message,
            });
        }
    }
    bound(notices);
}

/// Merges the notifications `recorded` into `notices`. `recorded`: notifications that the operator stored in the run record before a
/// restart.
pub fn restore_stored(notices: &mut Notices, recorded: &Notices) {
    for (event, ids) in &recorded.finished {
        let delivered = notices.finished.entry(*event).or_default();
        let mut ids_in_order: Vec<String> = ids
            .iter()
            .filter(|id| !delivered.contains(id))
            .cloned()
            .collect();
        ids_in_order.append(delivered);
        *delivered = ids_in_order;
    }
    let Notices {
        due,
        finished: delivered,
    } = notices;
    let is_delivered = |notice: &Notice| {
        delivered
            .get(&notice.event)
            .is_some_and(|ids| ids.contains(&notice.id))
    };
    let due_ids: BTreeSet<String> = due.iter().map(|notice| notice.id.clone()).collect();
    let mut merged: Vec<Notice> = recorded
        .due
        .iter()
        .filter(|notice| !due_ids.contains(&notice.id))
        .cloned()
        .collect();
    merged.append(due);
    merged.retain(|notice| !is_delivered(notice));
    *due = merged;
    bound(notices);
}

/// Marks notification `id` of `event` as delivered to all sinks, or as dropped.
pub fn mark_delivered(notices: &mut Notices, event: NotificationEvent, id: &str) {
    notices.due.retain(|notice| notice.id != id);
    if !is_delivered(notices, event, id) {
        notices
            .finished
            .entry(event)
            .or_default()
            .push(id.to_owned());
    }
    bound(notices);
}

fn is_delivered(notices: &Notices, event: NotificationEvent, id: &str) -> bool {
    let delivered = notices.finished.get(&event);
    delivered.is_some_and(|delivered| delivered.iter().any(|delivered_id| delivered_id == id))
}

fn bound(notices: &mut Notices) {
    let Notices {
        due,
        finished: delivered,
    } = notices;
    for dropped in due.drain(..due.len().saturating_sub(MAX_UNDELIVERED)) {
        delivered.entry(dropped.event).or_default().push(dropped.id);
    }
    for ids in delivered.values_mut() {
        ids.drain(..ids.len().saturating_sub(MAX_DELIVERED_IDS));
    }
}

/// A fact in the status that may cause a notification, for example that the resource has drifted.
struct Fact {
    event: NotificationEvent,
    id: String,
    at: Timestamp,
}

/// Formats a time in whole seconds: the API server stores no fractions.
fn seconds(at: Timestamp) -> String {
    at.as_second().to_string()
}

struct StatusView<'a> {
    tf: &'a Terraform,
    status: &'a TerraformStatus,
    ready: &'a Condition,
}

impl<'a> StatusView<'a> {
    /// Returns a view of `status`; `None` if the status has no condition `Ready`.
    fn of(tf: &'a Terraform, status: &'a TerraformStatus) -> Option<Self> {
        let mut conditions = status.conditions.iter();
        let ready = conditions.find(|condition| condition.type_ == "Ready")?;
        Some(Self { tf, status, ready })
    }

    /// Returns the facts of the status (approval needed, failed, drifted, …) that may cause a notification.
    fn facts(&self) -> Vec<Fact> {
        let facts = [
            self.approval_needed(),
            self.succeeded(),
            self.failed(),
            self.drifted(),
            self.stalled(),
            self.destroyed(),
        ];
        facts.into_iter().flatten().collect()
    }

    fn approval_needed(&self) -> Option<Fact> {
        let plan = self.status.plan.as_ref();
        let plan = plan.filter(|plan| {
            plan.pending_approval && self.ready.reason == Reason::AwaitingApproval
        })?;
        let identity = [plan.id.clone().unwrap_or_default()];
        Some(self.fact(NotificationEvent::ApprovalNeeded, self.since(), &identity))
    }

    /// Returns the last apply that changed objects, as a fact; `None` if the resource is not Ready.
    fn succeeded(&self) -> Option<Fact> {
        let mut runs = self.status.runs.iter();
        let done = RunResult::Done.as_str();
        let run = runs.find(|run| run.kind == RunKind::Apply && run.result == done)?;
        let at = run.time.as_ref().filter(|_| self.ready.status == "True")?.0;
        let identity = [run.number.to_string(), seconds(at)];
        Some(self.fact(NotificationEvent::Succeeded, at, &identity))
    }

    /// Returns the fact that the resource has failed; `None` if it has not. The id of the fact depends on the cause and not on the number
    /// of attempts, so that each cause is notified once.
    fn failed(&self) -> Option<Fact> {
        let failed = self.ready.status == "False" && self.status.state == State::Failed;
        let failed = failed && !self.is_user_requested();
        failed.then(|| {
            self.fact(
                NotificationEvent::Failed,
                self.since(),
                &self.failure_identity(),
            )
        })
    }

    fn drifted(&self) -> Option<Fact> {
        let since = self.status.drift.as_ref()?.since.0;
        let does_not_converge = self.ready.reason == Reason::NotConverging;
        let identity = [seconds(since), does_not_converge.to_string()];
        Some(self.fact(NotificationEvent::Drifted, since, &identity))
    }

    fn stalled(&self) -> Option<Fact> {
        let mut conditions = self.status.conditions.iter();
        let stalled = conditions
            .find(|condition| condition.type_ == "Stalled" && condition.status == "True")?;
        let at = stalled.last_transition_time.0;
        let mut identity = self.failure_identity();
        identity.push(seconds(at));
        let stalled = !self.is_user_requested();
        stalled.then(|| self.fact(NotificationEvent::Stalled, at, &identity))
    }

    fn destroyed(&self) -> Option<Fact> {
        let at = self.tf.metadata.deletion_timestamp.as_ref();
        let at = at.filter(|_| self.ready.reason == Reason::Destroyed)?;
        // The destroy run may have ended long after the deletion timestamp. So the time of the event is the deletion timestamp or `since`,
        // whichever is later.
        let at = at.0.max(self.since());
        Some(self.fact(NotificationEvent::Destroyed, at, &[]))
    }

    fn is_user_requested(&self) -> bool {
        USER_REQUESTED
            .iter()
            .any(|reason| self.ready.reason == *reason)
    }

    /// Returns the time of the last run report or of the last transition of `Ready`, whichever is later.
    fn since(&self) -> Timestamp {
        let run = self.status.runs.first().and_then(|run| run.time.as_ref());
        let changed = self.ready.last_transition_time.0;
        run.map_or(changed, |time| time.0.max(changed))
    }

    /// Returns the values that identify a failure: reason, generation, context and last apply.
    fn failure_identity(&self) -> Vec<String> {
        let Self { status, ready, .. } = self;
        let applied = status
            .last_applied
            .as_ref()
            .map(|applied| seconds(applied.time.0));
        let source = status.source.as_ref();
        vec![
            reason::earlier(&ready.reason).to_owned(),
            status.observed_generation.unwrap_or_default().to_string(),
            source
                .and_then(|source| source.context.clone())
                .unwrap_or_default(),
            applied.unwrap_or_default(),
        ]
    }

    fn fact(&self, event: NotificationEvent, at: Timestamp, identity: &[String]) -> Fact {
        let uid = self.tf.uid().unwrap_or_default();
        let id = digest::plain(&(&uid, event, identity));
        let id = id.get(..32).unwrap_or(&id).to_owned();
        Fact { event, id, at }
    }

    fn message(&self, event: NotificationEvent, id: &str, at: Timestamp) -> Value {
        let Self { tf, status, ready } = self;
        let (namespace, name) = (tf.namespace().unwrap_or_default(), tf.name_any());
        let event_name = event.to_string().to_lowercase();
        let plan = status.plan.as_ref().map(|plan| {
            json!({
                "id": plan.id, "add": plan.add, "change": plan.change, "destroy": plan.destroy,
            })
        });
        let drift = status.drift.as_ref().map(
            |drift| json!({"add": drift.add, "change": drift.change, "destroy": drift.destroy}),
        );
        json!({
            "specversion": "1.0",
            "id": id,
            "source": format!("/apis/alustan.io/v1alpha1/namespaces/{namespace}/terraforms/{name}"),
            "type": format!("io.alustan.terraform.{event_name}"),
            "subject": format!("{namespace}/{name}"),
            "time": format!("{at:.0}"),
            "datacontenttype": "application/json",
            "data": {
                "event": event,
                "namespace": namespace,
                "name": name,
                "uid": tf.uid(),
                "state": status.state,
                "ready": ready.status,
                "reason": ready.reason,
                "message": status.message,
                "revision": status.source.as_ref().map(|source| &source.revision),
                "run": status.run,
                "plan": plan,
                "drift": drift,
            },
        })
    }
}
