//! Isolated environment of one test in the dev cluster.

mod aws;
mod cluster_view;
mod pushes;
pub(crate) mod repositories;
mod resources;
mod stores;
mod volumes;
mod waits;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use alustan_api::Terraform;
use futures::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::{Mutex, RwLock, RwLockWriteGuard};

use crate::{Cluster, Operators};
pub use cluster_view::around;
pub use pushes::GitServer;
pub use volumes::Disk;
pub use waits::condition;
pub use waits::is_ready;
pub(crate) use waits::until;

/// Maximum duration of a wait.
const DEADLINE: Duration = Duration::from_mins(3);

/// Environment of one test: a namespace that enforces PodSecurity *baseline*, with its own repositories.
pub struct Scene {
    /// Cluster that contains the namespace.
    pub cluster: Cluster,
    /// Name of the namespace. It is also the owner of the repositories of the test.
    pub namespace: String,
    /// Whether the installed operator runs during the whole test. If true, the operator receives a webhook request about each push.
    uses_installed_operator: bool,
}

/// Read lock for tests that share the cluster, write lock for tests that disturb it.
static CLUSTER: RwLock<()> = RwLock::const_new(());

/// Runs `test` in a new namespace. If `test` succeeds, deletes the namespace and its repositories. If `test` fails, prints the state of the
/// cluster and keeps the namespace.
pub async fn scene<F, T>(name: &str, test: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    let _with_others = CLUSTER.read().await;
    run(name, Disruption::Nothing, test).await;
}

/// Same as `scene`, while no other test runs: `test` may stop the operator, a component of the cluster, or the node. All of them are
/// restored afterwards. Tests that call this function belong in a `mod alone`: `make e2e` runs them after all other tests, so that other
/// tests do not wait for them.
pub async fn scene_alone<F, T>(name: &str, test: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    let _alone = alone().await;
    run(name, Disruption::Cluster, test).await;
}

/// Same as `scene_alone`, for a program instead of a test.
pub async fn scene_of_program<F, T>(name: &str, program: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    run(name, Disruption::Cluster, program).await;
}

/// Same as `scene_alone`, in a cluster with the CRD and without an operator: `test` may install an operator in any way.
pub async fn scene_without_operator<F, T>(name: &str, test: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    let _alone = alone().await;
    run(name, Disruption::Installation, async |scene: Arc<Scene>| {
        scene.cluster.uninstall_operator().await;
        test(scene).await;
    })
    .await;
}

async fn alone() -> RwLockWriteGuard<'static, ()> {
    assert_module("alone");
    CLUSTER.write().await
}

fn assert_module(module: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    assert!(
        test.contains(&format!("::{module}::")),
        "{test} belongs in a `mod {module}`"
    );
}

/// Tests for which the installed operator is scaled to zero.
struct WithoutInstalled {
    running: usize,
    /// Write lock on the cluster while `running` is not 0.
    cluster: Option<RwLockWriteGuard<'static, ()>>,
}

static WITHOUT_INSTALLED: Mutex<WithoutInstalled> = Mutex::const_new(WithoutInstalled {
    running: 0,
    cluster: None,
});

/// Runs `test` in a new namespace with the installed operator scaled to zero. `test` starts operators for its own namespace only. Tests
/// that call this function run concurrently. They belong in a `mod own_operators`: `make e2e` runs them after the tests that use the
/// installed operator, and before those of `mod alone`.
pub async fn scene_with_own_operators<F, T>(name: &str, test: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    assert_module("own_operators");
    {
        let mut tests = WITHOUT_INSTALLED.lock().await;
        if tests.running == 0 {
            let cluster = CLUSTER.write().await;
            if let Err(panic) = scale_installed(0).await {
                // Ignores an error: if the installed operator does not start, the next test fails and reports it.
                let _ = scale_installed(1).await;
                std::panic::resume_unwind(panic);
            }
            tests.cluster = Some(cluster);
        }
        tests.running += 1;
    }
    let ran = AssertUnwindSafe(run(name, Disruption::InstalledOperator, test));
    let mut result = ran.catch_unwind().await;
    {
        let mut tests = WITHOUT_INSTALLED.lock().await;
        tests.running -= 1;
        if tests.running == 0 {
            let _cluster = tests.cluster.take();
            result = result.and(scale_installed(1).await);
        }
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Scales the installed operator. If the scaling panics, returns the panic.
async fn scale_installed(copies: usize) -> std::thread::Result<()> {
    let scale = async { Cluster::connect().await.scale_operator(copies).await };
    AssertUnwindSafe(scale).catch_unwind().await
}

/// Parts of the cluster to restore after a test.
#[derive(Clone, Copy)]
enum Disruption {
    Nothing,
    /// The installed operator. It is scaled to zero for several tests, and restored after the last of them.
    InstalledOperator,
    Cluster,
    Installation,
}

async fn run<F, T>(name: &str, disruption: Disruption, test: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    let uses_installed_operator = matches!(disruption, Disruption::Nothing);
    let scene = Scene::open(name, uses_installed_operator).await;
    run_in(scene, disruption, test).await;
}

async fn run_in<F, T>(scene: Arc<Scene>, disruption: Disruption, test: F)
where
    F: FnOnce(Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    let result = AssertUnwindSafe(test(scene.clone())).catch_unwind().await;
    match disruption {
        Disruption::Nothing | Disruption::InstalledOperator => {}
        Disruption::Cluster => scene.cluster.mend().await,
        Disruption::Installation => scene.cluster.reinstall_operator().await,
    }
    if let Err(panic) = result {
        scene.show().await;
        std::panic::resume_unwind(panic);
    }
    let leaving = match disruption {
        Disruption::InstalledOperator => scene.delete_with_own_operator().boxed(),
        Disruption::Nothing | Disruption::Cluster | Disruption::Installation => {
            scene.delete_namespace().boxed()
        }
    };
    leaving.await;
}

impl Scene {
    /// Runs `test` in another new namespace, with the operator that this test uses.
    pub async fn beside<F, T>(&self, name: String, test: F)
    where
        F: FnOnce(Arc<Self>) -> T,
        T: Future<Output = ()>,
    {
        let scene = Self::open(&name, self.uses_installed_operator).await;
        run_in(scene, Disruption::Nothing, test).await;
    }

    /// Creates the namespace of a test.
    async fn open(name: &str, uses_installed_operator: bool) -> Arc<Self> {
        let cluster = Cluster::connect().await;
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a clock")
            .as_nanos();
        let namespace = format!("e2e-{name}-{:05x}", (nanos >> 10) & 0xf_ffff);
        let scene = Self {
            cluster,
            namespace,
            uses_installed_operator,
        };
        scene.create_namespace(&scene.namespace, "baseline").await;
        Arc::new(scene)
    }

    /// Creates a namespace that enforces a PodSecurity level.
    pub async fn create_namespace(&self, name: &str, level: &str) {
        let namespace = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
        }));
        let api: Api<Namespace> = Api::all(self.client());
        api.create(&PostParams::default(), &namespace.expect("a namespace"))
            .await
            .expect("create the namespace");
    }

    /// Sets the PodSecurity level that a namespace enforces.
    pub async fn enforce(&self, namespace: &str, level: &str) {
        let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        let api: Api<Namespace> = Api::all(self.client());
        api.patch(namespace, &PatchParams::default(), &Patch::Merge(&labels))
            .await
            .expect("label the namespace");
    }

    pub(crate) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// Returns the API client for one kind in the test's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    async fn show(&self) {
        println!(
            "---- namespace {} is kept; what it looks like:",
            self.namespace
        );
        for arguments in [
            &["get", "tf,job,pod,pvc,secret", "-o", "wide"][..],
            &[
                "get",
                "tf",
                "-o",
                "jsonpath={range .items[*]}{.metadata.name}: {.status.state}: {.status.message}{\"\\n\"}{end}",
            ],
            &["get", "events", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "--all-containers",
                "--prefix",
                "--tail=40",
                "-l",
                "app.kubernetes.io/managed-by=alustan",
            ],
        ] {
            let shown = self.try_kubectl(arguments).await;
            println!("$ kubectl {}\n{}", arguments.join(" "), shown.1);
        }
    }

    /// Deletes the namespace of the test and its repositories. Abandons the remaining resources without a destroy run, because other tests
    /// cover destroy runs.
    async fn delete_namespace(&self) {
        let api: Api<Terraform> = self.api();
        let resources = api
            .list(&ListParams::default())
            .await
            .expect("list resources");
        let abandon = json!({
            "metadata": {"annotations": {alustan_api::ABANDON: "true"}},
            "spec": {"deletionProtection": false},
        });
        for tf in &resources {
            let parameters = PatchParams::default();
            api.patch(&tf.name_any(), &parameters, &Patch::Merge(&abandon))
                .await
                .expect("abandon the resource");
        }
        let deletions = resources
            .iter()
            .map(|tf| self.delete_background(tf.name_any()));
        futures::future::join_all(deletions).await;
        let namespaces: Api<Namespace> = Api::all(self.client());
        // Removes the label with which an orphaned state protects the namespace from deletion.
        let unmarked = json!({"metadata": {"labels": {alustan_api::labels::HOLDS_STATE: null}}});
        let parameters = PatchParams::default();
        let unmark = Patch::Merge(&unmarked);
        let _gone_already = namespaces
            .patch(&self.namespace, &parameters, &unmark)
            .await;
        let deleted = namespaces
            .delete(&self.namespace, &DeleteParams::background())
            .await;
        match deleted {
            // The test may have deleted the namespace.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => drop(other.expect("delete the namespace")),
        }
        self.remove_repositories();
    }

    async fn delete_with_own_operator(&self) {
        let operators = Operators::of(self).await;
        let _operator = operators.start(None);
        self.delete_namespace().await;
    }

    async fn delete_background(&self, name: String) {
        self.delete(&name, &DeleteParams::background()).await;
    }
}
