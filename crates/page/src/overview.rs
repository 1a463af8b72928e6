//! Summaries of all `Terraform` resources in the cluster or in one namespace, kept up to date by a watch. The lists are computed from them
//! without a call to the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::{ObjectKey, Terraform};
use futures::StreamExt as _;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use crate::row::Row;

/// Minimum and maximum pause before the next attempt after a failed watch. One client watches, so a short maximum is no load.
const MIN_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Number of resources in one response of the initial list: the memory of the process is limited by it, not by the size of the cluster.
const LIST_PAGE: u32 = 200;

/// Summaries of all resources of the cluster or of one namespace.
#[derive(Clone)]
pub(crate) struct Overview(Arc<Shared>);

struct Shared {
    rows: RwLock<BTreeMap<ObjectKey, Arc<Row>>>,
    /// Number of changes. Zero until the first list is complete.
    version: watch::Sender<u64>,
}

impl Default for Overview {
    fn default() -> Self {
        Self(Arc::new(Shared {
            rows: RwLock::default(),
            version: watch::Sender::new(0),
        }))
    }
}

impl Overview {
    /// Returns all summaries, sorted by namespace and name.
    pub(crate) fn rows(&self) -> Vec<Arc<Row>> {
        self.0.rows.read().values().cloned().collect()
    }

    /// Returns the summary of `key`.
    pub(crate) fn row(&self, key: &ObjectKey) -> Option<Arc<Row>> {
        self.0.rows.read().get(key).cloned()
    }

    /// Returns the resources that reference `key` by name, sorted.
    pub(crate) fn dependents(&self, key: &ObjectKey) -> Vec<Arc<Row>> {
        let rows = self.0.rows.read();
        let dependents = rows.values().filter(|row| row.dependencies.contains(key));
        dependents.cloned().collect()
    }

    /// Whether the first list is complete.
    pub(crate) fn is_complete(&self) -> bool {
        *self.0.version.borrow() > 0
    }

    /// Waits until the first list is complete, at most `limit`. Returns whether it is complete.
    pub(crate) async fn wait_until_complete(&self, limit: Duration) -> bool {
        let mut changes = self.changes();
        let complete = changes.wait_for(|version| *version > 0);
        timeout(limit, complete).await.is_ok()
    }

    /// Returns the namespaces of all resources.
    pub(crate) fn namespaces(&self) -> BTreeSet<String> {
        let rows = self.0.rows.read();
        let mut namespaces = BTreeSet::new();
        for key in rows.keys() {
            // Rows are sorted by namespace: a look at the last one saves a copy for each resource.
            if namespaces.last() != Some(&key.namespace) {
                namespaces.insert(key.namespace.clone());
            }
        }
        namespaces
    }

    /// Returns the version of the resources in `namespaces`.
    pub(crate) fn version(&self, namespaces: &BTreeSet<String>) -> String {
        let rows = self.0.rows.read();
        let visible = rows
            .values()
            .filter(|row| namespaces.contains(&row.namespace));
        version(visible)
    }

    /// Returns a receiver of changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Watches the resources of `namespace`, or of the cluster. Does not return.
    pub(crate) async fn watch(&self, client: Client, namespace: Option<&str>) {
        type Guarded = DeserializeGuard<Terraform>;
        let api: Api<Guarded> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let config = watcher::Config::default().page_size(LIST_PAGE);
        let mut events = std::pin::pin!(watcher::watcher(api, config).backoff(Backoff::default()));
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.handle(event, &mut listed),
                Err(error) => warn!(%error, "failed to watch Terraform resources"),
            }
        }
    }

    /// Handles an event of the watch. Collects an initial list in `listed`, and replaces all summaries when it is complete.
    pub(crate) fn handle(
        &self,
        event: Event<DeserializeGuard<Terraform>>,
        listed: &mut BTreeMap<ObjectKey, Arc<Row>>,
    ) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(tf) => {
                let row = row(tf);
                listed.insert(row.key(), Arc::new(row));
            }
            Event::InitDone => self.change(|rows| *rows = std::mem::take(listed)),
            Event::Apply(tf) => {
                let row = row(tf);
                self.change(|rows| rows.insert(row.key(), Arc::new(row)));
            }
            Event::Delete(tf) => {
                let key = ObjectKey::new(tf.namespace().unwrap_or_default(), tf.name_any());
                self.change(|rows| rows.remove(&key));
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<ObjectKey, Arc<Row>>) -> T) {
        change(&mut self.0.rows.write());
        self.0.version.send_modify(|version| *version += 1);
    }
}

/// Returns a text that changes with each change of the resources in `rows`. Equal on all replicas that know the same resources.
pub(crate) fn version<'a>(rows: impl Iterator<Item = &'a Arc<Row>>) -> String {
    let mut hasher = DefaultHasher::new();
    for row in rows {
        (&row.namespace, &row.name, &row.resource_version).hash(&mut hasher);
    }
    format!("{:x}", hasher.finish())
}

/// Pauses that double up to [`MAX_BACKOFF`].
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(MIN_BACKOFF)
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_BACKOFF);
        Some(pause)
    }
}

impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

fn row(tf: DeserializeGuard<Terraform>) -> Row {
    let key = ObjectKey::new(tf.namespace().unwrap_or_default(), tf.name_any());
    let version = tf.resource_version().unwrap_or_default();
    match tf.0 {
        Ok(tf) => Row::of(&tf),
        Err(invalid) => Row::unreadable(&key, version, &invalid.error),
    }
}
