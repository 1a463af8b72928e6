//! Deletion of the run record of a deleted resource that never had a run.

use alustan_api::labels::{self, Component};
use alustan_api::names;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::Api;
use tracing::{info, warn};

use crate::apply::delete::delete_version;
use crate::call::stored_metadata;
use crate::context::Context;
use crate::error::Error;
use crate::observe::record;
use crate::resource::{Ref, has_component};

/// Deletes the run record of `resource` if the resource no longer exists and never had a run. The API server may accept the finalizer while it
/// deletes a resource, and delete the resource nevertheless. No reconcile then cleans up, and the operator has already created the run record.
/// Keeps run records with runs, and those that this process did not create, for example of a backup: a restore creates them before the
/// resource.
pub(crate) async fn delete_unused_record(ctx: &Context, resource: &Ref) {
    if !ctx.leader.leads() || ctx.resources.contains(resource) {
        return;
    }
    match try_delete(ctx, resource).await {
        Ok(false) => {}
        Ok(true) => {
            info!(resource = %resource, "deleted the unused run record of a deleted resource");
        }
        Err(error) => warn!(
            resource = %resource,
            error = error.chain(),
            "failed to delete the unused run record of a deleted resource"
        ),
    }
}

/// Returns whether it deleted the run record.
async fn try_delete(ctx: &Context, resource: &Ref) -> Result<bool, Error> {
    let namespace = resource.namespace.as_deref().unwrap_or_default();
    let name = names::record(&resource.name);
    let is_record = |secret: &Secret| {
        has_component(secret, Component::Record)
            && !secret.labels().contains_key(labels::ORPHANED)
            && secret
                .uid()
                .is_some_and(|uid| ctx.memory.created_record(&uid))
    };
    let known = ctx.mirrors.known_secret(namespace, &name);
    if !known.is_some_and(|secret| is_record(&secret)) {
        return Ok(false);
    }
    let stored = ctx.mirrors.secret(&ctx.client, namespace, &name).await?;
    let Some(stored) = stored.filter(|secret| is_record(secret) && record::is_unused(ctx, secret))
    else {
        return Ok(false);
    };
    // The watch may not have reported a new resource of the same name yet. It takes over the run record.
    let existing = stored_metadata(&ctx.client, namespace, &resource.name).await?;
    if existing.is_some() {
        return Ok(false);
    }
    ctx.mirrors.secrets.forget(namespace, &name);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
    delete_version(&api, &*stored).await
}

#[cfg(test)]
mod tests {
    use alustan_api::run::{RunRecord, key};
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    use super::*;
    use crate::context_builder::{ContextParts, context_of_test};
    use crate::fake_api;
    use crate::indexed_store::indexed_store;
    use crate::mirrors::Mirrors;

    fn run_record(number: i64) -> Value {
        let record = RunRecord {
            number,
            ..RunRecord::default()
        };
        let encoded = ByteString(serde_json::to_vec(&record).unwrap());
        json!({
            "metadata": {
                "name": "web-run", "namespace": "team", "uid": "s", "resourceVersion": "7",
                "labels": {labels::UID: "u", labels::COMPONENT: Component::Record.as_str()},
            },
            "data": {key::RECORD: encoded},
        })
    }

    /// Returns the body of the deletion of the run record `record`, if the operator deletes it. A record with an annotation is not signed. The
    /// process has created the Secret with uid `s`.
    async fn deletion(record: Value, resource_exists: bool) -> Option<Value> {
        let (client, requests) = fake_api::serve(move |request| match &*request.method {
            "GET" if !resource_exists => fake_api::not_found(),
            _ => (200, json!({"metadata": {"name": "web"}})),
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let parts = ContextParts::of_test(client);
        let ctx = context_of_test(parts, folder.path(), Mirrors::empty(), indexed_store().0);
        let mut record: Secret = serde_json::from_value(record).unwrap();
        let is_signed = record.annotations().is_empty();
        if let Some(data) = record.data.as_mut().filter(|_| is_signed) {
            ctx.signer.sign("u", data);
        }
        ctx.memory.add_created_record(Some("s".to_owned()));
        ctx.mirrors.secrets.record_write(record);
        delete_unused_record(&ctx, &Ref::new("web").within("team")).await;
        let requests = requests.lock();
        let deletion = requests.iter().find(|request| request.method == "DELETE")?;
        assert!(deletion.uri.contains("/secrets/web-run"));
        Some(deletion.body.clone())
    }

    #[tokio::test]
    async fn only_records_without_runs_of_deleted_resources_are_deleted() {
        let body = deletion(run_record(0), false).await.expect("a deletion");
        let preconditions = json!({"uid": "s", "resourceVersion": "7"});
        assert_eq!(body["preconditions"], preconditions);
        assert_eq!(
            deletion(run_record(0), true).await,
            None,
            "the resource exists"
        );
        assert_eq!(deletion(run_record(1), false).await, None, "it had a run");
        let mut orphaned = run_record(0);
        orphaned["metadata"]["labels"][labels::ORPHANED] = json!("true");
        assert_eq!(deletion(orphaned, false).await, None, "it was kept");
        let mut foreign = run_record(0);
        foreign["metadata"]["labels"][labels::COMPONENT] = json!("state");
        assert_eq!(deletion(foreign, false).await, None, "no run record");
        let mut unsigned = run_record(0);
        unsigned["metadata"]["annotations"] = json!({"unsigned": "true"});
        assert_eq!(deletion(unsigned, false).await, None, "it is not signed");
        let mut restored = run_record(0);
        restored["metadata"]["uid"] = json!("other");
        assert_eq!(deletion(restored, false).await, None, "it was restored");
        let mut unreadable = run_record(0);
        unreadable["data"] = json!({});
        assert_eq!(deletion(unreadable, false).await, None, "no content");
    }
}
