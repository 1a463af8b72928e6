//! Watches the resources of the harness.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use futures::{StreamExt, stream};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::AbortHandle;

use super::size::Member;
use super::{CONCURRENCY, LABEL};
use crate::Cluster;
use crate::scene::is_ready;

/// Interval between checks of a condition.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval between lines about the progress.
const REPORT: Duration = Duration::from_secs(15);

/// Status of a resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Whether the resource is Ready for its latest generation.
    pub(super) is_ready: bool,
    pub(super) generation: i64,
    /// Revision of the last apply.
    pub(super) revision: String,
    /// Number of the last run.
    pub(super) run: i64,
    /// Number of entries in `status.runs`.
    pub(super) runs: usize,
}

type All = HashMap<String, Seen>;

/// Last status of each resource, by namespace and name.
pub(super) struct Progress {
    all: Arc<Mutex<All>>,
    task: AbortHandle,
}

impl Progress {
    pub(super) fn watch(cluster: &Cluster) -> Self {
        let all = Arc::new(Mutex::new(All::new()));
        let task = tokio::spawn(follow(cluster.clone(), all.clone()));
        Self {
            all,
            task: task.abort_handle(),
        }
    }

    /// Returns the last status of `member`.
    pub(super) fn of(&self, member: Member) -> Seen {
        let all = self.all.lock();
        all.get(&key(member)).cloned().unwrap_or_default()
    }

    /// Waits until `wanted` holds for all `members`. Panics after `patience`, with the first resource for which it does not hold.
    pub(super) async fn until(
        &self,
        what: &str,
        members: &[Member],
        patience: Duration,
        wanted: impl Fn(&Seen) -> bool,
    ) {
        let mut keys: Vec<String> = members.iter().copied().map(key).collect();
        let mut tick = tokio::time::interval(INTERVAL);
        let start = Instant::now();
        let mut reported = start;
        loop {
            tick.tick().await;
            let first = {
                let all = self.all.lock();
                keys.retain(|key| !all.get(key).is_some_and(&wanted));
                let Some(first) = keys.first() else { return };
                format!("{first}: {:?}", all.get(first))
            };
            let left = keys.len();
            if reported.elapsed() > REPORT {
                reported = Instant::now();
                eprintln!(
                    "  {:>5} s: {left} of {} left: {what}",
                    start.elapsed().as_secs(),
                    members.len()
                );
            }
            assert!(
                start.elapsed() < patience,
                "waited {patience:?} for {what}: {left} left, {first}"
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn key(member: Member) -> String {
    format!("{}/{}", member.namespace(), member.name())
}

async fn follow(cluster: Cluster, all: Arc<Mutex<All>>) {
    let api: Api<Terraform> = Api::all(cluster.client);
    let config = watcher::Config::default().labels(LABEL);
    let mut events = std::pin::pin!(watcher(api, config).default_backoff().applied_objects());
    while let Some(event) = events.next().await {
        if let Ok(tf) = event {
            let key = format!("{}/{}", tf.namespace().unwrap_or_default(), tf.name_any());
            all.lock().insert(key, seen(tf));
        }
    }
}

fn seen(tf: Terraform) -> Seen {
    let is_ready = is_ready(&tf);
    let generation = tf.metadata.generation.unwrap_or_default();
    let status = tf.status.unwrap_or_default();
    Seen {
        is_ready,
        generation,
        revision: status
            .last_applied
            .and_then(|applied| applied.revision)
            .unwrap_or_default(),
        run: status.run.unwrap_or_default(),
        runs: status.runs.len(),
    }
}

/// Removes the finalizers of all resources in a namespace, so that the namespace can be deleted without destroy runs.
pub(super) async fn release(cluster: &Cluster, namespace: &str) {
    let api: Api<Terraform> = Api::namespaced(cluster.client.clone(), namespace);
    let list = api.list_metadata(&ListParams::default()).await;
    let names = list.expect("list resources").items;
    stream::iter(&names)
        .for_each_concurrent(CONCURRENCY, async |tf| {
            let free =
                json!({"metadata": {"finalizers": null}, "spec": {"deletionProtection": false}});
            let parameters = PatchParams::default();
            let free = Patch::Merge(&free);
            api.patch(&tf.name_any(), &parameters, &free)
                .await
                .expect("remove the finalizers");
        })
        .await;
}
