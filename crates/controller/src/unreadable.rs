//! Resources whose spec or status does not match the schema. While such a resource exists, an event reports it. Once it is deleted,
//! its metadata and its pin suffice (rule 13).

use alustan_api::Terraform;
use alustan_api::report::{Failure, FailureClass};
use alustan_core::decide::deletion::parse_leniently;
use alustan_core::status::events::Event;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta};
use kube::core::error_boundary::InvalidObject;
use serde_json::{Value, json};

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::observe::pin;

/// Returns the event of an unreadable resource that is not deleted.
pub(crate) fn event(error: &str) -> Event {
    Event {
        warning: true,
        reason: "ResourceUnreadable".to_owned(),
        note: format!(
            "this version of the operator cannot read the resource: {error}; edit it so that it can, \
             or run the version that made it; nothing is done until then"
        ),
    }
}

/// Returns the failure of a deleted, unreadable resource without a pin, which cannot be destroyed.
pub(crate) fn failure(error: &str) -> Failure {
    Failure {
        class: FailureClass::User,
        reason: "ResourceUnreadable".to_owned(),
        message: format!(
            "this version of the operator cannot read the resource, and it has no pin: {error}; \
             edit it so that it can be read, or run the version that made it"
        ),
    }
}

/// Reads the deleted resource `invalid`: readable fields from the API server, all others from the pin. The metadata comes from the
/// API server, because older metadata could still contain a finalizer that has been removed.
pub(crate) async fn read(
    cx: &Context,
    invalid: &InvalidObject,
) -> Result<Option<Terraform>, Error> {
    let (metadata, stored) = stored(cx, &invalid.metadata).await?;
    let Some(bare) = parse_leniently(metadata.clone(), &stored, None) else {
        return Ok(None);
    };
    let pin = pin(cx, &bare).await?;
    Ok(parse_leniently(metadata, &stored, pin.as_ref()))
}

/// Returns an API of the resources in `namespace` without a schema.
pub(crate) fn unread(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<Terraform>(&());
    Api::namespaced_with(client.clone(), namespace, &kind)
}

/// Reads metadata and fields of the resource with the `known` metadata from the API server. If the resource no longer exists, its
/// metadata has no finalizers.
async fn stored(cx: &Context, known: &ObjectMeta) -> Result<(ObjectMeta, Value), Error> {
    let api = unread(&cx.client, known.namespace.as_deref().unwrap_or_default());
    let name = known.name.as_deref().unwrap_or_default();
    let found = call("read the resource", api.get_opt(name)).await?;
    let found = found.filter(|found| found.metadata.uid == known.uid);
    let gone = || ObjectMeta {
        finalizers: None,
        ..known.clone()
    };
    Ok(found.map_or_else(|| (gone(), json!({})), |found| (found.metadata, found.data)))
}
