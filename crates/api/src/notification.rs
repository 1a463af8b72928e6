//! Who is told what happens with a resource.

use std::fmt;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::references::NameRef;

/// A place that is told what happens, by one message for each event: a CloudEvent 1.0 in JSON, sent by
/// POST. It is tried for an hour until the place answers with 2xx; the same message may come twice, with the
/// same `id`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) || has(self.secretRef)").message("url or secretRef must be given: where is it sent?"))]
pub struct Notification {
    /// Where it is sent, for example `https://events.example.com/terraform`. The key `url` of the
    /// Secret wins, for addresses that are secrets themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^https?://[^/ ]+')").message("must be an address such as https://events.example.com/terraform"))]
    pub url: Option<String>,

    /// A Secret of this namespace. Its key `secret`, `whsec_` and base64, signs each message as
    /// <https://www.standardwebhooks.com> says, and must be there beside `url`; its key `url` is the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<NameRef>,

    /// The events that are told. Default: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub events: Vec<NotificationEvent>,
}

impl Notification {
    /// Whether `event` is told.
    pub fn tells(&self, event: NotificationEvent) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }
}

/// Something that people want to know.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema,
)]
pub enum NotificationEvent {
    /// A plan waits for a person.
    ApprovalNeeded,
    /// Something new was applied.
    Succeeded,
    /// A run or a build failed, or the API server refuses what the operator needs; it is tried again.
    Failed,
    /// The real objects differ from the configuration.
    Drifted,
    /// Nothing more happens until a person changes something; not where that is what a person wants
    /// (`suspend`, `deletionProtection`).
    Stalled,
    /// Everything was destroyed, and the resource is let go.
    Destroyed,
}

impl NotificationEvent {
    /// All of them.
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
