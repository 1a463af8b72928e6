//! What others are told of a resource: at least once each, and nothing that is long past.

use std::collections::BTreeMap;

use alustan_api::{NotificationEvent, State, Terraform, TerraformStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::digest;
use crate::settings::Settings;
use crate::status::{AWAITING, NOT_CONVERGING};

/// How long a message is tried. What is older is no news, and is not told to who asks for it only now.
pub const NEWS: SignedDuration = SignedDuration::from_hours(1);

/// How long a destroyed resource waits for its last message to arrive.
pub const LAST_WORD: SignedDuration = SignedDuration::from_mins(1);

/// The reason of a resource that is destroyed.
pub(crate) const DESTROYED: &str = "Destroyed";

/// The ids of the messages that arrived last, or were given up.
pub type Told = BTreeMap<NotificationEvent, String>;

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What kind of thing.
    pub event: NotificationEvent,
    /// The same for the same thing, however often it is looked at; no other notice has it.
    pub id: String,
    /// When it happened.
    pub at: Timestamp,
    /// The message: a CloudEvent 1.0 in JSON
    /// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>). Holds what
    /// the status says, and no secret.
    pub message: Value,
}

/// Whether anybody wants to hear of `event` of `tf`.
pub fn is_wanted(tf: &Terraform, settings: &Settings, event: NotificationEvent) -> bool {
    let mut own = tf.spec.notifications.iter();
    settings.notified.contains(&event) || own.any(|notification| notification.tells(event))
}

/// What is to be told of `tf` with `status` at `now`, where `told` is what arrived.
pub fn due(
    tf: &Terraform,
    status: &TerraformStatus,
    settings: &Settings,
    told: &Told,
    now: Timestamp,
) -> Vec<Notice> {
    let news = |notice: &Notice| {
        is_wanted(tf, settings, notice.event)
            && told.get(&notice.event) != Some(&notice.id)
            && now.duration_since(notice.at) < NEWS
    };
    let mut all = standing(tf, status);
    all.retain(news);
    all
}

/// How things stand with `tf`, as far as others want to know.
fn standing(tf: &Terraform, status: &TerraformStatus) -> Vec<Notice> {
    let mut conditions = status.conditions.iter();
    let Some(ready) = conditions.find(|it| it.type_ == "Ready") else {
        return Vec::new();
    };
    let look = Look { tf, status, ready };
    [
        look.approval_needed(),
        look.succeeded(),
        look.failed(),
        look.drifted(),
        look.stalled(),
        look.destroyed(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

struct Look<'a> {
    tf: &'a Terraform,
    status: &'a TerraformStatus,
    ready: &'a Condition,
}

impl Look<'_> {
    fn approval_needed(&self) -> Option<Notice> {
        let plan = self.status.plan.as_ref();
        let plan = plan.filter(|plan| plan.pending_approval && self.ready.reason == AWAITING)?;
        let what = [plan.id.clone().unwrap_or_default()];
        Some(self.notice(NotificationEvent::ApprovalNeeded, self.since(), &what))
    }

    fn succeeded(&self) -> Option<Notice> {
        let applied = self.status.last_applied.as_ref();
        let applied = applied.filter(|_| self.ready.status == "True")?;
        let at = applied.time.0;
        let what = [at.to_string(), applied.config_hash.clone()];
        Some(self.notice(NotificationEvent::Succeeded, at, &what))
    }

    /// One for each thing that fails, however often it is tried.
    fn failed(&self) -> Option<Notice> {
        let failed = self.ready.status == "False" && self.status.state == State::Failed;
        failed.then(|| self.notice(NotificationEvent::Failed, self.since(), &self.subject()))
    }

    fn drifted(&self) -> Option<Notice> {
        let since = self.status.drift.as_ref()?.since.0;
        let no_end = self.ready.reason == NOT_CONVERGING;
        let what = [since.to_string(), no_end.to_string()];
        Some(self.notice(NotificationEvent::Drifted, since, &what))
    }

    fn stalled(&self) -> Option<Notice> {
        let mut conditions = self.status.conditions.iter();
        let stalled = conditions.find(|it| it.type_ == "Stalled" && it.status == "True")?;
        let at = stalled.last_transition_time.0;
        let mut what = self.subject();
        what.push(at.to_string());
        Some(self.notice(NotificationEvent::Stalled, at, &what))
    }

    fn destroyed(&self) -> Option<Notice> {
        let at = self.tf.metadata.deletion_timestamp.as_ref();
        let at = at.filter(|_| self.ready.reason == DESTROYED)?;
        // What was deleted long ago may be destroyed only now.
        let at = at.0.max(self.since());
        Some(self.notice(NotificationEvent::Destroyed, at, &[]))
    }

    /// When a run last told something, or when `Ready` changed.
    fn since(&self) -> Timestamp {
        let run = self.status.runs.first().and_then(|run| run.time.as_ref());
        let changed = self.ready.last_transition_time.0;
        run.map_or(changed, |time| time.0.max(changed))
    }

    /// What something is about that goes wrong: it is the same until somebody changes something, or it
    /// went well meanwhile.
    fn subject(&self) -> Vec<String> {
        let Self { tf, status, ready } = self;
        let applied = status.last_applied.as_ref().map(|it| it.time.0.to_string());
        let source = status.source.as_ref().map(|it| it.revision.clone());
        vec![
            ready.reason.clone(),
            tf.metadata.generation.unwrap_or_default().to_string(),
            source.unwrap_or_default(),
            applied.unwrap_or_default(),
        ]
    }

    fn notice(&self, event: NotificationEvent, at: Timestamp, what: &[String]) -> Notice {
        let Self { tf, status, ready } = self;
        let (namespace, name) = (tf.namespace().unwrap_or_default(), tf.name_any());
        let uid = tf.uid().unwrap_or_default();
        let id = digest::plain(&(&uid, event, what));
        let id = id.get(..32).unwrap_or(&id).to_owned();
        let word = event.to_string().to_lowercase();
        let plan = status.plan.as_ref().map(|plan| {
            json!({
                "id": plan.id, "add": plan.add, "change": plan.change, "destroy": plan.destroy,
            })
        });
        let drift = status.drift.as_ref().map(
            |drift| json!({"add": drift.add, "change": drift.change, "destroy": drift.destroy}),
        );
        let message = json!({
            "specversion": "1.0",
            "id": id,
            "source": format!("/apis/alustan.io/v1alpha1/namespaces/{namespace}/terraforms/{name}"),
            "type": format!("io.alustan.terraform.{word}"),
            "subject": format!("{namespace}/{name}"),
            "time": at.to_string(),
            "datacontenttype": "application/json",
            "data": {
                "event": event,
                "namespace": namespace,
                "name": name,
                "uid": uid,
                "state": status.state,
                "ready": ready.status,
                "reason": ready.reason,
                "message": status.message,
                "revision": status.source.as_ref().map(|source| &source.revision),
                "run": status.run,
                "plan": plan,
                "drift": drift,
            },
        });
        Notice {
            event,
            id,
            at,
            message,
        }
    }
}
