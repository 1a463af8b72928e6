//! Requests of the operator to the API server for one run: an apply, from the change of the resource to Ready, a drift check, a deletion and a
//! build. The tests simulate the Job controller, the kubelet and the runner. For the requests of the runner see `crates/runner/tests/run/calls.rs`.

use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::run::{Output, Outputs, RunKind, key};
use alustan_api::{RECONCILE_AT, State, Terraform, labels, names};
use alustan_tests::RunnerStandIn;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::Role;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::outside::Outside;
use crate::server::{OPERATOR, Server, built, free_ports, spawn_guarded, until};
use crate::space::{Space, complete_job, resource, with, with_all};

/// Requests of the first apply, without the read and the label of the namespace, which the operator sends once per namespace.
const FIRST: &[&str] = &[
    "patch terraforms web",
    "create secrets web-run",
    "patch poddisruptionbudgets web-runner",
    "patch rolebindings web-runner",
    "patch roles web-runner",
    "patch secrets web-state",
    "patch serviceaccounts web-runner",
    // Start of the run.
    "patch secrets web-run",
    "create secrets web-report",
    "patch secrets web-pin",
    "create jobs web-apply-1",
    // State `Planning`.
    "patch terraforms/status web",
    "create events",
    // The operator publishes the outputs and records the report.
    "patch secrets web-outputs",
    "patch terraformruns 1",
    "patch secrets web-run",
    "patch secrets web-report",
    // State `Success`.
    "patch terraforms/status web",
    "create events",
];

/// Objects of the second run. The pod of the first run mounts no cache volume, and the first run stores its state in `web-state`. The second run adds
/// two state slots, which the Role must list.
const SLOTS: &[&str] = &[
    "create persistentvolumeclaims web-cache",
    "patch roles web-runner",
    "patch secrets web-state-slot-0",
    "patch secrets web-state-slot-1",
];

/// Objects of a run whose Role and state slot another client has changed and deleted.
const REPAIR: &[&str] = &[
    "get roles web-runner",
    "get secrets web-state-slot-1",
    "patch roles web-runner",
    "patch secrets web-state-slot-1",
];

/// Requests of an apply `NUMBER` after a change of the spec, with the same image.
const NEXT: &[&str] = &[
    "patch secrets web-run",
    "patch secrets web-report",
    "patch secrets web-pin",
    "create jobs web-apply-NUMBER",
    "patch terraforms/status web",
    "create events",
    "patch secrets web-outputs",
    "patch terraformruns NUMBER",
    "patch secrets web-run",
    "patch secrets web-report",
    "patch terraforms/status web",
    "create events",
];

/// Requests of a drift check without changes.
const DRIFT: &[&str] = &[
    "patch secrets web-run",
    "patch secrets web-report",
    "create jobs web-drift-NUMBER",
    "patch secrets web-run",
    "patch secrets web-report",
];

/// Requests of a deletion: a destroy run, then lists and deletes of the objects of the resource.
const DELETION: &[&str] = &[
    // Start of the destroy run.
    "patch secrets web-run",
    "patch secrets web-report",
    "create jobs web-destroy-NUMBER",
    "patch terraforms/status web",
    "create events",
    "patch terraforms/status web",
    "create events",
    // The operator records the report, and removes the last apply from the status.
    "patch terraformruns NUMBER",
    "patch secrets web-run",
    "patch secrets web-report",
    "patch terraforms/status web",
    "patch secrets web-run",
    // Clean-up.
    "list jobs",
    "delete jobs web-apply-4",
    "delete jobs web-apply-5",
    "delete jobs web-destroy-NUMBER",
    "delete jobs web-drift-6",
    "list poddisruptionbudgets",
    "delete poddisruptionbudgets web-runner",
    "list rolebindings",
    "delete rolebindings web-runner",
    "list roles",
    "delete roles web-runner",
    "list serviceaccounts",
    "delete serviceaccounts web-runner",
    "list persistentvolumeclaims",
    "delete persistentvolumeclaims web-cache",
    "list configmaps",
    "list secrets",
    "delete secrets web-outputs",
    "delete secrets web-pin",
    "delete secrets web-report",
    "delete secrets web-run",
    "delete secrets web-state",
    "delete secrets web-state-slot-0",
    "delete secrets web-state-slot-1",
    // No state is left in the namespace.
    "list secrets",
    "list secrets",
    "list persistentvolumeclaims",
    "patch namespaces NAMESPACE",
    "list secrets",
    "list secrets",
    "list persistentvolumeclaims",
    // Finalizer.
    "patch terraforms web",
];

/// Requests of a build, after the creation of the run record and before the other requests of [`FIRST`].
const BUILD: &[&str] = &[
    "patch secrets web-run",
    "create jobs BUILD",
    // State `Building`.
    "patch terraforms/status web",
    "create events",
];

/// Request that removes the finalizer.
const REMOVAL: &str = "patch terraforms web";

/// Requests that repeat the removal of the finalizer, if the watch has not delivered the last update of the status.
const REPEATED_REMOVAL: &[&str] = &["get terraforms web", REMOVAL];

/// Requests of one more reconcile, if the watch has not delivered the deletion.
const STALE_RECONCILE: &[&str] = &[
    "get secrets web-run",
    "get secrets web-report",
    "get secrets web-pin",
    "get terraforms web",
];

/// Request that publishes the outputs.
const OUTPUTS: &str = "patch secrets web-outputs";

/// Request that updates the status of the resource.
const STATUS: &str = "patch terraforms/status web";

/// Request for the Secret that contains environment variables of the runs.
const READ: &str = "get secrets credentials";

/// Maximum number of [`READ`] requests during the first apply: one by the first reconcile, one at the start of the run, and one per ten
/// seconds of the run. About ten reconciles use the Secret, but the operator reads the Secret at most once per ten seconds during the run.
const READS: usize = 5;

/// Maximum number of reconciles of a later apply. At least one for each of its eight changes: spec, pod (created, running, ended), claim, start of
/// the changes, report, end of the Job. The operator's own writes cause others, which may coincide with them.
const RECONCILES: f64 = 14.0;

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
        let program = Command::new(built("alustan-controller").unwrap());
        let mut operator = operator(program, &server, &outside, port);
        operator.args(["--log-level", "info,alustan_controller=debug"]);
        let process = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
        Self {
            server,
            outside,
            port,
            _process: process,
        }
    }

    /// Waits for a reconcile after `event`.
    async fn reconciles_after(&self, event: impl Future<Output = ()>) {
        let before = reconciles(self.port).await.unwrap();
        event.await;
        until("a reconcile", async || {
            let now = reconciles(self.port).await?;
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

/// Adds arguments to the command `program` of the operator: git server, registry and port for HTTP.
pub(crate) fn operator(
    mut program: Command,
    server: &Server,
    outside: &Outside,
    port: u16,
) -> Command {
    let address = &outside.address;
    program
        .args(["--base-image", &format!("{address}/base:1")])
        .args(["--operator-image", &format!("{address}/operator:1")])
        .args(["--insecure-registry", address])
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg("--cache-dir")
        .arg(server.folder().join("cache"))
        .env("KUBECONFIG", server.kubeconfig_file_of(OPERATOR))
        .env("SIGNAL", "TERM");
    program
}

/// Returns the number of reconciles so far, from the metrics of the operator with HTTP port `port`.
pub(crate) async fn reconciles(port: u16) -> Result<f64, String> {
    let url = format!("http://127.0.0.1:{port}/metrics");
    let answer = reqwest::get(url).await.map_err(|error| error.to_string())?;
    let text = answer.text().await.map_err(|error| error.to_string())?;
    Ok(text
        .lines()
        .filter_map(|line| line.strip_prefix("alustan_reconciles_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum())
}

/// Returns true if the request applies an object of a run, for example the cache volume or the ServiceAccount.
fn is_applied(request: &str) -> bool {
    let name = request.rsplit(' ').next().unwrap_or_default();
    ["web-cache", "web-pin", "web-runner"].contains(&name) || name.starts_with("web-state")
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
    // Names of TerraformRuns contain the uid of the resource, and end with the number of the run.
    let number = name.rsplit('-').next().filter(|_| kind == "terraformruns");
    let name = number.unwrap_or(&name);
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
    kind: RunKind,
    number: i64,
}

impl Run<'_> {
    fn job(&self) -> String {
        names::run_job("web", self.kind, self.number)
    }

    /// Simulates the whole run, from its Job to the end of its pod.
    async fn carry_out(&self) {
        self.carry_out_with(async || {}).await;
    }

    /// Simulates the whole run. Calls `meanwhile` after the start of its pod.
    async fn carry_out_with(&self, meanwhile: impl AsyncFnOnce()) {
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
        if self.kind == RunKind::Apply {
            self.state_is(State::Planning).await;
        }
        self.operator.reconciles_after(self.create_pod(&job)).await;
        self.operator.reconciles_after(self.pod_is("Running")).await;
        meanwhile().await;
        self.operator.reconciles_after(self.claims()).await;
        if self.kind.changes() {
            self.begins().await;
        }
        self.reports().await;
        if self.kind == RunKind::Destroy {
            return;
        }
        self.is_recorded().await;
        self.state_is(State::Success).await;
        self.operator
            .reconciles_after(self.pod_is("Succeeded"))
            .await;
        self.finishes(&job).await;
    }

    /// Waits until the operator has recorded the report.
    async fn is_recorded(&self) {
        let api = self.space.api::<Secret>();
        until("the record of the report", async || {
            let report = api.get(&names::report("web")).await.unwrap();
            let data = report.data.unwrap();
            let is_recorded = !data.contains_key(key::REPORT);
            is_recorded
                .then_some(())
                .ok_or_else(|| format!("{:?}", data.keys()))
        })
        .await;
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

    /// Returns the stand-in for the runner in the pod.
    fn runner(&self) -> RunnerStandIn {
        let client = self.space.api::<Secret>().into_client();
        RunnerStandIn::of_run(
            client,
            &self.space.namespace,
            "web",
            self.number,
            &self.job(),
        )
    }

    async fn claims(&self) {
        self.runner().claim().await.map(drop).unwrap();
    }

    async fn begins(&self) {
        self.runner().begin().await.unwrap();
    }

    async fn reports(&self) {
        let output = Output {
            value: self.number.to_string().into(),
            sensitive: false,
        };
        let outputs = Outputs::from([("number".to_owned(), output)]);
        self.runner().report(self.kind, &outputs).await.unwrap();
    }
}

/// Creates a resource whose runs take environment variables from a Secret, and whose image is in the repository `images`.
async fn create(operator: &Operator, space: &Space, images: &str) -> Value {
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
            "/containerRegistry/imageName": format!("{address}/{images}"),
            "/runner/envFromSecrets": [{"name": "credentials"}],
        }),
    );
    space.apply(&web).await.unwrap();
    web
}

/// Compares the requests of run `number`.
fn assert_requests(what: &str, number: i64, requests: &[String], expected: &[&[&str]]) {
    let mut requests = requests.to_vec();
    // The number of reads of the Secret depends on the duration of the run.
    requests.retain(|request| request != READ);
    // From run 4 on, each run deletes the Job of the oldest run after the end of its pod.
    let is_deletion = |request: &&String| request.starts_with("delete jobs");
    if requests.iter().filter(is_deletion).count() == 1 {
        requests.retain(|request| !is_deletion(&request));
    }
    let is_job = |request: &String| request.starts_with("create jobs");
    let mut after = requests.split_off(requests.iter().position(is_job).unwrap_or_default());
    // A repository or registry that does not respond within a second causes a status update before the run starts.
    let before = requests.len();
    requests.retain(|request| request != STATUS);
    let updates = before - requests.len();
    assert!(updates <= 2, "{updates} status updates before the Job");
    // An apply that lasts longer than a second causes another status update, with state `Applying`.
    let outputs = after.iter().position(|request| *request == OUTPUTS);
    if let Some(applying) = outputs.and_then(|outputs| outputs.checked_sub(1))
        && after[applying] == STATUS
    {
        after.remove(applying);
    }
    requests.append(&mut after);
    let expected: Vec<_> = expected
        .iter()
        .flat_map(|requests| *requests)
        .map(|request| request.replace("NUMBER", &number.to_string()))
        .collect();
    let count = requests.len();
    let wanted = expected.len();
    assert_eq!(
        requests, expected,
        "{what} takes {count} requests of the operator instead of {wanted}"
    );
}

/// Removes the requests about the namespace, which the operator sends once per namespace: a read and a label.
fn without_namespace(requests: &mut Vec<String>) {
    let before = requests.len();
    requests.retain(|request| !request.contains(" namespaces "));
    assert_eq!(before - requests.len(), 2, "requests about the namespace");
}

#[tokio::test]
async fn runs_send_a_fixed_sequence_of_requests() {
    let operator = Operator::new().await;
    let space = Space::of(&operator.server, json!({})).await;
    let web = create(&operator, &space, "present").await;
    let run = |kind: RunKind, number: i64| Run {
        operator: &operator,
        space: &space,
        kind,
        number,
    };
    run(RunKind::Apply, 1).carry_out().await;
    let mut first = operator.requests(&space.namespace);
    let mut seen = first.len();
    let mut new = || {
        let requests = operator.requests(&space.namespace);
        let new = requests[seen..].to_vec();
        seen = requests.len();
        new
    };
    let reads = first.iter().filter(|request| **request == READ).count();
    assert!(reads <= READS, "{reads} reads of the Secret");
    without_namespace(&mut first);
    assert_requests("the first apply", 1, &first, &[FIRST]);

    let sized = |size: i64| with(web.clone(), "/variables", Some(json!({"size": size})));
    let apply = async |number: i64| {
        space.apply(&sized(number)).await.unwrap();
        run(RunKind::Apply, number).carry_out().await;
    };
    apply(2).await;
    assert_requests("the second apply", 2, &new(), &[SLOTS, NEXT]);
    let before = reconciles(operator.port).await.unwrap();
    apply(3).await;
    assert_requests("a later apply", 3, &new(), &[NEXT]);
    let reconciles = reconciles(operator.port).await.unwrap() - before;
    assert!(reconciles <= RECONCILES, "{reconciles} reconciles");

    // Another client changes objects of the runs during run 4. Run 5 repairs them.
    space.apply(&sized(4)).await.unwrap();
    let roles = space.api::<Role>();
    let granted = roles.get("web-runner").await.unwrap().rules;
    let change = async || {
        let (edit, merge) = (PatchParams::default(), Patch::Merge(json!({"rules": []})));
        roles.patch("web-runner", &edit, &merge).await.unwrap();
        let secrets = space.api::<Secret>();
        let parameters = DeleteParams::default();
        secrets
            .delete("web-state-slot-1", &parameters)
            .await
            .unwrap();
    };
    run(RunKind::Apply, 4).carry_out_with(change).await;
    assert_requests("an apply during the change", 4, &new(), &[NEXT]);
    apply(5).await;
    assert_requests("an apply after the change", 5, &new(), &[REPAIR, NEXT]);
    assert_eq!(roles.get("web-runner").await.unwrap().rules, granted);

    let report = with(sized(5), "/driftDetection", Some(json!({"mode": "Report"})));
    operator
        .reconciles_after(async { drop(space.apply(&report).await.unwrap()) })
        .await;
    run(RunKind::Apply, 5).state_is(State::Success).await;
    new();
    let annotation = json!({"metadata": {"annotations": {RECONCILE_AT: "now"}}});
    let (edit, merge) = (PatchParams::default(), Patch::Merge(annotation));
    let terraforms = space.api::<Terraform>();
    terraforms.patch("web", &edit, &merge).await.unwrap();
    run(RunKind::Drift, 6).carry_out().await;
    assert_requests("a drift check", 6, &new(), &[DRIFT]);

    let parameters = DeleteParams::default();
    terraforms.delete("web", &parameters).await.unwrap();
    run(RunKind::Destroy, 7).carry_out().await;
    until("the deletion", async || {
        let deleted = terraforms.get_opt("web").await.unwrap();
        deleted.map_or(Ok(()), |web| Err(format!("{:#?}", web.status)))
    })
    .await;
    let mut requests = new();
    for request in &mut requests {
        *request = request.replace(&space.namespace, "NAMESPACE");
    }
    let removal = requests.iter().position(|request| request == REMOVAL);
    let late = requests.split_off(removal.expect("a removal of the finalizer") + 1);
    let late: Vec<_> = late.iter().map(String::as_str).collect();
    let rest = late.strip_prefix(REPEATED_REMOVAL).unwrap_or(&late);
    let rest = rest.strip_prefix(STALE_RECONCILE).unwrap_or(rest);
    assert!(rest.is_empty(), "{late:?}");
    assert_requests("a deletion", 7, &requests, &[DELETION]);
}

#[tokio::test]
async fn build_sends_a_fixed_sequence_of_requests() {
    let operator = Operator::new().await;
    let space = Space::of(&operator.server, json!({})).await;
    create(&operator, &space, "team/web").await;
    let jobs = space.api::<Job>();
    let build = until("the build", async || {
        let mut jobs = jobs.list(&ListParams::default()).await.unwrap().items;
        jobs.pop().ok_or_else(|| "no Job".to_owned())
    })
    .await;
    let first = Run {
        operator: &operator,
        space: &space,
        kind: RunKind::Apply,
        number: 1,
    };
    first.state_is(State::Building).await;
    let tag = &build.labels()[labels::IMAGE_TAG];
    operator.outside.push_image("team/web", tag);
    let name = build.name_any();
    operator.reconciles_after(complete_job(&jobs, &name)).await;
    first.carry_out().await;
    let mut requests = operator.requests(&space.namespace);
    without_namespace(&mut requests);
    let (new, run) = FIRST.split_at(2);
    let expected = [new, BUILD, run];
    for request in &mut requests {
        *request = request.replace(&name, "BUILD");
    }
    assert_requests("a build and the first apply", 1, &requests, &expected);
}

/// A runner claims a run by replacing the progress in the run report. The API server must refuse the patch if the progress has changed.
#[tokio::test]
async fn replaced_value_must_be_unchanged() {
    let space = Space::new().await;
    let secrets = space.api::<Secret>();
    space
        .create::<Secret>(json!({"metadata": {"name": "web-report"}, "data": {"progress": "YQ=="}}))
        .await;
    let replace = async |before: &str, after: &str| {
        let patch = json!([
            {"op": "test", "path": "/data/progress", "value": before},
            {"op": "replace", "path": "/data/progress", "value": after},
        ]);
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
        let parameters = PatchParams::default();
        secrets.patch("web-report", &parameters, &patch).await
    };
    let replaced = replace("YQ==", "Yg==").await.unwrap();
    assert_eq!(replaced.data.unwrap()["progress"].0, b"b");
    match replace("YQ==", "Yw==").await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 422, "{status:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn foreign_object_of_the_same_name_is_not_changed() {
    let operator = Operator::new().await;
    let space = Space::of(&operator.server, json!({})).await;
    let accounts = space.api::<ServiceAccount>();
    let theirs: ServiceAccount = space
        .create(json!({"metadata": {"name": "web-runner"}}))
        .await;
    create(&operator, &space, "present").await;
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
