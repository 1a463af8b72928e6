//! Removal of the finalizer.

use alustan_api::{FINALIZER, Terraform};
use kube::api::{DynamicObject, PartialObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::call::{StatusKind, call, has_status, ignore_not_found};
use crate::error::Error;
use crate::unreadable::dynamic_api;

/// Removes the finalizer of the operator from `tf`, regardless of its field managers: an apply would keep the finalizer if another manager owns it.
/// If the API server refuses the patch because the stored spec is invalid, also replaces the stored spec with the spec of `tf`, which is valid: the
/// destroy run used it.
pub(super) async fn remove(client: &Client, tf: &Terraform) -> Result<(), Error> {
    let metadata = json!({
        "uid": tf.uid(), "resourceVersion": tf.resource_version(), "finalizers": other_finalizers(tf),
    });
    let merge_patch = Patch::Merge(json!({ "metadata": metadata }));
    let mut result = patch_metadata(client, tf, &merge_patch).await;
    if let Err(Error::Call { source, .. }) = &result
        && has_status(source, StatusKind::Invalid)
        && let Ok(patch) = serde_json::from_value(replacing_patch(tf))
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
fn replacing_patch(tf: &Terraform) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": tf.uid()},
        {"op": "test", "path": "/metadata/resourceVersion", "value": tf.resource_version()},
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
}
