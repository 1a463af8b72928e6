//! Status and events: what people see.

use alustan_api::{FIELD_MANAGER, Terraform, TerraformStatus};
use alustan_core::events;
use alustan_core::leftovers::{leftovers, replacing};
use alustan_core::status::bounded;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::config::Driver;
use crate::context::Context;
use crate::enact::call;
use crate::error::Error;
use crate::observe::Session;

/// Who tells, as `kubectl describe` shows it.
const CONTROLLER: &str = "alustan";

/// Events carry at most this many bytes
/// (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>).
const LONGEST_NOTE: usize = 1024;

/// Tells others of `status`; writes it if it says something new, and an event for each change that people
/// watch for. The
/// API server takes no status for a resource that nobody can read: events tell alone. A status has
/// one owner: where metacontroller drives, it is remembered for the answer, and metacontroller writes
/// it.
pub(crate) async fn report(session: &Session<'_>, status: TerraformStatus) -> Result<(), Error> {
    let Session { cx, tf, who, .. } = *session;
    let status = bounded(status);
    cx.notifier.tell(who, tf, &status);
    let previous = tf.status.as_ref();
    if previous != Some(&status) {
        if session.unreadable.is_none() && cx.driver == Driver::Native {
            write(cx, tf, &status).await?;
        }
        tell(cx, tf, &status).await;
    }
    cx.memory.set_status(who, status);
    Ok(())
}

async fn write(cx: &Context, tf: &Terraform, status: &TerraformStatus) -> Result<(), Error> {
    let api: Api<Terraform> =
        Api::namespaced(cx.client.clone(), &tf.namespace().unwrap_or_default());
    let body = json!({
        "apiVersion": Terraform::api_version(&()), "kind": Terraform::kind(&()),
        "metadata": {"name": tf.name_any()}, "status": status,
    });
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(&body);
    let name = tf.name_any();
    let written = api.patch_status(&name, &parameters, &patch);
    let written = match call("write the status", written).await {
        // Of a part of it that goes, some fields are metacontroller's and would stay.
        Err(error) if error.is_invalid() => {
            let status = instead(tf, status);
            let patch = Patch::Merge(json!({"metadata": {"uid": tf.uid()}, "status": status}));
            let parameters = PatchParams::default();
            let written = api.patch_status(&name, &parameters, &patch);
            call("replace the status", written).await?
        }
        written => written?,
    };
    let Some(others) = written.status.and_then(|it| left(&it, status)) else {
        return Ok(());
    };
    let patch = Patch::Merge(json!({"metadata": {"uid": tf.uid()}, "status": others}));
    let parameters = PatchParams::default();
    let cleared = api.patch_status(&name, &parameters, &patch);
    call("clear the status", cleared).await.map(drop)
}

/// The patch that makes the status of `tf` what is `said`.
fn instead(tf: &Terraform, said: &TerraformStatus) -> Value {
    replacing(&json!(tf.status), &json!(said))
}

/// The patch that takes what is not in `said` out of what is `written`.
fn left(written: &TerraformStatus, said: &TerraformStatus) -> Option<Value> {
    let [written, said] = [written, said].map(serde_json::to_value);
    leftovers(&written.ok()?, &said.ok()?)
}

/// Publishes what is new in `status`.
pub(crate) async fn tell(cx: &Context, tf: &Terraform, status: &TerraformStatus) {
    for event in events::events(tf.status.as_ref(), status) {
        publish(&cx.client, &cx.instance, &tf.object_ref(&()), event).await;
    }
}

/// Publishes `event` about `object`; one that cannot be published is worth a line in the log. Each is
/// an object of its own: a series would repeat its first note, whatever happened since. `instance` tells.
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
        warn!(error = error.chain(), "could not publish an event");
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
