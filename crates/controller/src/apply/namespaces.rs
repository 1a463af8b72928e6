//! Sets label `alustan.io/holds-state` on namespaces that contain pins or states. An admission policy refuses the deletion of namespaces
//! with this label.

use std::fmt::Debug;
use std::time::Duration;

use alustan_api::labels::{self, Component};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::call::{call, ignore_not_found};
use crate::error::Error;

/// Minimum interval between two requests that label the same namespace.
pub(super) const LABEL_TTL: Duration = Duration::from_mins(10);

/// Adds label `alustan.io/holds-state` to `namespace`.
pub(super) async fn add_label(client: &Client, namespace: &str) -> Result<(), Error> {
    set_label(client, namespace, Some("true")).await
}

/// Removes label `alustan.io/holds-state` from `namespace` if the namespace contains no pin, managed state or orphaned state. Checks again after
/// the removal, and restores the label if a pin or state was created in between.
pub(super) async fn remove_label(client: &Client, namespace: &str) -> Result<(), Error> {
    if holds_state(client, namespace).await? {
        return Ok(());
    }
    set_label(client, namespace, None).await?;
    if holds_state(client, namespace).await? {
        add_label(client, namespace).await?;
    }
    Ok(())
}

async fn holds_state(client: &Client, namespace: &str) -> Result<bool, Error> {
    let state_selector = format!(
        "{}={},{} in ({},{})",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::COMPONENT,
        Component::Pin.as_str(),
        Component::State.as_str()
    );
    // The only copy of an orphaned state may be in state Secrets, on a cache volume, or in a run report.
    let orphaned_selector = format!(
        "{}={},{}",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::ORPHANED
    );
    Ok(has_any::<Secret>(client, namespace, &state_selector).await?
        || has_any::<Secret>(client, namespace, &orphaned_selector).await?
        || has_any::<PersistentVolumeClaim>(client, namespace, &orphaned_selector).await?)
}

/// Whether `namespace` has objects that `selector` selects.
async fn has_any<K>(client: &Client, namespace: &str, selector: &str) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug,
{
    let parameters = ListParams::default().labels(selector).limit(1);
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let operation = format!("list {}s that contain state", K::kind(&()));
    let page = call(&operation, api.list_metadata(&parameters)).await?;
    Ok(!page.items.is_empty())
}

/// Sets label `alustan.io/holds-state` to `value`; `None` removes the label. Uses a merge patch, because an apply would create a deleted
/// namespace again.
async fn set_label(client: &Client, namespace: &str, value: Option<&str>) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let body = json!({"metadata": {"labels": {labels::HOLDS_STATE: value}}});
    let operation = format!("label namespace {namespace}");
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(&body));
    ignore_not_found(
        call(
            &operation,
            api.patch_metadata(namespace, &parameters, &patch),
        )
        .await,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::{self, RecordedRequest, RequestLog, list, not_found};

    /// Calls `remove_label` and returns the label values in its patches. `remove_label` checks the namespace twice: `counts` has the number of pins
    /// that the fake API server returns for each check.
    async fn patched_labels(counts: [usize; 2]) -> Vec<Value> {
        let mut state_counts = counts.into_iter();
        let (client, requests) = fake_api::serve(move |request| {
            let secret = json!({"metadata": {"name": "of-another"}});
            match request.method.as_str() {
                "GET" if request.uri.contains("pin") => {
                    list(&vec![secret; state_counts.next().unwrap()])
                }
                "GET" => list(&[]),
                _ => (200, json!({"metadata": {"name": "team"}})),
            }
        })
        .await;
        remove_label(&client, "team").await.unwrap();
        let requests = requests.lock();
        let patches = requests.iter().filter(|request| request.method == "PATCH");
        let label = |request: &RecordedRequest| {
            request.body["metadata"]["labels"][labels::HOLDS_STATE].clone()
        };
        patches.map(label).collect()
    }

    #[tokio::test]
    async fn holds_state_label_is_removed_with_the_last_pin_or_state() {
        assert_eq!(patched_labels([0, 0]).await, [Value::Null]);
        assert_eq!(patched_labels([1, 1]).await, [] as [Value; 0]);
        assert_eq!(patched_labels([0, 1]).await, [Value::Null, json!("true")]);
    }

    fn assert_only_reads(requests: &RequestLog) {
        let requests = requests.lock();
        assert!(requests.iter().all(|request| request.method == "GET"));
    }

    #[tokio::test]
    async fn state_without_a_pin_keeps_the_holds_state_label() {
        let (client, requests) = fake_api::serve(|request| {
            let is_state_query = request.uri.contains("pin") && request.uri.contains("state");
            let state = json!({"metadata": {"name": "web-state"}});
            list(&vec![state; usize::from(is_state_query)])
        })
        .await;
        remove_label(&client, "team").await.unwrap();
        assert_only_reads(&requests);
    }

    #[tokio::test]
    async fn orphaned_state_keeps_the_holds_state_label() {
        for kind in ["/secrets?", "/persistentvolumeclaims?"] {
            let (client, requests) = fake_api::serve(move |request| {
                let is_query = request.uri.contains(kind) && request.uri.contains("orphaned");
                let object = json!({"metadata": {"name": "web-cache"}});
                list(&vec![object; usize::from(is_query)])
            })
            .await;
            remove_label(&client, "team").await.unwrap();
            assert_only_reads(&requests);
        }
    }

    #[tokio::test]
    async fn deleted_namespace_is_not_created_again() {
        let (client, requests) = fake_api::serve(|_| not_found()).await;
        add_label(&client, "team").await.unwrap();
        assert_eq!(
            requests.lock()[0].content_type,
            "application/merge-patch+json"
        );
    }
}
