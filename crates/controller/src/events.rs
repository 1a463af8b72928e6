//! Publishes Kubernetes events.

use alustan_core::status::events;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use tracing::{info, warn};

use crate::call::call;

/// `reportingController` of events, shown by `kubectl describe`.
pub(crate) const CONTROLLER: &str = "alustan";

/// Maximum size of an event note, in bytes
/// (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>).
pub(crate) const MAX_NOTE_BYTES: usize = 1024;

/// Publishes `event` about `object`. A failure is logged only. Each event is a separate object, not part of an event series, because a
/// series shows only the note of its first event. `instance` is the `reportingInstance`.
pub(crate) async fn publish(
    client: &Client,
    instance: &str,
    object: &ObjectReference,
    event: events::Event,
) {
    let events::Event {
        warning,
        reason,
        note,
    } = event;
    let name = object.name.as_deref().unwrap_or_default();
    if warning {
        warn!(resource = name, namespace = object.namespace, reason, note);
    } else {
        info!(resource = name, namespace = object.namespace, reason, note);
    }
    let now = Timestamp::now();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            ..ObjectMeta::default()
        },
        action: Some(reason.clone()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(note)),
        reason: Some(reason),
        regarding: Some(object.clone()),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    };
    let namespace = object.namespace.as_deref().unwrap_or("default");
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let published = call(
        "publish an event",
        api.create(&PostParams::default(), &event),
    )
    .await;
    if let Err(error) = published {
        warn!(error = error.chain(), "failed to publish an event");
    }
}

pub(crate) fn cut(mut note: String) -> String {
    if note.len() > MAX_NOTE_BYTES {
        let end = (0..MAX_NOTE_BYTES)
            .rev()
            .find(|end| note.is_char_boundary(*end));
        note.truncate(end.unwrap_or_default());
    }
    note
}
