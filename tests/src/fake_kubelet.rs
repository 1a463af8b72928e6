//! Fake node for runs and builds in great numbers. Its kubelet starts no containers: it executes run pods with the stand-in for the runner and
//! build pods by a push of a small image, and reports the status of the pods.

mod image;
mod node;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::run::RunKind;
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Container, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::Cluster;
use crate::runner_stand_in::{Refused, RunnerStandIn, variable};

pub(crate) use node::{node_selector, taint, toleration};

/// Number of runs that reported an apply, by namespace and name of the resource.
pub(crate) type Applies = BTreeMap<(String, String), usize>;

/// Kubelet of the fake node. The node is removed with [`Self::stop`].
pub(crate) struct FakeKubelet {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

struct Shared {
    cluster: Cluster,
    registry: reqwest::Client,
    /// If true, runs wait before they report an apply.
    hold: watch::Sender<bool>,
    held: AtomicUsize,
    applies: Mutex<Applies>,
    builds: AtomicUsize,
    errors: Mutex<Vec<String>>,
}

impl FakeKubelet {
    /// Creates the node and starts its kubelet.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        node::create(cluster).await;
        let shared = Arc::new(Shared {
            cluster: cluster.clone(),
            registry: reqwest::Client::new(),
            hold: watch::Sender::new(false),
            held: AtomicUsize::new(0),
            applies: Mutex::default(),
            builds: AtomicUsize::new(0),
            errors: Mutex::default(),
        });
        let heartbeat = tokio::spawn(node::renew(cluster.clone()));
        let pods = tokio::spawn(sync_pods(shared.clone()));
        Self {
            shared,
            tasks: [heartbeat.abort_handle(), pods.abort_handle()],
        }
    }

    /// Returns the number of runs that reported an apply so far, by resource.
    pub(crate) fn applies(&self) -> Applies {
        self.shared.applies.lock().clone()
    }

    /// Returns the number of applies so far.
    pub(crate) fn apply_count(&self) -> usize {
        self.shared.applies.lock().values().sum()
    }

    /// Returns the number of builds so far.
    pub(crate) fn build_count(&self) -> usize {
        self.shared.builds.load(Ordering::Relaxed)
    }

    /// Returns the errors of pods so far.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.shared.errors.lock().clone()
    }

    /// With true, runs wait before they report an apply. With false, the waiting runs continue.
    pub(crate) fn hold(&self, hold: bool) {
        self.shared.hold.send_replace(hold);
    }

    /// Returns the number of runs that wait because of [`Self::hold`].
    pub(crate) fn held(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// Stops the kubelet and removes the node.
    pub(crate) async fn stop(self) {
        for task in &self.tasks {
            task.abort();
        }
        node::delete(&self.shared.cluster).await;
    }
}

/// Watches the pods of the node. Starts each pod once, and deletes a pod that is being deleted when it has ended.
async fn sync_pods(shared: Arc<Shared>) {
    let api: Api<Pod> = Api::all(shared.cluster.client.clone());
    let of_node = watcher::Config::default().fields(&format!("spec.nodeName={}", node::NAME));
    let mut pods = std::pin::pin!(watcher(api, of_node).default_backoff().touched_objects());
    // Task of each pod that was started. `None` after the start of the deletion.
    let mut started: HashMap<String, Option<JoinHandle<()>>> = HashMap::new();
    while let Some(event) = pods.next().await {
        let Ok(pod) = event else { continue };
        let uid = pod.uid().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() {
            // A pod that this process did not start is that of an earlier kubelet.
            let task = match started.insert(uid, None) {
                Some(None) => continue,
                Some(task) => task,
                None => None,
            };
            let shared = shared.clone();
            tokio::spawn(async move {
                if let Some(task) = task {
                    // A panic of the pod is reported by its task.
                    let _ = task.await;
                }
                shared.delete(&pod).await;
            });
            continue;
        }
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if phase == Some("Pending") {
            started
                .entry(uid)
                .or_insert_with(|| Some(tokio::spawn(shared.clone().execute(pod))));
        }
    }
}

impl Shared {
    fn pods(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.namespace().unwrap_or_default();
        Api::namespaced(self.cluster.client.clone(), &namespace)
    }

    async fn execute(self: Arc<Self>, pod: Pod) {
        self.set_status(&pod, "Running", None).await;
        let image = variable(&pod, "ALUSTAN_IMAGE");
        let result = match image {
            Some(image) => self.build(&pod, &image).await,
            None => self.run(&pod).await,
        };
        let failed = result.is_err();
        if let Err(error) = result {
            let text = format!(
                "{}/{}: {error}",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            );
            self.errors.lock().push(text);
        }
        let phase = if failed { "Failed" } else { "Succeeded" };
        self.set_status(&pod, phase, Some(i32::from(failed))).await;
    }

    async fn build(&self, pod: &Pod, image: &str) -> Result<(), Refused> {
        let namespace = variable(pod, "ALUSTAN_NAMESPACE_UID").unwrap_or_default();
        image::push(&self.registry, image, &namespace).await?;
        self.builds.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn run(&self, pod: &Pod) -> Result<(), Refused> {
        let client = self.cluster.client_with_token(self.token(pod).await?)?;
        let runner = RunnerStandIn::of_pod(client, pod)?;
        let kind = runner.execute(self.wait_while_held()).await?;
        if kind == RunKind::Apply {
            let key = (pod.namespace().unwrap_or_default(), runner.resource());
            *self.applies.lock().entry(key).or_default() += 1;
        }
        Ok(())
    }

    async fn wait_while_held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
        let mut hold = self.hold.subscribe();
        // Fails only if the sender is dropped, which `self` owns.
        let _ = hold.wait_for(|hold| !hold).await;
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests a token of the ServiceAccount of the pod, like the kubelet.
    async fn token(&self, pod: &Pod) -> Result<String, Refused> {
        let spec = pod.spec.as_ref().ok_or("no spec")?;
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<ServiceAccount> = Api::namespaced(self.cluster.client.clone(), &namespace);
        let request: TokenRequest = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "audiences": [], "expirationSeconds": 3607,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()},
            },
        }))?;
        let answer = api
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        Ok(answer.status.ok_or("no token")?.token)
    }

    async fn set_status(&self, pod: &Pod, phase: &str, exit_code: Option<i32>) {
        let now = Timestamp::now().to_string();
        let state = match exit_code {
            None => json!({"running": {"startedAt": now}}),
            Some(code) => {
                json!({"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}})
            }
        };
        let is_ready = exit_code.is_none();
        let containers: Vec<_> = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|container| container_status(container, &state, is_ready))
            .collect();
        let condition = |kind: &str, status: bool| {
            let status = if status { "True" } else { "False" };
            json!({"type": kind, "status": status, "lastTransitionTime": now})
        };
        let status = json!({"status": {
            "phase": phase, "startTime": now, "podIP": "192.0.2.1", "hostIP": "192.0.2.1",
            "conditions": [
                condition("Initialized", true), condition("Ready", is_ready), condition("ContainersReady", is_ready),
            ],
            "containerStatuses": containers,
        }});
        let written = self
            .pods(pod)
            .patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&status),
            )
            .await;
        match written {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => self
                .errors
                .lock()
                .push(format!("{}: {error}", pod.name_any())),
        }
    }

    async fn delete(&self, pod: &Pod) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        match self.pods(pod).delete(&pod.name_any(), &now).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => self
                .errors
                .lock()
                .push(format!("{}: {error}", pod.name_any())),
        }
    }
}

fn container_status(container: &Container, state: &Value, is_ready: bool) -> Value {
    json!({
        "name": container.name, "image": container.image, "imageID": container.image,
        "containerID": format!("fake://{}", container.name), "ready": is_ready, "started": is_ready, "restartCount": 0,
        "state": state,
    })
}
