//! Cluster with thousands of applied resources, for `make scale` and for a small end-to-end test. docs/scale.md describes the method.
//!
//! Bulk resources run on the fake node ([`FakeKubelet`]), the others on the real node. All of them are applied by the installed operator.

mod fill;
mod history;
mod measure;
mod progress;
mod size;

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::fake_kubelet::{self, FakeKubelet};
use crate::scene::until;
use crate::{AuditLog, Cluster};

pub use fill::Filled;
pub use history::write_history;
pub use measure::{Calls, Commit, Crash, Idle, Start, ratio};
use progress::Progress;
pub use size::{Size, variables};

/// Owner of the repositories, and prefix of the namespaces.
const OWNER: &str = "scale";
/// Label of the namespaces and of the resources.
const LABEL: &str = "alustan.test/scale";
const SYSTEM: &str = "alustan-system";
const DEPLOYMENT: &str = "deployment/alustan-controller";
/// Value of `--max-concurrent-runs` and `--max-runs-per-namespace`: enough for the 100 runs of [`Scale::crash`].
const SLOTS: &str = "200";
/// Maximum number of concurrent requests of the harness.
const CONCURRENCY: usize = 24;

/// Cluster with applied resources.
pub struct Scale {
    cluster: Cluster,
    size: Size,
    kubelet: FakeKubelet,
    progress: Progress,
    log: AuditLog,
}

impl Scale {
    /// Removes the namespaces of an earlier run, configures the installed operator and starts the fake node.
    pub async fn open(size: Size) -> Self {
        let cluster = Cluster::connect().await;
        cluster.scale_operator(0).await;
        // The kubelet also ends the pods of an earlier run.
        let kubelet = FakeKubelet::start(&cluster).await;
        remove(&cluster).await;
        until("the namespaces of an earlier run to go", async || {
            namespaces(&cluster.client).await.is_empty().then_some(())
        })
        .await;
        configure(&cluster).await;
        Self {
            size,
            kubelet,
            progress: Progress::watch(&cluster),
            log: AuditLog::open(&cluster),
            cluster,
        }
    }

    /// Returns the errors of pods on the fake node.
    pub fn errors(&self) -> Vec<String> {
        self.kubelet.errors()
    }

    /// Starts the deletion of all resources, without destroy runs, and restores the settings of the operator.
    pub async fn close(self) {
        self.cluster.scale_operator(0).await;
        remove(&self.cluster).await;
        self.kubelet.stop().await;
        restore(&self.cluster).await;
    }
}

/// Sets the flags of the operator for many concurrent runs, and allows the toleration of the fake node.
async fn configure(cluster: &Cluster) {
    let policy = json!({"allowed": {"tolerations": [fake_kubelet::taint()]}}).to_string();
    let pods = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "alustan-pods", "namespace": SYSTEM}, "data": {"pods.yaml": policy},
    });
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SYSTEM);
    let parameters = PatchParams::apply(OWNER).force();
    maps.patch("alustan-pods", &parameters, &Patch::Apply(&pods))
        .await
        .expect("apply the defaults of pods");
    let slots = format!("ALUSTAN_MAX_CONCURRENT_RUNS={SLOTS}");
    let per_namespace = format!("ALUSTAN_MAX_RUNS_PER_NAMESPACE={SLOTS}");
    // One volume per resource is a disk each: docs/cache.md advises none for many resources.
    set(
        cluster,
        &[&slots, &per_namespace, "ALUSTAN_CACHE_VOLUME=none"],
    )
    .await;
}

async fn restore(cluster: &Cluster) {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SYSTEM);
    // Ignores an error: a failed run may have removed it.
    let _ = maps.delete("alustan-pods", &DeleteParams::default()).await;
    let defaults = [
        "ALUSTAN_MAX_CONCURRENT_RUNS=50",
        "ALUSTAN_MAX_RUNS_PER_NAMESPACE=0",
        "ALUSTAN_CACHE_VOLUME-",
    ];
    set(cluster, &defaults).await;
}

/// Sets environment variables of the operator, which must not run, and starts it.
async fn set(cluster: &Cluster, variables: &[&str]) {
    let set = ["set", "env", "-n", SYSTEM, DEPLOYMENT];
    cluster
        .run("kubectl", &[&set[..], variables].concat())
        .await;
    cluster.scale_operator(1).await;
}

async fn namespaces(client: &Client) -> Vec<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let list = api
        .list_metadata(&ListParams::default().labels(LABEL))
        .await;
    let found = list.expect("list namespaces");
    found.iter().map(ResourceExt::name_any).collect()
}

/// Starts the deletion of all namespaces of the harness, and removes the repositories. The operator must not run, or no resource may
/// exist: the finalizers are removed.
async fn remove(cluster: &Cluster) {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    for namespace in namespaces(&cluster.client).await {
        progress::release(cluster, &namespace).await;
        let unmarked = json!({"metadata": {"labels": {alustan_api::labels::HOLDS_STATE: null}}});
        let parameters = PatchParams::default();
        api.patch(&namespace, &parameters, &Patch::Merge(&unmarked))
            .await
            .expect("remove the label of the namespace");
        api.delete(&namespace, &DeleteParams::background())
            .await
            .expect("delete the namespace");
    }
    let repositories: PathBuf = cluster.folder.join("git").join(OWNER);
    // Ignores an error: the first run has no repositories.
    let _ = std::fs::remove_dir_all(repositories);
}

/// Maximum duration of a wait for `count` resources.
fn patience(count: usize) -> Duration {
    let seconds = u64::try_from(count).unwrap_or(u64::MAX);
    Duration::from_secs(seconds.saturating_add(120))
}
