//! A resource whose spec or status is not what its type says: while it lives a person is told, and
//! once it is deleted its metadata and its pin suffice (rule 13).

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

/// All that can be said of one that is not deleted.
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

/// What keeps a deleted one from being destroyed by its spec, where its pin is gone, too.
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

/// The deleted resource `invalid`, as far as it can be read, and as it was applied for the rest. Its
/// metadata is the API server's: by an older one, a resource that was let go would be kept again.
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

/// The resources of `namespace` as they are stored.
pub(crate) fn unread(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<Terraform>(&());
    Api::namespaced_with(client.clone(), namespace, &kind)
}

/// Metadata and fields that the API server has of the resource with the `known` metadata; no
/// finalizer holds one that is gone.
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
