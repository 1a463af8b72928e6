//! Deletes and shortens `TerraformRun`s beyond the limits of [`RunRetention`].

use std::sync::Arc;
use std::time::Duration;

use alustan_api::labels::{BYTES, UID, WRITTEN_AT};
use alustan_api::{MAX_RUN_BYTES, ObjectKey, TerraformRun};
use alustan_core::run_retention::{Removal, StoredRun};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::call::{call, ignore_not_found};
use crate::context::Context;
use crate::error::{Error, with_causes};
use crate::watch::keys::ResourceKey;
use crate::watch::mapping::LISTS;

/// Interval at which the task checks whether a sweep is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum time between two sweeps.
const MIN_PAUSE: Duration = Duration::from_mins(1);

/// Maximum time between two sweeps. Records of deleted resources expire within this time.
const MAX_PAUSE: Duration = Duration::from_hours(24);

/// Maximum size of a record, in bytes.
const MAX_BYTES: u64 = MAX_RUN_BYTES as u64;

/// Number of records that one request lists.
const PAGE: u32 = 500;

/// Sweeps the records when this replica becomes the leader, once a day, and after many writes.
pub(crate) async fn sweep_runs(ctx: Arc<Context>, watched_namespaces: Vec<String>) {
    // Before the first list of all resources, the records of all resources would seem to be those of deleted resources.
    let mut listed = ctx.mirrors.listed.clone();
    if listed.wait_for(|lists| *lists >= LISTS).await.is_err() {
        return;
    }
    let mut last: Option<Instant> = None;
    loop {
        let leads = ctx.leader.leads();
        last = last.filter(|_| leads);
        let is_due = last.is_none_or(|last| last.elapsed() > MAX_PAUSE);
        if !leads || !is_due && !ctx.run_history.is_exceeded() {
            sleep(CHECK_INTERVAL).await;
            continue;
        }
        ctx.run_history.reset();
        let is_complete = sweep(&ctx, &watched_namespaces).await;
        // An incomplete sweep is repeated.
        last = is_complete.then(Instant::now);
        sleep(MIN_PAUSE).await;
    }
}

/// Deletes and shortens the records that are due. Returns whether all requests succeeded. Continues after a failed request.
async fn sweep(ctx: &Context, watched_namespaces: &[String]) -> bool {
    let apis: Vec<Api<TerraformRun>> = if watched_namespaces.is_empty() {
        vec![Api::all(ctx.client.clone())]
    } else {
        let namespaces = watched_namespaces.iter();
        namespaces
            .map(|namespace| Api::namespaced(ctx.client.clone(), namespace))
            .collect()
    };
    let (mut runs, mut is_complete) = (Vec::new(), true);
    for api in apis {
        let listed = list(ctx, &api, &mut runs).await;
        is_complete &= is_done(&listed);
    }
    let due = ctx.run_history.retention().due(runs, Timestamp::now());
    if !due.is_empty() {
        info!(records = due.len(), "deleting or shortening TerraformRuns");
    }
    for removal in due {
        is_complete &= is_done(&remove(ctx, removal).await);
    }
    is_complete
}

/// Returns whether `result` is a success. Logs an error.
fn is_done(result: &Result<(), Error>) -> bool {
    if let Err(error) = result {
        let error = with_causes(error);
        warn!(error, "failed to delete old TerraformRuns");
    }
    result.is_ok()
}

async fn list(
    ctx: &Context,
    api: &Api<TerraformRun>,
    runs: &mut Vec<StoredRun>,
) -> Result<(), Error> {
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = call("list TerraformRuns", api.list_metadata(&parameters)).await?;
        runs.extend(page.items.iter().map(|run| stored(ctx, run)));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => parameters.continue_token = Some(token),
            _ => return Ok(()),
        }
    }
}

fn stored(ctx: &Context, run: &PartialObjectMeta<TerraformRun>) -> StoredRun {
    let annotation = |name: &str| run.annotations().get(name);
    let uid = run.labels().get(UID).cloned().unwrap_or_default();
    let owners = ctx.resources.with(&ResourceKey::Uid(uid.clone()));
    let created_at = run.creation_timestamp().map(|time| time.0);
    let written_at = annotation(WRITTEN_AT).and_then(|time| time.parse().ok());
    let bytes = annotation(BYTES).and_then(|bytes| bytes.parse().ok());
    StoredRun {
        has_resource: !owners.is_empty(),
        written_at: written_at.or(created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        bytes: bytes.map_or(MAX_BYTES, |bytes: u64| bytes.min(MAX_BYTES)),
        resource: uid,
        key: ObjectKey {
            namespace: run.namespace().unwrap_or_default(),
            name: run.name_any(),
        },
    }
}

async fn remove(ctx: &Context, removal: Removal) -> Result<(), Error> {
    let api = |namespace: &str| Api::<TerraformRun>::namespaced(ctx.client.clone(), namespace);
    match removal {
        Removal::Delete(ObjectKey { namespace, name }) => {
            let api = api(&namespace);
            let parameters = DeleteParams::default();
            let deleted = api.delete(&name, &parameters);
            ignore_not_found(call("delete a TerraformRun", deleted).await)
        }
        Removal::RemoveTexts(ObjectKey { namespace, name }) => {
            let body = json!({
                "metadata": {"annotations": {BYTES: "0"}},
                "status": {"changes": null, "plan": null, "log": null},
            });
            let (api, patch) = (api(&namespace), Patch::Merge(&body));
            let parameters = PatchParams::default();
            let patched = api.patch(&name, &parameters, &patch);
            ignore_not_found(call("shorten a TerraformRun", patched).await)
        }
    }
}
