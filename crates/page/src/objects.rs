//! Reads objects with the permissions of the user.

use std::cmp::Reverse;

use alustan_api::labels::{COMPONENT, Component, JOB_NAME, NAME, UID};
use alustan_api::names::{self, plan_key};
use alustan_api::run::Outputs;
use alustan_api::{ObjectKey, Terraform, TerraformRun, run_name};
use alustan_core::objects::outputs;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::access::{AccessReview, Viewer};
use crate::error::PageError;
use crate::kube_call::call;

/// Field manager of the writes of the page.
const FIELD_MANAGER: &str = "alustan-page";

/// Maximum number of records in one response, equal to the maximum of `spec.history.runs`.
const MAX_RUNS: u32 = 100;

/// Maximum number of resources of one namespace in the graph.
const MAX_RESOURCES: u32 = 2000;

/// Maximum length of the text of a plan from its Secret, in bytes.
const MAX_PLAN_TEXT_BYTES: usize = 1 << 20;

/// Reads the resource `key`.
pub(crate) async fn terraform(viewer: &Viewer, key: &ObjectKey) -> Result<Terraform, PageError> {
    let wanted = AccessReview::terraforms("get", Some(&key.namespace), Some(&key.name));
    let api: Api<Terraform> = api(viewer, &wanted, key).await?;
    call(&format!("read Terraform {key}"), api.get(&key.name)).await
}

/// Lists the resources of `namespace`, at most [`MAX_RESOURCES`], without those that this version cannot parse. Returns also whether there are more.
pub(crate) async fn terraforms(
    viewer: &Viewer,
    namespace: &str,
) -> Result<(Vec<Terraform>, bool), PageError> {
    let wanted = AccessReview::terraforms("list", Some(namespace), None);
    let key = ObjectKey::new(namespace, "");
    let api: Api<DeserializeGuard<Terraform>> = api(viewer, &wanted, &key).await?;
    let parameters = ListParams::default().limit(MAX_RESOURCES);
    let list = call(
        &format!("list Terraform resources of {namespace}"),
        api.list(&parameters),
    )
    .await?;
    let is_truncated = list
        .metadata
        .continue_
        .is_some_and(|token| !token.is_empty());
    let resources = list.items.into_iter().filter_map(|tf| tf.0.ok());
    Ok((resources.collect(), is_truncated))
}

/// Lists the records of the runs of `key`, newest first. `uid`: only those of the resource with this uid.
pub(crate) async fn runs(
    viewer: &Viewer,
    key: &ObjectKey,
    uid: Option<&str>,
) -> Result<Vec<TerraformRun>, PageError> {
    let api: Api<DeserializeGuard<TerraformRun>> =
        api(viewer, &AccessReview::runs("list", &key.namespace), key).await?;
    let component = Component::History.as_str();
    let uid = uid.map_or_else(String::new, |uid| format!(",{UID}={uid}"));
    let parameters = ListParams::default()
        .labels(&format!("{NAME}={},{COMPONENT}={component}{uid}", key.name))
        .limit(MAX_RUNS);
    let listed = call(
        &format!("list the TerraformRuns of {key}"),
        api.list(&parameters),
    )
    .await?;
    let mut runs: Vec<TerraformRun> = listed
        .items
        .into_iter()
        .filter_map(|run| run.0.ok())
        .collect();
    runs.sort_by_key(|run| Reverse((run.spec.started_at.0, run.spec.number)));
    Ok(runs)
}

/// Reads the record of run `number` of `key`. `uid`: that of the resource, if it exists.
pub(crate) async fn run(
    viewer: &Viewer,
    key: &ObjectKey,
    uid: Option<&str>,
    number: i64,
) -> Result<Option<TerraformRun>, PageError> {
    if let Some(uid) = uid {
        let api: Api<TerraformRun> =
            api(viewer, &AccessReview::runs("get", &key.namespace), key).await?;
        let name = run_name(&key.name, uid, number);
        let action = format!("read TerraformRun {}/{name}", key.namespace);
        if let Some(run) = call(&action, api.get_opt(&name)).await? {
            return Ok(Some(run));
        }
    }
    // One record describes consecutive retries with the same failure.
    let runs = runs(viewer, key, uid).await?;
    Ok(runs.into_iter().find(|run| run.describes(number)))
}

/// Reads the text of the pending plan `id` of `key` from its Secret. `None` if the Secret contains another plan, or the user may not read it.
pub(crate) async fn plan_text(viewer: &Viewer, key: &ObjectKey, id: &str) -> Option<String> {
    let secret = secret(viewer, &key.namespace, &names::plan(&key.name)).await?;
    let data = secret.data?;
    let is_same_plan = data
        .get(plan_key::ID)
        .is_some_and(|stored| stored.0 == id.as_bytes());
    let text = data.get(plan_key::TEXT).filter(|_| is_same_plan)?;
    let text = text.0.get(..MAX_PLAN_TEXT_BYTES).unwrap_or(&text.0);
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Reads the outputs of `tf` from their Secret. `None` if the Secret does not exist, or the user may not read it.
pub(crate) async fn outputs(viewer: &Viewer, key: &ObjectKey, tf: &Terraform) -> Option<Outputs> {
    let status = tf.status.as_ref()?.outputs.as_ref()?;
    let secret = secret(viewer, &key.namespace, &status.secret_name).await?;
    Some(outputs::read(&secret))
}

/// Reads a Secret as the user. `None` if it does not exist, or the user may not read it.
async fn secret(viewer: &Viewer, namespace: &str, name: &str) -> Option<Secret> {
    let wanted = AccessReview::secret(namespace, name);
    if !viewer.is_own() || !viewer.may(&wanted).await.ok()? {
        return None;
    }
    let api: Api<Secret> = Api::namespaced(viewer.reader().clone(), namespace);
    let action = format!("read Secret {namespace}/{name}");
    call(&action, api.get_opt(name)).await.ok()?
}

/// Returns the pod of run `number` of `key`, and the client that reads its log. `None` if the pod does not exist.
///
/// # Errors
/// [`PageError::Forbidden`] if the user may not list pods; also if requests are not authenticated as the user: the ServiceAccount of the page has
/// no permission to read logs of pods.
pub(crate) async fn pod(
    viewer: &Viewer,
    key: &ObjectKey,
    number: i64,
) -> Result<Option<(Api<Pod>, Pod)>, PageError> {
    if !viewer.is_own() {
        return Err(PageError::Forbidden(
            "the page may not impersonate the user, so it cannot read the log of the pod"
                .to_owned(),
        ));
    }
    viewer
        .require(&AccessReview::pod_logs(&key.namespace))
        .await?;
    let api: Api<Pod> = Api::namespaced(viewer.reader().clone(), &key.namespace);
    let jobs = names::run_jobs(&key.name, number).join(",");
    let parameters = ListParams::default().labels(&format!("{JOB_NAME} in ({jobs})"));
    let pods = call(
        &format!("list the pods of run {number} of {key}"),
        api.list(&parameters),
    )
    .await?;
    let newest = pods
        .items
        .into_iter()
        .max_by_key(ResourceExt::creation_timestamp);
    Ok(newest.map(|pod| (api, pod)))
}

/// Applies the merge patch `change` to `key`, as the user.
pub(crate) async fn change(
    client: &Client,
    key: &ObjectKey,
    change: &Value,
) -> Result<(), PageError> {
    let api: Api<Terraform> = Api::namespaced(client.clone(), &key.namespace);
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(change);
    let patched = api.patch_metadata(&key.name, &parameters, &patch);
    call(&format!("patch Terraform {key}"), patched)
        .await
        .map(drop)
}

/// Returns the API for a read of the user. If requests are not authenticated as the user, fails without the permission `wanted`.
async fn api<K>(
    viewer: &Viewer,
    wanted: &AccessReview,
    key: &ObjectKey,
) -> Result<Api<K>, PageError>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    if !viewer.is_own() {
        viewer.require(wanted).await?;
    }
    Ok(Api::namespaced(viewer.reader().clone(), &key.namespace))
}
