//! Removal of the finalizer.

use alustan_api::{FINALIZER, Terraform};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, PartialObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::call::{StatusKind, call, has_status, ignore_not_found, stored_metadata};
use crate::error::Error;
use crate::unreadable::dynamic_api;

/// Removes the finalizer of the operator from `tf`, regardless of its field managers: an apply would keep the finalizer if another manager owns it.
///
/// # Errors
/// [`Error::Conflict`] if the stored resource has another uid, generation or list of finalizers than `tf`.
pub(super) async fn remove(client: &Client, tf: &Terraform) -> Result<(), Error> {
    let version = tf.resource_version().unwrap_or_default();
    let mut result = remove_at(client, tf, &version).await;
    if let Err(Error::Conflict) = result
        && let Some(version) = version_if_only_status_changed(client, tf).await?
    {
        result = remove_at(client, tf, &version).await;
    }
    result
}

/// Returns the stored resource version if uid, generation and finalizers are those of `tf`. The watch cache may lack the last update of the status
/// by the operator. A conflict because of such an update must not end the reconcile: its earlier steps have deleted the run record.
async fn version_if_only_status_changed(
    client: &Client,
    tf: &Terraform,
) -> Result<Option<String>, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let stored = stored_metadata(client, &namespace, &tf.name_any()).await?;
    let compared = |meta: &ObjectMeta| (meta.uid.clone(), meta.generation, meta.finalizers.clone());
    Ok(stored
        .filter(|stored| compared(stored) == compared(&tf.metadata))
        .and_then(|stored| stored.resource_version))
}

/// Removes the finalizer if the stored resource has resource version `version`. If the API server refuses the patch because the stored spec is
/// invalid, also replaces the stored spec with the spec of `tf`, which is valid: the destroy run used it.
async fn remove_at(client: &Client, tf: &Terraform, version: &str) -> Result<(), Error> {
    let metadata = json!({
        "uid": tf.uid(), "resourceVersion": version, "finalizers": other_finalizers(tf),
    });
    let merge_patch = Patch::Merge(json!({ "metadata": metadata }));
    let mut result = patch_metadata(client, tf, &merge_patch).await;
    if let Err(Error::Call { source, .. }) = &result
        && has_status(source, StatusKind::Invalid)
        && let Ok(patch) = serde_json::from_value(replacing_patch(tf, version))
    {
        result = patch_metadata(client, tf, &Patch::Json(patch)).await;
    }
    match result {
        Err(Error::Call { source, .. }) if has_status(&source, StatusKind::Conflict) => {
            Err(Error::Conflict)
        }
        result => ignore_not_found(result),
    }
}

/// Returns the JSON patch that removes the finalizer and replaces the spec: a merge patch would keep the fields that the API server
/// refuses.
fn replacing_patch(tf: &Terraform, version: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": tf.uid()},
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/spec", "value": tf.spec},
        {"op": "add", "path": "/metadata/finalizers", "value": other_finalizers(tf)},
    ])
}

fn other_finalizers(tf: &Terraform) -> Vec<&String> {
    let all = tf.finalizers().iter();
    all.filter(|finalizer| *finalizer != FINALIZER).collect()
}

async fn patch_metadata(
    client: &Client,
    tf: &Terraform,
    patch: &Patch<Value>,
) -> Result<PartialObjectMeta<DynamicObject>, Error> {
    let api = dynamic_api(client, &tf.namespace().unwrap_or_default());
    let (name, parameters) = (tf.name_any(), PatchParams::default());
    let request = api.patch_metadata(&name, &parameters, patch);
    call("remove the finalizer", request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{self, RecordedRequest};

    fn deleted() -> Terraform {
        let resource = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {
                "name": "web", "namespace": "team", "uid": "u", "resourceVersion": "7",
                "finalizers": [FINALIZER, "of.another/one"],
            },
            "spec": {
                "gitRepo": {"url": "https://git.test/infra"},
                "containerRegistry": {"imageName": "registry.test/web"},
            },
        });
        serde_json::from_value(resource).unwrap()
    }

    fn invalid(request: &RecordedRequest) -> (u16, Value) {
        if request.content_type == "application/json-patch+json" {
            return (200, json!({"metadata": {"name": "web"}}));
        }
        let status = json!({
            "kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422,
            "message": "spec.retry: Invalid value",
        });
        (422, status)
    }

    #[tokio::test]
    async fn finalizer_is_removed_from_a_resource_with_an_invalid_spec() {
        let (client, requests) = fake_api::serve(invalid).await;
        let tf = deleted();
        remove(&client, &tf).await.unwrap();
        let requests = requests.lock();
        assert_eq!(requests[0].content_type, "application/merge-patch+json");
        assert_eq!(requests[0].body["metadata"]["resourceVersion"], "7");
        let changes = [
            json!({"op": "test", "path": "/metadata/uid", "value": "u"}),
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}),
            json!({"op": "add", "path": "/spec", "value": tf.spec}),
            json!({"op": "add", "path": "/metadata/finalizers", "value": ["of.another/one"]}),
        ];
        assert_eq!(requests[1].body, json!(changes));
    }

    /// Returns the result of a removal while the stored resource has resource version 8 and this generation.
    async fn removal_with_stored(generation: i64) -> Result<(), Error> {
        let respond = move |request: &RecordedRequest| {
            let stored = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {
                    "name": "web", "uid": "u", "resourceVersion": "8", "generation": generation,
                    "finalizers": [FINALIZER, "of.another/one"],
                },
            });
            let is_stale = request.body["metadata"]["resourceVersion"] == "7";
            if is_stale {
                return (
                    409,
                    json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409}),
                );
            }
            (200, stored)
        };
        let (client, _) = fake_api::serve(respond).await;
        let mut tf = deleted();
        tf.metadata.generation = Some(2);
        remove(&client, &tf).await
    }

    #[tokio::test]
    async fn update_of_the_status_does_not_prevent_the_removal() {
        removal_with_stored(2).await.unwrap();
        let changed = removal_with_stored(3).await;
        assert!(matches!(changed, Err(Error::Conflict)), "{changed:?}");
    }
}
