//! Notifications about a resource.

use std::fmt;

use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::references::NameRef;

/// Receiver of notifications. The operator sends one message per event: a CloudEvent 1.0 in JSON, by POST. It retries each message for one
/// hour, and a `Destroyed` message for one minute, until the receiver responds with 2xx. A message may be delivered more than once, with
/// the same `id`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) || has(self.secretRef)").message("url or secretRef must be set"))]
pub struct Notification {
    /// URL of the receiver. Example: `https://events.example.com/terraform`. If the URL is a secret, set the key `url` of the Secret in
    /// `secretRef` instead. The key takes precedence over this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^https?://[^/ ]+')").message("must be a URL such as https://events.example.com/terraform"))]
    pub url: Option<String>,

    /// Secret in the namespace of the resource. The key `secret` (`whsec_` and base64) signs each message, as specified in
    /// <https://www.standardwebhooks.com>. The key `secret` is required if the field `url` is set. The key `url` is the URL of the receiver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<NameRef>,

    /// Events that are sent to the receiver. Default: all events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub events: Vec<NotificationEvent>,
}

impl Notification {
    /// Whether `event` is sent to this receiver.
    pub fn tells(&self, event: NotificationEvent) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }
}

/// Event that causes a notification.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
pub enum NotificationEvent {
    /// A plan waits for approval.
    ApprovalNeeded,
    /// An apply changed real objects. Corrections of drift are included.
    Succeeded,
    /// A run, a build, or a request to the repository, the registry or the API server failed and is retried. Sent once per configuration
    /// and reason.
    Failed,
    /// The real objects differ from the configuration.
    Drifted,
    /// The operator does not retry until the resource, the repository or the cluster changes. Not sent if the cause is `suspend` or
    /// `deletionProtection`.
    Stalled,
    /// Every managed object is destroyed. Sent before the operator removes the finalizer.
    Destroyed,
}

impl NotificationEvent {
    /// Every event.
    pub const ALL: [Self; 6] = [
        Self::ApprovalNeeded,
        Self::Succeeded,
        Self::Failed,
        Self::Drifted,
        Self::Stalled,
        Self::Destroyed,
    ];
}

impl fmt::Display for NotificationEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
