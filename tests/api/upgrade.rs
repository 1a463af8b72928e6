//! An operator with a new base image takes over resources that were applied with the previous base image. The tests simulate the Job
//! controller and the runner.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::labels::{IMAGE_TAG, NAME};
use alustan_api::run::Outputs;
use alustan_api::{RECONCILE_AT, Terraform};
use alustan_tests::RunnerStandIn;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::outside::Outside;
use crate::server::{OPERATOR, Server, built, spawn_guarded, until};
use crate::space::{Space, complete_job, resource, with, with_all};

const MANY: usize = 50;
/// Value of `--max-concurrent-runs`. The operator reserves a tenth of the slots, rounded down, for namespaces without a run: none of eight
/// slots.
const SLOTS: usize = 8;

struct Operator {
    server: Arc<Server>,
    outside: Outside,
    process: Option<Child>,
}

impl Operator {
    async fn new() -> Self {
        let server = Server::of_its_own().await;
        Self {
            outside: Outside::start(server.folder()).await,
            server,
            process: None,
        }
    }

    /// Stops the running operator, if any, and starts an operator with the base image `tag`.
    fn start(&mut self, tag: &str) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
        let mut operator = Command::new(built("alustan-controller").unwrap());
        let address = &self.outside.address;
        operator
            .args(["--base-image", &format!("{address}/base:{tag}")])
            .args(["--operator-image", &format!("{address}/operator:1")])
            .args(["--insecure-registry", address])
            .args(["--listen", "127.0.0.1:0"])
            .args(["--max-concurrent-runs", &SLOTS.to_string()])
            .args(["--max-runs-per-namespace", &SLOTS.to_string()])
            .args(["--pod-name", "operator"])
            .arg("--cache-dir")
            .arg(self.server.folder().join("cache"))
            .env("KUBECONFIG", self.server.kubeconfig_file_of(OPERATOR))
            .env("SIGNAL", "KILL");
        let log = self.server.folder().join(format!("operator-{tag}.log"));
        self.process = Some(spawn_guarded(&mut operator, &log));
    }

    fn resource(&self, name: &str) -> Value {
        let address = &self.outside.address;
        with_all(
            resource(name),
            json!({
                "/gitRepo/url": format!("http://{address}/team/infra"),
                "/containerRegistry/imageName": format!("{address}/present/{name}"),
                "/driftDetection/mode": "Report",
            }),
        )
    }

    /// Pushes the image of a build, or writes the report of a run. Then completes `job`.
    async fn end(&self, space: &Space, job: &Job) {
        let name = &job.labels()[NAME];
        match job.labels().get(IMAGE_TAG) {
            Some(tag) => self.outside.push_image(&format!("present/{name}"), tag),
            None => report(space, name, &job.name_any()).await,
        }
        complete_job(&space.api(), &job.name_any()).await;
    }

    /// Completes all Jobs except those of the resource `except`.
    async fn end_all(&self, space: &Space, except: Option<&str>) {
        for job in active(space).await {
            if Some(job.labels()[NAME].as_str()) != except {
                self.end(space, &job).await;
            }
        }
    }
}

fn is_build(job: &Job) -> bool {
    job.labels().contains_key(IMAGE_TAG)
}

/// Executes the run of `job`, like the runner.
async fn report(space: &Space, name: &str, job: &str) {
    let number = job.rsplit('-').next().unwrap().parse().unwrap();
    let client = space.api::<Secret>().into_client();
    let runner = RunnerStandIn::of_run(client, &space.namespace, name, number, job);
    let kind = runner.claim().await.unwrap().run.kind;
    if kind.changes() {
        runner.begin().await.unwrap();
    }
    runner.report(kind, &Outputs::new()).await.unwrap();
}

/// Returns the Jobs that have not ended. Asserts that there are at most [`SLOTS`].
async fn active(space: &Space) -> Vec<Job> {
    let mut jobs = space.list::<Job>().await;
    jobs.retain(|job| {
        let status = job.status.as_ref();
        status
            .and_then(|status| status.conditions.as_ref())
            .is_none()
    });
    let names: Vec<_> = jobs.iter().map(ResourceExt::name_any).collect();
    assert!(jobs.len() <= SLOTS, "{names:?}");
    jobs
}

/// Returns status and reason of condition `Ready`, and the observed generation.
fn ready(tf: &Terraform) -> (String, String, Option<i64>) {
    let status = tf.status.clone().unwrap_or_default();
    let (status_of, reason) = status
        .conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .map(|condition| (condition.status, condition.reason))
        .unwrap_or_default();
    (status_of, reason, status.observed_generation)
}

/// Returns the kinds of all runs, by number of the run.
async fn kinds(space: &Space) -> BTreeMap<String, Vec<String>> {
    let mut kinds: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for job in space.list::<Job>().await {
        if !is_build(&job) {
            let name = job.name_any();
            let mut parts = name.rsplit('-');
            let number = parts.next().unwrap().to_owned();
            kinds
                .entry(number)
                .or_default()
                .push(parts.next().unwrap().to_owned());
        }
    }
    kinds
}

#[tokio::test]
async fn base_image_upgrade_applies_nothing_and_respects_slots() {
    let mut operator = Operator::new().await;
    let space = Space::of(&operator.server, json!({})).await;
    let names: Vec<_> = (0..MANY).map(|number| format!("web-{number}")).collect();
    for name in &names {
        space.apply(&operator.resource(name)).await.unwrap();
    }
    operator.start("1");
    until("applies", async || {
        operator.end_all(&space, None).await;
        let all: Vec<Terraform> = space.list().await;
        let ready = all.iter().filter(|tf| ready(tf).0 == "True").count();
        (ready == MANY)
            .then_some(())
            .ok_or_else(|| format!("{ready} are ready"))
    })
    .await;

    // Changes `spec.retry` of all resources, which requires no apply. The new operator reconciles all of these changes.
    operator.outside.forget_images();
    operator.start("2");
    for name in &names {
        let tf = with(operator.resource(name), "/retry/limit", Some(json!(7)));
        space.apply(&tf).await.unwrap();
    }
    until("the new operator to look at all", async || {
        let all: Vec<Terraform> = space.list().await;
        all.iter()
            .map(ready)
            .find(|ready| ready.2 != Some(2))
            .map_or(Ok(()), |first| Err(format!("{first:?}")))
    })
    .await;
    for tf in space.list::<Terraform>().await {
        assert_eq!(ready(&tf).0, "True", "{:?}", tf.status);
    }
    let all_apply = vec!["apply".to_owned(); MANY];
    let applied = BTreeMap::from([("1".to_owned(), all_apply)]);
    assert_eq!(kinds(&space).await, applied);
    assert!(active(&space).await.is_empty());

    // The annotation starts a run of each resource. The run requires a new image, because the base image has changed.
    let api = space.api::<Terraform>();
    let edit = PatchParams::default();
    let due = Patch::Merge(json!({"metadata": {"annotations": {RECONCILE_AT: "now"}}}));
    for name in &names {
        api.patch(name, &edit, &due).await.unwrap();
    }
    until("as many builds as there are slots", async || {
        let pushed = operator.outside.pushed_to().len();
        let builds = active(&space).await.len();
        (pushed == MANY && builds == SLOTS)
            .then_some(())
            .ok_or_else(|| format!("{pushed} modules are pushed, {builds} are built"))
    })
    .await;

    // A suspended resource keeps the slot of its build.
    let builds = active(&space).await;
    assert!(builds.iter().all(is_build));
    let held = builds[0].labels()[NAME].clone();
    let suspend = |suspend: bool| Patch::Merge(json!({"spec": {"suspend": suspend}}));
    api.patch(&held, &edit, &suspend(true)).await.unwrap();
    until("the suspension", async || {
        let ready = ready(&api.get(&held).await.unwrap());
        (ready.1 == "Suspended")
            .then_some(())
            .ok_or_else(|| format!("{ready:?}"))
    })
    .await;
    until("drift checks of the others", async || {
        operator.end_all(&space, Some(&held)).await;
        runs_end(&space, "2", MANY - 1).await
    })
    .await;
    api.patch(&held, &edit, &suspend(false)).await.unwrap();
    until("the drift check of the last one", async || {
        operator.end_all(&space, None).await;
        runs_end(&space, "2", MANY).await
    })
    .await;
    let drift = vec!["drift".to_owned(); MANY];
    let mut expected = applied;
    expected.insert("2".to_owned(), drift);
    assert_eq!(kinds(&space).await, expected);
}

/// Returns `Ok` if `count` runs with number `number` have started and all of them have ended.
async fn runs_end(space: &Space, number: &str, count: usize) -> Result<(), String> {
    let begun = kinds(space).await.remove(number).unwrap_or_default().len();
    let open = active(space)
        .await
        .iter()
        .filter(|job| !is_build(job))
        .count();
    (begun == count && open == 0)
        .then_some(())
        .ok_or_else(|| format!("{begun} have begun, {open} go on"))
}
