//! Status and events: what people see.

pub(crate) mod events;

use alustan_api::{FIELD_MANAGER, Terraform, TerraformStatus};
use alustan_core::status::patch::{leftovers, replacing};
use alustan_core::status::render::bounded;
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::args::Driver;
use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::observe::session::Observer;
use crate::report::events::publish;

/// Tells others of `status`; writes it if it says something new, and an event for each change that people
/// watch for. The
/// API server takes no status for a resource that nobody can read: events tell alone. A status has
/// one owner: where metacontroller drives, it is remembered for the answer, and metacontroller writes
/// it.
pub(crate) async fn report(session: &Observer<'_>, status: TerraformStatus) -> Result<(), Error> {
    let Observer { cx, tf, who, .. } = *session;
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
    for event in alustan_core::status::events::events(tf.status.as_ref(), status) {
        publish(&cx.client, &cx.instance, &tf.object_ref(&()), event).await;
    }
}
