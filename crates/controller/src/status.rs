//! Writes the status of a resource, and publishes the events and notifications of its changes.

pub(crate) mod failure;

use std::time::Duration;

use alustan_api::{FIELD_MANAGER, Terraform, TerraformStatus};
use alustan_core::status::patch::{removed_fields, replacing};
use alustan_core::status::render::bounded;
use alustan_core::status::short_lived::is_short_lived;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::Driver;
use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::events::publish;
use crate::reconciliation::Reconciliation;
use crate::write_through_cache::parse_version;

/// Time for which a status that may be short-lived is not written.
pub(crate) const STATUS_DELAY: Duration = Duration::from_secs(1);

/// Publishes `status`: sends notifications, and if the status changed, patches it and creates an event for each relevant change. Does not patch the
/// status of an unreadable resource, because the API server would refuse the patch. With metacontroller as driver, does not patch the status, but
/// stores it for the response: metacontroller writes it. Does nothing for the first [`STATUS_DELAY`] of a status that another one will probably
/// replace ([`is_short_lived`]). Then returns the maximum time until the next reconcile.
///
/// # Errors
/// If the status cannot be written.
pub(crate) async fn report(
    reconciliation: &Reconciliation<'_>,
    status: TerraformStatus,
) -> Result<Option<Duration>, Error> {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    let status = bounded(status);
    if let Some(wait) = delay(reconciliation, &status) {
        return Ok(Some(wait));
    }
    ctx.memory.release_status(resource);
    ctx.notifier.notify(resource, tf, &status);
    let previous = tf.status.as_ref();
    if previous != Some(&status) {
        let writes = reconciliation.unreadable.is_none() && ctx.driver == Driver::Native;
        let written_version = if writes {
            Some(write(ctx, tf, &status).await?)
        } else {
            None
        };
        publish_events(ctx, tf, &status).await;
        ctx.memory.set_status(resource, status, written_version);
    }
    Ok(None)
}

/// Returns how long `status` is not written yet. `None`: it is written at once.
fn delay(reconciliation: &Reconciliation<'_>, status: &TerraformStatus) -> Option<Duration> {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    let previous = tf.status.as_ref();
    let may_wait = ctx.driver == Driver::Native
        && previous != Some(status)
        && is_short_lived(previous, status);
    may_wait
        .then(|| ctx.memory.hold_status(resource, ctx.clock.now()))
        .and_then(|held| STATUS_DELAY.checked_sub(held))
        .filter(|wait| !wait.is_zero())
}

/// Written resource. Spec and managed fields, the largest parts of a response, are not parsed.
#[derive(Deserialize)]
struct WrittenResource {
    metadata: WrittenMetadata,
    status: Option<TerraformStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMetadata {
    resource_version: Option<String>,
}

impl WrittenResource {
    fn version(&self) -> u64 {
        parse_version(self.metadata.resource_version.as_deref())
    }
}

/// Writes the status. Returns the resource version of the write.
async fn write(ctx: &Context, tf: &Terraform, status: &TerraformStatus) -> Result<u64, Error> {
    let body = json!({
        "apiVersion": Terraform::api_version(&()), "kind": Terraform::kind(&()),
        "metadata": {"name": tf.name_any()}, "status": status,
    });
    let merge =
        |status: Value| Patch::Merge(json!({"metadata": {"uid": tf.uid()}, "status": status}));
    let written = match patch_status(ctx, tf, "patch the status", &Patch::Apply(body)).await {
        // Metacontroller may own fields of the previous status. An apply does not remove these fields, and the API server may refuse the result as
        // invalid. Then replace the status with a merge patch.
        Err(error) if error.is_invalid() => {
            let patch = merge(replacement_patch(tf, status));
            patch_status(ctx, tf, "replace the status", &patch).await?
        }
        written => written?,
    };
    let written_status = written.status.as_ref();
    let Some(stale_fields) = written_status.and_then(|written| stale_fields_patch(written, status))
    else {
        return Ok(written.version());
    };
    let cleared = patch_status(ctx, tf, "clear the status", &merge(stale_fields)).await?;
    Ok(cleared.version())
}

async fn patch_status(
    ctx: &Context,
    tf: &Terraform,
    operation: &str,
    patch: &Patch<Value>,
) -> Result<WrittenResource, Error> {
    let parameters = match patch {
        Patch::Apply(_) => PatchParams::apply(FIELD_MANAGER).force(),
        _ => PatchParams::default(),
    };
    let url = Terraform::url_path(&(), tf.metadata.namespace.as_deref());
    let request = Request::new(url)
        .patch_subresource("status", &tf.name_any(), &parameters, patch)
        .map_err(kube::Error::BuildRequest);
    call(operation, async { ctx.client.request(request?).await }).await
}

/// Returns the merge patch that replaces the status of `tf` by `status`.
fn replacement_patch(tf: &Terraform, status: &TerraformStatus) -> Value {
    replacing(&json!(tf.status), &json!(status))
}

/// Returns the merge patch that removes the fields of `written` that `status` does not have. `None`: there are no such fields.
fn stale_fields_patch(written: &TerraformStatus, status: &TerraformStatus) -> Option<Value> {
    if written == status {
        return None;
    }
    let [written, status] = [written, status].map(serde_json::to_value);
    removed_fields(&written.ok()?, &status.ok()?)
}

/// Publishes an event for each relevant change from the status of `tf` to `status`.
pub(crate) async fn publish_events(ctx: &Context, tf: &Terraform, status: &TerraformStatus) {
    for event in alustan_core::status::events::events(tf.status.as_ref(), status) {
        publish(&ctx.client, &ctx.instance, &tf.object_ref(&()), event).await;
    }
}
