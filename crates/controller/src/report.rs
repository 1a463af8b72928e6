//! Status and events: what people see.

use alustan_api::{FIELD_MANAGER, Terraform, TerraformStatus};
use alustan_core::events;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tracing::warn;

use crate::Ref;
use crate::context::Context;
use crate::enact::call;
use crate::error::Error;

/// Events carry at most this many bytes
/// (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>).
const LONGEST_NOTE: usize = 1024;

/// Writes `status` if it says something new, and an event for each change that people watch for.
pub(crate) async fn report(
    cx: &Context,
    who: &Ref,
    tf: &Terraform,
    status: TerraformStatus,
) -> Result<(), Error> {
    let previous = tf.status.as_ref();
    if previous == Some(&status) {
        cx.memory.set_status(who, status);
        return Ok(());
    }
    let api: Api<Terraform> =
        Api::namespaced(cx.client.clone(), &tf.namespace().unwrap_or_default());
    let body = json!({
        "apiVersion": Terraform::api_version(&()), "kind": Terraform::kind(&()),
        "metadata": {"name": tf.name_any()}, "status": status,
    });
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(&body);
    call(
        "write the status",
        api.patch_status(&tf.name_any(), &parameters, &patch),
    )
    .await?;
    for event in events::events(previous, &status) {
        publish(cx, &tf.object_ref(&()), event).await;
    }
    cx.memory.set_status(who, status);
    Ok(())
}

/// Publishes `event` about `object`; one that cannot be published is worth a line in the log.
pub(crate) async fn publish(cx: &Context, object: &ObjectReference, event: events::Event) {
    let event = Event {
        type_: if event.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        action: event.reason.clone(),
        reason: event.reason,
        note: Some(cut(event.note)),
        secondary: None,
    };
    let published = call("publish an event", cx.recorder.publish(&event, object)).await;
    if let Err(error) = published {
        warn!(
            error = error.chain(),
            reason = event.reason,
            "could not publish an event"
        );
    }
}

fn cut(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        let end = (0..LONGEST_NOTE)
            .rev()
            .find(|end| note.is_char_boundary(*end));
        note.truncate(end.unwrap_or_default());
    }
    note
}
