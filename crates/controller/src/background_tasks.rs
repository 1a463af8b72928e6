//! Tasks that run beside the reconciles.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::labels;
use alustan_source::GitCache;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::apply::build_secrets::delete_builds_of_deleted;
use crate::apply::unused_record::delete_unused_record;
use crate::context::Context;
use crate::error::with_causes;
use crate::forget::forget;
use crate::health::Health;
use crate::observe::finished_jobs;
use crate::queue::{Dispatcher, REFRESH};
use crate::resource::Ref;
use crate::watch::cached::CachedJob;
use crate::watch::mapping::{LISTS, is_watched, owner, to_ref, wake_all};

/// Idle time after which a repository is removed from the git cache. The next use fetches it again.
const MAX_REPOSITORY_IDLE_TIME: Duration = Duration::from_hours(24);

/// Interval at which finished run Jobs beyond `--keep-jobs` are marked. Together with
/// [`MAX_MARKED_PER_PASS`](alustan_core::job_retention::MAX_MARKED_PER_PASS), it limits the deletions to ten per second.
const RETENTION_INTERVAL: Duration = Duration::from_secs(5);

/// Drops the in-memory state of a deleted resource, and deletes its remaining builds and its run record without runs, for example after its
/// finalizer was removed by hand. Deletes objects of resources in watched namespaces only: the build namespace may contain builds of
/// resources that another operator watches.
pub(crate) fn clean_up_deleted(ctx: &Arc<Context>, watched_namespaces: &[String], resource: Ref) {
    forget(ctx, &resource);
    let namespace = resource.namespace.as_deref().unwrap_or_default();
    if is_watched(watched_namespaces, namespace) {
        let ctx = ctx.clone();
        tokio::spawn(async move {
            delete_builds_of_deleted(&ctx, &resource).await;
            delete_unused_record(&ctx, &resource).await;
        });
    }
}

/// Each time this replica becomes the leader, requeues all resources, and deleted resources with remaining builds: no replica has
/// reconciled them since the previous leader stopped. Also signs run records and pins that have no signature yet.
pub(crate) async fn reconcile_all_when_leading(
    ctx: Arc<Context>,
    wake: mpsc::UnboundedSender<Ref>,
) {
    loop {
        ctx.leader.wait_for_leadership().await;
        let signing_ctx = ctx.clone();
        tokio::spawn(async move {
            signing_ctx
                .signer
                .sign_existing(&signing_ctx.client, &signing_ctx.mirrors.secrets)
                .await;
        });
        wake_all(&ctx.resources, &wake);
        let is_build = |job: &CachedJob| job.labels().contains_key(labels::NAMESPACE);
        let builds = ctx.mirrors.jobs.filter(is_build);
        for resource in builds.iter().filter_map(|job| owner(&ctx.settings, &**job)) {
            let _ = wake.send(resource);
        }
    }
}

/// Removes idle repositories from the git cache, once per hour.
pub(crate) async fn sweep_git_cache(git: Arc<GitCache>) {
    let mut hours = tokio::time::interval(Duration::from_hours(1));
    loop {
        hours.tick().await;
        let git = git.clone();
        match tokio::task::spawn_blocking(move || git.sweep(MAX_REPOSITORY_IDLE_TIME)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => info!(removed, "removed idle repositories from the git cache"),
            Ok(Err(error)) => warn!(
                error = with_causes(&error),
                "failed to remove idle repositories from the git cache"
            ),
            Err(error) => warn!(%error, "failed to remove idle repositories from the git cache"),
        }
    }
}

/// Refreshes the queue positions in the status of queued resources, a share of them at each interval [`REFRESH`]. A reconcile between two
/// refreshes reports the position of the last refresh.
pub(crate) async fn refresh_queue_positions(dispatcher: Arc<Dispatcher>) {
    let mut interval = tokio::time::interval(REFRESH);
    loop {
        interval.tick().await;
        dispatcher.refresh(Timestamp::now());
    }
}

/// Marks finished run Jobs beyond `--keep-jobs` at the interval [`RETENTION_INTERVAL`], and requeues their resources, which delete them.
pub(crate) async fn mark_jobs_beyond_limit(ctx: Arc<Context>, wake: mpsc::UnboundedSender<Ref>) {
    let mut interval = tokio::time::interval(RETENTION_INTERVAL);
    loop {
        interval.tick().await;
        if !ctx.leader.leads() {
            continue;
        }
        let finished = finished_jobs(&ctx);
        let marked = ctx.job_retention.lock().mark(finished);
        let owners: BTreeSet<_> = marked.into_iter().map(|job| job.owner).collect();
        for owner in owners {
            // `send` fails only after the controller has stopped.
            let _ = wake.send(to_ref(&owner));
        }
    }
}

/// Reports the operator as ready once all watches have completed their first list.
pub(crate) async fn set_ready_when_listed(mut listed: watch::Receiver<usize>, health: Health) {
    if listed.wait_for(|lists| *lists >= LISTS).await.is_ok() {
        health.set_ready();
    }
}
