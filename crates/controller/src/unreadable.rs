//! Unreadable resources: this version of the operator cannot parse their spec or status. The operator reports an unreadable resource in an
//! event. If an unreadable resource is deleted, destroy uses the metadata, the readable fields and the pin (rule 13).

use std::collections::BTreeMap;

use alustan_api::report::Failure;
use alustan_api::{Reason, Terraform, json_size};
use alustan_core::model::lenient::parse_leniently;
use alustan_core::status::events::Event;
use kube::api::{Api, ApiResource, DynamicObject, GetParams, ObjectMeta, Request};
use kube::core::error_boundary::InvalidObject;
use kube::{Client, Resource as _};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tracing::error;

use crate::call::{StatusKind, call, has_status};
use crate::context::Context;
use crate::error::Error;
use crate::events::publish;
use crate::lenient::Lenient;
use crate::observe::pin;
use crate::resource::{Guarded, Ref};

/// Reports in the log and in an event that the resource `invalid` cannot be read.
pub(crate) async fn report(ctx: &Context, resource: &Ref, invalid: &InvalidObject) {
    error!(resource = %resource, error = invalid.error, "unreadable resource");
    let object = Guarded(Err(invalid.clone())).object_ref(&());
    publish(&ctx.client, &ctx.instance, &object, event(&invalid.error)).await;
}

/// Returns the event for a resource that this version of the operator cannot read.
fn event(error: &str) -> Event {
    Event {
        warning: true,
        reason: Reason::ResourceUnreadable.into(),
        note: format!(
            "this version of the operator cannot read the resource: {error}. Correct the resource, \
             or run the version of the operator that the resource was written for; reconciliation \
             resumes automatically once this is fixed"
        ),
    }
}

/// Returns the failure of a deleted resource that this version of the operator cannot read and that has no pin. Destroy cannot run for this
/// resource.
pub(crate) fn failure(error: &str) -> Failure {
    Failure::user(
        Reason::ResourceUnreadable,
        format!(
            "this version of the operator cannot read the resource: {error}. The resource has no pin, \
             so destroy cannot run. Correct the resource, or run the version of the operator that the \
             resource was written for"
        ),
    )
}

/// Reads the unreadable resource `invalid`, if it is being deleted: the metadata and the readable fields from the API server, all other fields from
/// the pin. `None` if the resource is not being deleted, or if too few fields are readable. Ignores the metadata in the watch cache, which may be older and still contain a finalizer that has been removed.
pub(crate) async fn read_deleted(
    ctx: &Context,
    invalid: &InvalidObject,
) -> Result<Option<Terraform>, Error> {
    if invalid.metadata.deletion_timestamp.is_none() {
        return Ok(None);
    }
    let (metadata, stored) = stored(ctx, &invalid.metadata).await?;
    let Some(minimal) = parse_leniently(metadata.clone(), &stored, None) else {
        return Ok(None);
    };
    let pin = Box::pin(pin(ctx, &minimal)).await?;
    Ok(parse_leniently(metadata, &stored, pin.as_ref()))
}

/// Returns an [`Api`] that reads the resources in `namespace` as [`DynamicObject`]s.
pub(crate) fn dynamic_api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<Terraform>(&());
    Api::namespaced_with(client.clone(), namespace, &kind)
}

/// Resource as the API server returns it. The fields of the spec, and the status, are unparsed JSON.
#[derive(Deserialize)]
struct StoredResource {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: BTreeMap<String, Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

impl StoredResource {
    /// Parses spec and status. Skips fields with more than [`json_size::VALUES`] JSON values.
    fn fields(&self) -> Value {
        let spec = self.spec.iter();
        let spec: Map<_, _> = spec
            .filter_map(|(field, text)| Some((field.clone(), parsed(text)?)))
            .collect();
        json!({"spec": spec, "status": self.status.as_deref().and_then(parsed)})
    }
}

fn parsed(text: &RawValue) -> Option<Value> {
    let text = Some(text.get()).filter(|text| json_size::is_small(text.as_bytes()));
    serde_json::from_str(text?).ok()
}

/// Reads metadata, spec and status of the resource with this `metadata` from the API server. If the resource no longer exists, returns
/// `metadata` without finalizers.
async fn stored(ctx: &Context, metadata: &ObjectMeta) -> Result<(ObjectMeta, Value), Error> {
    let path = Terraform::url_path(&(), metadata.namespace.as_deref());
    let name = metadata.name.as_deref().unwrap_or_default();
    let request = Request::new(path).get(name, &GetParams::default());
    let read = async {
        let request = request.map_err(kube::Error::BuildRequest)?;
        match ctx.client.request::<Lenient<_>>(request).await {
            Err(error) if has_status(&error, StatusKind::NotFound) => Ok(None),
            result => result.map(|object| Some(object.0)),
        }
    };
    let object: Option<StoredResource> = call("read the resource", read).await?;
    let object = object.filter(|object| object.metadata.uid == metadata.uid);
    let without_finalizers = || ObjectMeta {
        finalizers: None,
        ..metadata.clone()
    };
    Ok(match object {
        None => (without_finalizers(), json!({})),
        Some(object) => {
            let fields = object.fields();
            (object.metadata, fields)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeply_nested_fields_are_not_parsed() {
        let nested = (0..1_000).fold(json!({}), |value, _| json!({"f:a": value}));
        let text = json!({
            "metadata": {"name": "web", "managedFields": [{"manager": "kubectl", "fieldsV1": nested}]},
            "spec": {"suspend": true, "variables": {"a": nested}},
        });
        let Lenient::<StoredResource>(stored) = serde_json::from_str(&text.to_string()).unwrap();
        assert_eq!(stored.metadata.name.as_deref(), Some("web"));
        assert_eq!(
            stored.fields(),
            json!({"spec": {"suspend": true}, "status": null})
        );
    }

    #[test]
    fn fields_with_too_many_values_are_not_parsed() {
        let many = vec![json!({"": 0}); json_size::VALUES];
        let text = json!({
            "metadata": {"name": "web"}, "spec": {"suspend": true, "variables": {"a": many}},
        });
        let stored: StoredResource = serde_json::from_str(&text.to_string()).unwrap();
        assert_eq!(
            stored.fields(),
            json!({"spec": {"suspend": true}, "status": null})
        );
    }
}
