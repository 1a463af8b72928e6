//! The operator and runs behind an API server that refuses requests for a while, or whose history is compacted while the operator cannot
//! reach it. The tests simulate the Job controller and the runner.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Instant;

use alustan_api::{Terraform, TerraformRun};
use alustan_tests::{RunnerStandIn, is_ready};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::calls;
use crate::fault_proxy::{Fault, FaultProxy};
use crate::outside::Outside;
use crate::server::{OPERATOR, Server, built, free_ports, spawn_guarded, until};
use crate::space::{Space, complete_job, resource, with, with_all};

/// Names of the resources.
const NAMES: [&str; 3] = ["web-0", "web-1", "web-2"];
/// Maximum number of requests with the same method, path and selector.
struct Limit {
    first: f64,
    per_second: f64,
}

/// Limit while all requests are refused. The client repeats a request several times within the first second. The shortest backoff that does
/// not grow is 800 ms; after it, the client repeats the request three times at once.
const REFUSED: Limit = Limit {
    first: 6.0,
    per_second: 4.0,
};

/// Limit while watches end at once: one request per second, and those that are sent when the faults change.
const ENDED: Limit = Limit {
    first: 2.0,
    per_second: 1.0,
};

/// Number of watches that fill caches or report changes of inputs.
const WATCHES: usize = 8;

/// An operator and runs behind a proxy. The client of `space` is not behind the proxy.
struct Outage {
    server: Arc<Server>,
    outside: Outside,
    proxy: FaultProxy,
    space: Space,
    /// Client of the runs.
    runner: Client,
    /// Port of the HTTP server of the operator.
    port: u16,
    _operator: Child,
}

impl Outage {
    async fn new() -> Self {
        let server = Server::of_its_own().await;
        let outside = Outside::start(server.folder()).await;
        let proxy = FaultProxy::start(&server).await;
        let [port] = free_ports();
        let program = Command::new(built("alustan-controller").unwrap());
        let mut operator = calls::operator(program, &server, &outside, port);
        let kubeconfig = server.kubeconfig_file_behind(&proxy.url, OPERATOR);
        operator.env("KUBECONFIG", kubeconfig);
        let log = server.folder().join("operator.log");
        let mut config = server.client_config_behind(&proxy.url, OPERATOR).await;
        // As in the runner, which retries each request itself.
        config.default_retry = false;
        Self {
            space: Space::of(&server, json!({})).await,
            runner: Client::try_from(config).unwrap(),
            _operator: spawn_guarded(&mut operator, &log),
            server,
            outside,
            proxy,
            port,
        }
    }

    fn resource(&self, name: &str) -> Value {
        let address = &self.outside.address;
        with_all(
            resource(name),
            json!({
                "/gitRepo/url": format!("http://{address}/team/infra"),
                "/containerRegistry/imageName": format!("{address}/present/{name}"),
                "/driftDetection": {"interval": "24h"},
                "/retry": {"minBackoff": "1s", "maxBackoff": "2s"},
            }),
        )
    }

    async fn apply(&self, name: &str, size: usize) {
        let resource = with(
            self.resource(name),
            "/variables",
            Some(json!({"size": size})),
        );
        self.space.apply(&resource).await.unwrap();
    }

    fn stand_in(&self, job: &Job) -> RunnerStandIn {
        let name = job.name_any();
        let mut parts = name.rsplitn(3, '-');
        let number = parts.next().unwrap().parse().unwrap();
        let resource = parts.nth(1).unwrap();
        RunnerStandIn::of_run(
            self.runner.clone(),
            &self.space.namespace,
            resource,
            number,
            &name,
        )
    }

    /// Returns the Jobs that have not ended.
    async fn active(&self) -> Vec<Job> {
        let mut jobs = self.space.list::<Job>().await;
        jobs.retain(|job| {
            let status = job.status.as_ref();
            status.is_none_or(|status| status.conditions.is_none())
        });
        jobs
    }

    /// Waits for `count` active Jobs.
    async fn jobs(&self, count: usize) -> Vec<Job> {
        until("Jobs", async || {
            let jobs = self.active().await;
            (jobs.len() == count)
                .then_some(jobs)
                .ok_or_else(|| format!("{:?}", self.created_jobs()))
        })
        .await
    }

    /// Executes all active runs, until `reached`.
    async fn execute_until(&self, what: &str, reached: impl AsyncFn() -> Result<(), String>) {
        until(what, async || {
            for job in self.active().await {
                let runner = self.stand_in(&job);
                runner.execute(std::future::ready(())).await.unwrap();
                complete_job(&self.space.api(), &job.name_any()).await;
            }
            reached().await
        })
        .await;
    }

    /// Executes all active runs, until the resources `names` are Ready with their latest generation.
    async fn ready(&self, names: &[&str]) {
        self.execute_until("Ready", async || {
            for name in names {
                let tf = self.space.api::<Terraform>().get(name).await.unwrap();
                let status = tf.status.clone().unwrap_or_default();
                if !is_ready(&tf) || status.observed_generation != tf.metadata.generation {
                    return Err(format!("{name}: {status:#?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    async fn readyz(&self) -> Result<String, String> {
        let url = format!("http://127.0.0.1:{}/readyz", self.port);
        let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
        answer.text().await.map_err(|error| error.to_string())
    }

    /// Returns the number of changes of the holder of the Lease, and the holder.
    async fn holder(&self) -> (Option<i32>, String) {
        let api: Api<Lease> = Api::namespaced(self.space.client.clone(), "alustan-system");
        let lease = api.get("alustan").await.unwrap().spec.unwrap();
        (lease.lease_transitions, lease.holder_identity.unwrap())
    }

    /// Returns how often each Job was created.
    fn created_jobs(&self) -> BTreeMap<String, usize> {
        let mut created = BTreeMap::new();
        for call in self.server.audit() {
            let object = &call["objectRef"];
            let is_created = call["verb"] == "create"
                && object["resource"] == "jobs"
                && call["responseStatus"]["code"] == 201;
            if is_created {
                let name = object["name"].as_str().unwrap().to_owned();
                *created.entry(name).or_default() += 1;
            }
        }
        created
    }

    /// Asserts that each of the runs 1 to `count` of each of the resources `names` was started once, and is recorded as successful.
    async fn assert_runs(&self, names: &[&str], count: usize) {
        let runs = names
            .iter()
            .flat_map(|name| (1..=count).map(move |number| format!("{name}-apply-{number}")));
        let once: BTreeMap<_, _> = runs.map(|job| (job, 1)).collect();
        assert_eq!(self.created_jobs(), once);
        let recorded = self.space.list::<TerraformRun>().await;
        let recorded: BTreeMap<_, _> = recorded
            .into_iter()
            .map(|run| (run.spec.job, run.status.unwrap().result))
            .collect();
        let done = once.into_keys().map(|job| (job, "Done".to_owned()));
        assert_eq!(recorded, done.collect());
    }

    /// Sets `fault`, awaits `reached`, and asserts that the number of requests until then is within `limit`.
    async fn limited(&self, fault: Fault, limit: &Limit, reached: impl Future<Output = ()>) {
        let since = Instant::now();
        self.proxy.set(fault);
        reached.await;
        let requests = self.proxy.requests();
        let seconds = since.elapsed().as_secs_f64();
        let limit = limit.first + limit.per_second * seconds;
        for (request, count) in requests {
            let count = f64::from(u32::try_from(count).unwrap());
            assert!(
                count <= limit,
                "{fault:?}: {request}: {count} times in {seconds} s"
            );
        }
    }

    /// Waits until [`WATCHES`] watches were requested `count` times each since the last change of the fault.
    async fn watched(&self, count: usize) {
        until("requests of watches", async || {
            let requests = self.proxy.requests();
            let watched = requests
                .iter()
                .filter(|(request, requested)| {
                    request.contains("watch=true") && **requested >= count
                })
                .count();
            (watched >= WATCHES)
                .then_some(())
                .ok_or_else(|| format!("{requests:#?}"))
        })
        .await;
    }
}

#[tokio::test]
async fn runs_survive_an_api_server_that_answers_429_and_500() {
    let outage = Outage::new().await;
    outage.proxy.set(Fault::Share);
    for name in NAMES {
        outage.apply(name, 1).await;
    }
    outage.ready(&NAMES).await;
    outage.assert_runs(&NAMES, 1).await;
    outage.proxy.set(Fault::None);

    // The runs 2 begin before the outage, and end during the outage.
    for name in NAMES {
        outage.apply(name, 2).await;
    }
    let held = Arc::new(Barrier::new(NAMES.len() + 1));
    let jobs = outage.jobs(NAMES.len()).await;
    let runs: Vec<_> = jobs
        .iter()
        .map(|job| {
            let (runner, held) = (outage.stand_in(job), held.clone());
            let before_report = async move {
                held.wait().await;
                held.wait().await;
            };
            tokio::spawn(async move { runner.execute(before_report).await })
        })
        .collect();
    held.wait().await;
    let holder = outage.holder().await;
    outage.watched(1).await;
    outage
        .limited(Fault::All, &REFUSED, async {
            for name in NAMES {
                outage.apply(name, 3).await;
            }
            held.wait().await;
            until("the end of the Lease", async || {
                let role = outage.readyz().await?;
                let is_over = role.contains("may have expired");
                is_over.then_some(()).ok_or(role)
            })
            .await;
            outage.watched(3).await;
        })
        .await;
    outage.proxy.set(Fault::None);
    for run in runs {
        run.await.unwrap().unwrap();
    }
    for job in jobs {
        complete_job(&outage.space.api(), &job.name_any()).await;
    }
    outage.ready(&NAMES).await;
    outage.assert_runs(&NAMES, 3).await;

    outage
        .limited(Fault::ShortWatches, &ENDED, outage.watched(4))
        .await;
    assert_eq!(outage.holder().await, holder, "the operator has restarted");
}

#[tokio::test]
async fn changes_before_an_etcd_compaction_are_noticed() {
    let outage = Outage::new().await;
    let space = &outage.space;
    space
        .create::<ConfigMap>(json!({"metadata": {"name": "sizes"}, "data": {"size": "1"}}))
        .await;
    for name in ["changed", "deleted"] {
        space
            .create::<Secret>(json!({"metadata": {"name": name}, "stringData": {"size": "1"}}))
            .await;
    }
    let names = ["spec", "map", "secret", "orphan", "job", "gone"];
    let inputs = [
        None,
        Some(json!([{"configMapRef": {"name": "sizes"}}])),
        Some(json!([{"secretRef": {"name": "changed"}}])),
        Some(json!([{"secretRef": {"name": "deleted"}}])),
        None,
        None,
    ];
    for (name, inputs) in names.iter().zip(inputs) {
        let resource = with(outage.resource(name), "/variablesFrom", inputs);
        space.apply(&resource).await.unwrap();
    }
    outage.ready(&names).await;
    outage.apply("job", 2).await;
    outage.jobs(1).await;
    let holder = outage.holder().await;

    // The API server answers no request of the operator until it has restarted: a new watch cache has none of the compacted revisions.
    outage.proxy.set(Fault::All);
    outage.apply("spec", 2).await;
    outage.apply("new", 1).await;
    let edit = PatchParams::default();
    let larger = Patch::Merge(json!({"data": {"size": "2"}}));
    let maps = space.api::<ConfigMap>();
    maps.patch("sizes", &edit, &larger).await.unwrap();
    let larger = Patch::Merge(json!({"stringData": {"size": "2"}}));
    let secrets = space.api::<Secret>();
    secrets.patch("changed", &edit, &larger).await.unwrap();
    let delete = DeleteParams::default();
    secrets.delete("deleted", &delete).await.unwrap();
    space.raw().delete("gone", &delete).await.unwrap();
    let jobs = space.api::<Job>();
    jobs.delete("job-apply-2", &DeleteParams::background())
        .await
        .unwrap();
    outage.server.compact().await;
    outage.server.restart_api_server().await;
    outage.proxy.set(Fault::None);

    outage.ready(&["spec", "map", "secret", "job", "new"]).await;
    outage
        .execute_until("the deletions", async || {
            let tf = space.api::<Terraform>().get("orphan").await.unwrap();
            let text = serde_json::to_string(&tf.status).unwrap();
            let is_gone = space.raw().get_opt("gone").await.unwrap().is_none();
            (is_gone && text.contains("SecretNotFound"))
                .then_some(())
                .ok_or(text)
        })
        .await;
    let expired = outage.proxy.expired();
    for path in [
        "/api/v1/configmaps",
        "/api/v1/secrets",
        "/apis/alustan.io/v1alpha1/terraforms",
        "/apis/batch/v1/jobs",
    ] {
        assert!(
            expired.contains(path),
            "{path} has not expired: {expired:?}"
        );
    }
    let again = ["spec-apply-2", "map-apply-2", "secret-apply-2"];
    let jobs = names.map(|name| format!("{name}-apply-1")).into_iter();
    let jobs = jobs.chain(again.map(str::to_owned));
    let jobs = jobs.chain(["new-apply-1", "gone-destroy-2"].map(str::to_owned));
    let mut created: BTreeMap<_, _> = jobs.map(|job| (job, 1)).collect();
    // No pod had claimed run 2 when its Job was deleted, so the operator created the Job of the same run again.
    created.insert("job-apply-2".to_owned(), 2);
    assert_eq!(outage.created_jobs(), created);
    assert_eq!(outage.holder().await, holder, "the operator has restarted");
}
