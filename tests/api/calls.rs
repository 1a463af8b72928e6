//! Requests to the API server for one apply of a new resource, from its creation to Ready, with the runner image in the registry. The tests
//! simulate the Job controller, the kubelet and the runner. For the requests of the runner see `crates/runner/tests/run/calls.rs`.

use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::run::{Claim, Output, Outputs, RunKind, RunPhase, RunProgress, key};
use alustan_api::{State, Terraform, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::outside::Outside;
use crate::server::{OPERATOR, Server, built, free_ports, spawn_guarded, until};
use crate::space::{Space, complete_job, resource, with, with_all};

/// Requests of the first apply, without `get namespaces`, which the operator sends once per namespace.
const FIRST: &[&str] = &[
    "patch terraforms web",
    "create secrets web-run",
    // State `Pending`, before the objects of the run are created.
    "patch terraforms/status web",
    "patch poddisruptionbudgets web-runner",
    "patch rolebindings web-runner",
    "patch roles web-runner",
    "patch secrets web-state",
    "patch serviceaccounts web-runner",
    // Start of the run.
    "patch secrets web-run",
    "create secrets web-report",
    "patch namespaces",
    "patch secrets web-pin",
    "create jobs web-apply-1",
    // State `Planning`.
    "patch terraforms/status web",
    "create events",
    // State `Applying`.
    "patch terraforms/status web",
    // The operator publishes the outputs and records the report.
    "patch secrets web-outputs",
    "patch secrets web-run",
    "patch secrets web-report",
    // State `Success`.
    "patch terraforms/status web",
    "create events",
];

/// Requests of the second apply: changed spec, same image. `patch namespaces` is missing, because the operator labelled the namespace
/// during the first apply.
const NEXT: &[&str] = &[
    // The pod of the first run mounts no cache volume.
    "create persistentvolumeclaims web-cache",
    "get poddisruptionbudgets web-runner",
    "get rolebindings web-runner",
    "get roles web-runner",
    "get secrets web-state-slot-0",
    "get secrets web-state-slot-1",
    "get serviceaccounts web-runner",
    // The first run stores its state in `web-state`. The second run adds two state slots, which the Role must list.
    "patch roles web-runner",
    "patch secrets web-state-slot-0",
    "patch secrets web-state-slot-1",
    "patch secrets web-run",
    "patch secrets web-report",
    "patch secrets web-pin",
    "create jobs web-apply-2",
    "patch terraforms/status web",
    "create events",
    "patch terraforms/status web",
    "patch secrets web-outputs",
    "patch secrets web-run",
    "patch secrets web-report",
    "patch terraforms/status web",
    "create events",
];

/// Request that updates the status of the resource.
const STATUS: &str = "patch terraforms/status web";

/// Request for the Secret that contains environment variables of the runs.
const READ: &str = "get secrets credentials";

/// Maximum number of [`READ`] requests during the first apply: one by the first reconcile, one at the start of the run, and one per ten
/// seconds of the run. About ten reconciles use the Secret, but the operator reads the Secret at most once per ten seconds during the run.
const READS: usize = 5;

struct Operator {
    server: Arc<Server>,
    outside: Outside,
    port: u16,
    _process: Child,
}

impl Operator {
    async fn new() -> Self {
        let server = Server::of_its_own().await;
        let outside = Outside::start(server.folder()).await;
        let [port] = free_ports();
        let program = built("alustan-controller").unwrap();
        let mut operator = Command::new(program);
        let address = &outside.address;
        operator
            .args(["--base-image", &format!("{address}/base:1")])
            .args(["--operator-image", &format!("{address}/operator:1")])
            .args(["--insecure-registry", address])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--log-level", "info,alustan_controller=debug"])
            .arg("--cache-dir")
            .arg(server.folder().join("cache"))
            .env("KUBECONFIG", server.kubeconfig_file_of(OPERATOR))
            .env("SIGNAL", "TERM");
        let process = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
        Self {
            server,
            outside,
            port,
            _process: process,
        }
    }

    /// Returns the number of reconciles so far.
    async fn reconciles(&self) -> Result<f64, String> {
        let url = format!("http://127.0.0.1:{}/metrics", self.port);
        let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
        let text = answer.text().await.map_err(|error| error.to_string())?;
        Ok(text
            .lines()
            .filter_map(|line| line.strip_prefix("alustan_reconciles_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    }

    /// Waits for a reconcile after `event`.
    async fn reconciles_after(&self, event: impl Future<Output = ()>) {
        let before = self.reconciles().await.unwrap();
        event.await;
        until("a reconcile", async || {
            let now = self.reconciles().await?;
            (now > before)
                .then_some(())
                .ok_or_else(|| format!("{now} reconciles"))
        })
        .await;
    }

    /// Returns the operator's requests about objects of `namespace` in order, for example `patch secrets web-run`. The operator applies the
    /// objects of a run concurrently, so consecutive requests for these objects are sorted by text.
    fn requests(&self, namespace: &str) -> Vec<String> {
        let mut calls: Vec<_> = self
            .server
            .audit()
            .into_iter()
            .filter(|call| call["impersonatedUser"]["username"] == OPERATOR)
            .filter(|call| call["objectRef"]["namespace"] == namespace)
            .filter(|call| call["verb"] != "watch")
            .collect();
        calls.sort_by_key(|call| call["requestReceivedTimestamp"].as_str().map(str::to_owned));
        let mut requests: Vec<_> = calls.iter().map(described).collect();
        let together = |one: &String, other: &String| is_applied(one) && is_applied(other);
        for side_by_side in requests.chunk_by_mut(together) {
            side_by_side.sort();
        }
        requests
    }
}

/// Returns true if the request applies an object of a run, for example the cache volume or the ServiceAccount.
fn is_applied(request: &str) -> bool {
    let name = request.rsplit(' ').next().unwrap_or_default();
    request.starts_with("patch namespaces")
        || ["web-cache", "web-pin", "web-runner"].contains(&name)
        || name.starts_with("web-state")
}

fn described(call: &Value) -> String {
    let object = &call["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let subresource = object["subresource"]
        .as_str()
        .map(|subresource| format!("/{subresource}"))
        .unwrap_or_default();
    let verb = text(&call["verb"]);
    let kind = text(&object["resource"]);
    let name = text(&object["name"]);
    // Names of Events contain a time. Create requests of some kinds have no name.
    if name.is_empty() || kind == "events" {
        format!("{verb} {kind}{subresource}")
    } else {
        format!("{verb} {kind}{subresource} {name}")
    }
}

/// Simulates the Job controller, the kubelet and the runner in run `number` of the resource `web`.
struct Run<'a> {
    operator: &'a Operator,
    space: &'a Space,
    number: i64,
}

impl Run<'_> {
    fn job(&self) -> String {
        names::run_job("web", RunKind::Apply, self.number)
    }

    /// Simulates the whole run, from its Job to the end of its pod.
    async fn carry_out(&self) {
        let jobs = self.space.api::<Job>();
        let job = self.job();
        let job = until("the Job", async || {
            let job = jobs.get_opt(&job).await.unwrap();
            let status = self
                .space
                .api::<Terraform>()
                .get("web")
                .await
                .unwrap()
                .status;
            job.ok_or_else(|| format!("{status:#?}"))
        })
        .await;
        self.state_is(State::Planning).await;
        self.operator.reconciles_after(self.create_pod(&job)).await;
        self.operator.reconciles_after(self.pod_is("Running")).await;
        self.operator.reconciles_after(self.claims()).await;
        self.begins().await;
        self.state_is(State::Applying).await;
        self.reports().await;
        self.state_is(State::Success).await;
        self.operator
            .reconciles_after(self.pod_is("Succeeded"))
            .await;
        self.finishes(&job).await;
    }

    async fn state_is(&self, wanted: State) {
        let api = self.space.api::<Terraform>();
        until(&format!("{wanted:?}"), async || {
            let status = api.get("web").await.unwrap().status;
            let is = status.as_ref().is_some_and(|status| status.state == wanted);
            is.then_some(()).ok_or_else(|| format!("{status:#?}"))
        })
        .await;
    }

    /// Creates the pod, like the Job controller.
    async fn create_pod(&self, job: &Job) {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": self.job()},
            "spec": {
                "serviceAccountName": names::runner("web"), "automountServiceAccountToken": false,
                "containers": [{"name": "run", "image": "a"}],
            },
        }))
        .unwrap();
        let template = job.spec.clone().unwrap().template;
        pod.metadata.labels = template.metadata.unwrap().labels;
        let of_job = [
            ("batch.kubernetes.io/job-name", job.name_any()),
            ("batch.kubernetes.io/controller-uid", job.uid().unwrap()),
        ];
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.extend(of_job.map(|(key, value)| (key.to_owned(), value)));
        let pods = self.space.api();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Sets the Job to complete, like the Job controller.
    async fn finishes(&self, job: &Job) {
        let (jobs, name) = (self.space.api(), job.name_any());
        self.operator
            .reconciles_after(complete_job(&jobs, &name))
            .await;
    }

    /// Sets the phase of the pod, like the kubelet.
    async fn pod_is(&self, phase: &str) {
        let edit = PatchParams::default();
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        let pods = self.space.api::<Pod>();
        pods.patch_status(&self.job(), &edit, &status)
            .await
            .unwrap();
    }

    /// Changes the run report, like the runner.
    async fn change(&self, change: impl Fn(&mut RunProgress), more: Value) {
        let api = self.space.api::<Secret>();
        let name = names::report("web");
        let data = api.get(&name).await.unwrap().data.unwrap();
        let mut progress: RunProgress = serde_json::from_slice(&data[key::PROGRESS].0).unwrap();
        change(&mut progress);
        let mut data = more;
        data[key::PROGRESS] = encoded(&progress);
        let edit = PatchParams::default();
        let merge = Patch::Merge(json!({ "data": data }));
        api.patch(&name, &edit, &merge).await.unwrap();
    }

    async fn claims(&self) {
        let claim = Claim {
            pod_uid: self.number.to_string(),
            pod: self.job(),
            at: Timestamp::now(),
        };
        let claimed = |progress: &mut RunProgress| {
            progress.phase = RunPhase::Planning;
            progress.claimed_by = Some(claim.clone());
        };
        self.change(claimed, json!({})).await;
    }

    async fn begins(&self) {
        let begun = |progress: &mut RunProgress| {
            progress.phase = RunPhase::Applying;
            progress.began = true;
        };
        self.change(begun, json!({})).await;
    }

    async fn reports(&self) {
        let now = Timestamp::now();
        let report = json!({
            "number": self.number, "kind": "apply", "result": "Done", "trigger": "", "job": "",
            "startedAt": now, "finishedAt": now,
        });
        let output = Output {
            value: self.number.to_string().into(),
            sensitive: false,
        };
        let outputs = Outputs::from([("number".to_owned(), output)]);
        let data = json!({
            key::REPORT: encoded(&report), key::OUTPUTS: encoded(&outputs),
        });
        self.change(|progress| progress.phase = RunPhase::Reported, data)
            .await;
    }
}

fn encoded(value: &impl serde::Serialize) -> Value {
    let json = serde_json::to_vec(value).unwrap();
    serde_json::to_value(ByteString(json)).unwrap()
}

/// Creates a resource whose runs take environment variables from a Secret.
async fn create(operator: &Operator, space: &Space) -> Value {
    space
        .create::<Secret>(json!({
            "metadata": {"name": "credentials"}, "stringData": {"TOKEN": "secret"},
        }))
        .await;
    let address = &operator.outside.address;
    let web = with_all(
        resource("web"),
        json!({
            "/gitRepo/url": format!("http://{address}/team/infra"),
            "/containerRegistry/imageName": format!("{address}/present"),
            "/runner/envFromSecrets": [{"name": "credentials"}],
        }),
    );
    space.apply(&web).await.unwrap();
    web
}

fn assert_requests(what: &str, space: &Space, requests: &[String], expected: &[&str]) {
    let mut requests = requests.to_vec();
    // The number of reads of the Secret depends on the duration of the run.
    requests.retain(|request| request != READ);
    let is_job = |request: &String| request.starts_with("create jobs");
    let mut after = requests.split_off(requests.iter().position(is_job).unwrap_or_default());
    // A repository or registry that does not respond within a second causes another status update before the run starts.
    let is_status = |request: &&String| *request == STATUS;
    let updates = requests.iter().filter(is_status).count();
    assert!(updates <= 2, "{updates} status updates before the Job");
    requests.dedup_by(|one, other| one == other && one == STATUS);
    requests.append(&mut after);
    let mark = format!("patch namespaces {}", space.namespace);
    let expected: Vec<_> = expected
        .iter()
        .map(|request| request.replace("patch namespaces", &mark))
        .collect();
    let count = requests.len();
    let wanted = expected.len();
    assert_eq!(
        requests, expected,
        "{what} takes {count} requests of the operator instead of {wanted}"
    );
}

#[tokio::test]
async fn applies_send_a_fixed_sequence_of_requests() {
    let operator = Operator::new().await;
    let space = Space::of(&operator.server, json!({})).await;
    let web = create(&operator, &space).await;
    let run = |number: i64| Run {
        operator: &operator,
        space: &space,
        number,
    };
    run(1).carry_out().await;
    let mut first = operator.requests(&space.namespace);
    let read = format!("get namespaces {}", space.namespace);
    let reads = first.iter().filter(|request| **request == read).count();
    assert_eq!(reads, 1, "reads of the namespace");
    first.retain(|request| *request != read);
    assert_requests("the first apply", &space, &first, FIRST);
    let reads = first.iter().filter(|request| **request == READ).count();
    assert!(reads <= READS, "{reads} reads of the Secret");

    let so_far = operator.requests(&space.namespace).len();
    let changed = with(web, "/variables", Some(json!({"size": 2})));
    space.apply(&changed).await.unwrap();
    run(2).carry_out().await;
    let next = &operator.requests(&space.namespace)[so_far..];
    assert_requests("the next apply", &space, next, NEXT);
}

#[tokio::test]
async fn foreign_object_of_the_same_name_is_not_changed() {
    let operator = Operator::new().await;
    let space = Space::of(&operator.server, json!({})).await;
    let accounts = space.api::<ServiceAccount>();
    let theirs: ServiceAccount = space
        .create(json!({"metadata": {"name": "web-runner"}}))
        .await;
    create(&operator, &space).await;
    let api = space.api::<Terraform>();
    until("a word about it", async || {
        let status = api.get("web").await.unwrap().status.unwrap_or_default();
        let is_reported = status.message.contains("ServiceAccount web-runner");
        is_reported
            .then_some(())
            .ok_or_else(|| format!("{status:#?}"))
    })
    .await;
    let after = accounts.get("web-runner").await.unwrap();
    assert_eq!(after.metadata, theirs.metadata);
    assert!(space.list::<Job>().await.is_empty());
}
