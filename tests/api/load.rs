//! The operator with many resources: all are applied, then the operator restarts. The test simulates the Job controller, the kubelet and the
//! runner. `hack/profile` runs it with hundreds of resources, and starts the operator under a profiler.

use std::collections::{BTreeMap, HashSet};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use alustan_api::Terraform;
use alustan_tests::{RunnerStandIn, is_ready, variables, write_history};
use futures::{StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::calls;
use crate::outside::Outside;
use crate::pinned::signing_key;
use crate::server::{Server, built, free_ports, spawn_guarded, until};
use crate::space::{Space, complete_job, resource, with_all};

/// Number of resources, if `ALUSTAN_LOAD` is not set.
const RESOURCES: usize = 12;
/// Number of resources per namespace, and per repository.
const TOGETHER: usize = 50;
/// Number of requests for `/metrics` after the restart.
const SCRAPES: usize = 20;
/// Number of concurrent requests of the test.
const CONCURRENCY: usize = 16;

/// Number of applies by namespace and name of the resource.
type Applies = Arc<Mutex<BTreeMap<(String, String), usize>>>;

struct Load {
    server: Arc<Server>,
    outside: Outside,
    client: Client,
    spaces: Vec<Space>,
    count: usize,
    applies: Applies,
}

impl Load {
    async fn new() -> Self {
        let count = std::env::var("ALUSTAN_LOAD").map_or(RESOURCES, |count| count.parse().unwrap());
        let server = Server::of_its_own().await;
        let spaces = stream::iter(0..count.div_ceil(TOGETHER))
            .then(async |_| Space::of(&server, json!({})).await)
            .collect()
            .await;
        let client = server.client().await;
        let applies = Applies::default();
        tokio::spawn(run_jobs(client.clone(), applies.clone()));
        Self {
            outside: Outside::start(server.folder()).await,
            client,
            spaces,
            count,
            applies,
            server,
        }
    }

    /// Returns the namespaces and names of all resources.
    fn members(&self) -> impl Iterator<Item = (&Space, String)> {
        (0..self.count).map(|index| {
            let space = &self.spaces[index % self.spaces.len()];
            (space, format!("stack-{index:05}"))
        })
    }

    async fn each(&self, request: impl AsyncFn(&Space, String)) {
        stream::iter(self.members())
            .for_each_concurrent(CONCURRENCY, async |(space, name)| {
                request(space, name).await;
            })
            .await;
    }

    /// Starts the operator in the phase `phase` of the test.
    fn start_operator(&self, phase: &str) -> Operator {
        let program = match std::env::var_os("ALUSTAN_PROFILER") {
            Some(profiler) => {
                let mut command = Command::new(profiler);
                command.args(["operator", phase]);
                command
            }
            None => Command::new(built("alustan-controller").unwrap()),
        };
        let [port] = free_ports();
        let mut operator = calls::operator(program, &self.server, &self.outside, port);
        operator.args(["--cache", "none", "--log-level", "info"]);
        let log = self.server.folder().join(format!("operator-{phase}.log"));
        Operator {
            port,
            process: spawn_guarded(&mut operator, &log),
        }
    }

    async fn create_resources(&self) {
        let address = &self.outside.address;
        self.each(async |space, name| {
            let namespace = &space.namespace;
            let stack = with_all(
                resource(&name),
                json!({
                    "/gitRepo/url": format!("http://{address}/team/{namespace}"),
                    "/containerRegistry/imageName": format!("{address}/present/{namespace}"),
                    "/variables": variables(&name, 0),
                    "/driftDetection": {"interval": "24h"},
                }),
            );
            space.apply(&stack).await.unwrap();
        })
        .await;
    }

    /// Waits until all resources are Ready.
    async fn ready(&self) {
        for applied in (TOGETHER..self.count).step_by(TOGETHER).chain([self.count]) {
            until(&format!("{applied} applies"), async || {
                let found = self.applies.lock().unwrap().len();
                (found >= applied)
                    .then_some(())
                    .ok_or_else(|| format!("{found} applies"))
            })
            .await;
        }
        self.each(async |space, name| {
            let api = space.api::<Terraform>();
            until("Ready", async || {
                let stack = api.get(&name).await.unwrap();
                is_ready(&stack)
                    .then_some(())
                    .ok_or_else(|| format!("{:#?}", stack.status))
            })
            .await;
        })
        .await;
    }

    /// Completes the history of each resource to ten runs, as after ten applies.
    async fn write_histories(&self) {
        let key = signing_key(&self.client).await;
        self.each(async |space, name| write_history(&space.api::<Secret>(), &name, &key).await)
            .await;
    }
}

/// A process of the operator.
struct Operator {
    port: u16,
    process: Child,
}

impl Operator {
    /// Waits for at least `count` reconciles, and then for none between two checks.
    async fn settled(&self, count: usize) {
        let last = Mutex::new(0.0);
        let count = f64::from(u32::try_from(count).unwrap());
        until("reconciles of all", async || {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            let now = calls::reconciles(self.port).await?;
            let before = std::mem::replace(&mut *last.lock().unwrap(), now);
            let is_settled = now >= count && before.to_bits() == now.to_bits();
            is_settled
                .then_some(())
                .ok_or_else(|| format!("{now} reconciles"))
        })
        .await;
    }

    /// Ends the process with SIGTERM and waits for its end.
    async fn end(mut self) {
        drop(self.process.stdin.take());
        let end = tokio::task::spawn_blocking(move || self.process.wait());
        end.await.unwrap().unwrap();
    }
}

/// Runs all Jobs, like the Job controller, the kubelet and the runner.
async fn run_jobs(client: Client, applies: Applies) {
    let jobs = watcher(Api::<Job>::all(client.clone()), Config::default());
    let mut jobs = std::pin::pin!(jobs.default_backoff().applied_objects());
    let mut started = HashSet::new();
    while let Some(job) = jobs.next().await {
        if let Ok(job) = job
            && started.insert(job.uid())
        {
            tokio::spawn(run_job(client.clone(), applies.clone(), job));
        }
    }
}

async fn run_job(client: Client, applies: Applies, job: Job) {
    let (namespace, name) = (job.namespace().unwrap(), job.name_any());
    let template = job.spec.unwrap().template;
    let mut pod = Pod {
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec,
        status: None,
    };
    pod.metadata.name = Some(name.clone());
    pod.labels_mut()
        .insert("batch.kubernetes.io/job-name".to_owned(), name.clone());
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let set_phase = async |phase: &str| {
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        pods.patch_status(&name, &PatchParams::default(), &status)
            .await
            .unwrap();
    };
    set_phase("Running").await;
    let runner = RunnerStandIn::of_pod(client.clone(), &pod).unwrap();
    runner.execute(std::future::ready(())).await.unwrap();
    let key = (namespace.clone(), runner.resource());
    *applies.lock().unwrap().entry(key).or_default() += 1;
    set_phase("Succeeded").await;
    complete_job(&Api::namespaced(client, &namespace), &name).await;
}

#[tokio::test]
async fn many_resources_are_applied_once_despite_restarts() {
    let load = Load::new().await;
    let operator = load.start_operator("apply");
    load.create_resources().await;
    load.ready().await;
    operator.end().await;

    load.write_histories().await;
    let operator = load.start_operator("history");
    operator.settled(load.count).await;
    operator.end().await;

    let operator = load.start_operator("start");
    operator.settled(load.count).await;
    for _ in 0..SCRAPES {
        calls::reconciles(operator.port).await.unwrap();
    }
    operator.end().await;
    let applies = load.applies.lock().unwrap();
    assert_eq!(applies.len(), load.count);
    assert!(applies.values().all(|count| *count == 1), "{applies:?}");
}
