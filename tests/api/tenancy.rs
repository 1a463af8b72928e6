//! Tenants share one operator. The load of one tenant, and objects of this tenant that the API server refuses, do not delay another tenant.

use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::labels::{self, Component};
use alustan_api::run::RunKind;
use alustan_api::{Terraform, names};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, ResourceQuota, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::pinned::reports;
use crate::server::{OPERATOR, Server, built, spawn_guarded, until};
use crate::space::{Space, complete_job};

/// Number of resources of one tenant that are due to run.
const MANY: usize = 100;

struct Operator {
    server: Arc<Server>,
    process: Option<Child>,
}

impl Operator {
    /// Starts an API server. [`Operator::start`] starts the operator.
    async fn none() -> Self {
        let server = Server::of_its_own().await;
        Self {
            server,
            process: None,
        }
    }

    async fn space(&self) -> Space {
        Space::of(&self.server, json!({})).await
    }

    fn start(&mut self, places: usize) {
        self.start_with(places, &[]);
    }

    /// Starts the operator with more arguments.
    fn start_with(&mut self, places: usize, arguments: &[&str]) {
        let program = built("alustan-controller").unwrap();
        let mut operator = Command::new(program);
        operator
            .args(["--base-image", "127.0.0.1:1/base:1"])
            .args(["--operator-image", "127.0.0.1:1/operator:1"])
            .args(["--insecure-registry", "127.0.0.1:1"])
            .args(["--listen", "127.0.0.1:0"])
            .args(["--max-concurrent-runs", &places.to_string()])
            .args(["--max-runs-per-namespace", &places.to_string()])
            .args(arguments)
            .arg("--cache-dir")
            .arg(self.server.folder().join("cache"))
            .env("KUBECONFIG", self.server.kubeconfig_file_of(OPERATOR))
            .env("SIGNAL", "TERM");
        let log = self.server.folder().join("operator.log");
        self.process = Some(spawn_guarded(&mut operator, &log));
    }
}

/// Returns reason and message of condition `Ready`.
async fn ready(space: &Space, name: &str) -> (String, String) {
    let tf = space.api::<Terraform>().get_opt(name).await.unwrap();
    tf.and_then(|tf| tf.status)
        .map(|status| status.conditions)
        .unwrap_or_default()
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .map(|condition| (condition.reason, condition.message))
        .unwrap_or_default()
}

/// Waits until condition `Ready` has `reason`. Returns its message.
async fn wait_for_reason(space: &Space, name: &str, reason: &str) -> String {
    until(&format!("{name} to tell {reason}"), async || {
        let (current, message) = ready(space, name).await;
        if current == reason {
            Ok(message)
        } else {
            Err(format!("{current}: {message}"))
        }
    })
    .await
}

/// Waits for a Job.
async fn job(space: &Space, name: &str) -> Job {
    until(&format!("Job {name}"), async || {
        space
            .api::<Job>()
            .get_opt(name)
            .await
            .unwrap()
            .ok_or_else(|| "none".to_owned())
    })
    .await
}

/// Creates a `ResourceQuota` for Jobs. Simulates the quota controller: sets the limit and a usage of zero in the status.
async fn quota(space: &Space, jobs: &str) {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"count/jobs.batch": jobs}},
    });
    let api = space.api::<ResourceQuota>();
    let apply = PatchParams::apply("tests").force();
    api.patch("small", &apply, &Patch::Apply(&quota))
        .await
        .unwrap();
    let counted = Patch::Merge(json!({"status": {
        "hard": {"count/jobs.batch": jobs}, "used": {"count/jobs.batch": "0"},
    }}));
    let edit = PatchParams::default();
    api.patch_status("small", &edit, &counted).await.unwrap();
}

#[tokio::test]
async fn tenancy_job_refused_by_quota_is_reported_and_retried() {
    let mut operator = Operator::none().await;
    let (full, other) = (operator.space().await, operator.space().await);
    for space in [&full, &other] {
        space.applied("web").await;
    }
    quota(&full, "0").await;
    operator.start(1);
    let destroy = async |space: &Space| {
        let api = space.api::<Terraform>();
        api.delete("web", &DeleteParams::default()).await.unwrap();
    };
    destroy(&full).await;
    let message = wait_for_reason(&full, "web", "QuotaRefused").await;
    for part in [
        "exceeded quota: small",
        "count/jobs.batch=1",
        "kubectl describe resourcequota",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(full.list::<Job>().await.is_empty());
    // The run that the quota refuses does not hold the only slot, so a run of another namespace starts.
    destroy(&other).await;
    job(&other, "web-destroy-2").await;
    let secrets = other.api::<Secret>();
    reports(&secrets, "web", 2).await.unwrap();
    quota(&full, "5").await;
    until("a Job", async || {
        let made = full.list::<Job>().await.len();
        (made == 1).then_some(()).ok_or_else(|| count(made))
    })
    .await;
}

fn count(made: usize) -> String {
    format!("{made} Jobs")
}

#[tokio::test]
async fn tenancy_refused_pod_is_reported_with_the_original_message() {
    let mut operator = Operator::none().await;
    let space = operator.space().await;
    space.applied("web").await;
    operator.start(1);
    let api = space.api::<Terraform>();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    let made = job(&space, "web-destroy-2").await;
    // Simulates the event of the Job controller about a pod that the API server refused.
    let why = "Error creating: pods \"web-destroy-2-x7k2p\" is forbidden: maximum memory usage per Container is \
               64Mi, but limit is 2Gi";
    let now = Timestamp::now().to_string();
    space
        .create::<Event>(json!({
            "metadata": {"name": "web-destroy-2.1", "namespace": space.namespace},
            "involvedObject": {
                "apiVersion": "batch/v1", "kind": "Job", "name": made.name_any(),
                "namespace": space.namespace, "uid": made.uid(),
            },
            "reason": "FailedCreate", "message": why, "type": "Warning", "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": {"component": "job-controller"},
        }))
        .await;
    let message = wait_for_reason(&space, "web", "LimitRangeRefused").await;
    assert!(
        message.contains("maximum memory usage per Container is 64Mi"),
        "{message}"
    );
    assert!(!message.contains("x7k2p"), "{message}");
    // The refused run releases its slot. The operator retries it under a new number.
    job(&space, "web-destroy-3").await;
}

#[tokio::test]
async fn finished_jobs_beyond_the_limit_of_all_tenants_are_deleted() {
    let mut operator = Operator::none().await;
    let (one, other) = (operator.space().await, operator.space().await);
    for (space, runs) in [(&one, [0, 1].as_slice()), (&other, &[1])] {
        space.applied("web").await;
        let uid = space.raw().get("web").await.unwrap().uid().unwrap();
        for run in runs {
            let name = names::run_job("web", RunKind::Apply, *run);
            let pod = json!({
                "restartPolicy": "Never", "containers": [{"name": "terraform", "image": "a"}],
            });
            let metadata = json!({
                "name": name, "labels": labels::of("web", &uid, Component::Run),
            });
            let spec = json!({"template": {"spec": pod}});
            space
                .create::<Job>(json!({"metadata": metadata, "spec": spec}))
                .await;
            complete_job(&space.api(), &name).await;
        }
    }
    let count_of = async |space: &Space| space.list::<Job>().await.len();
    operator.start_with(1, &["--keep-jobs", "2"]);
    until("one Job of each tenant", async || {
        let counts = (count_of(&one).await, count_of(&other).await);
        (counts == (1, 1))
            .then_some(())
            .ok_or_else(|| format!("{counts:?}"))
    })
    .await;
}

/// Names of objects begin with the name of their resource. The deletion of `web` must not delete `web-2-run`.
#[tokio::test]
async fn deletion_keeps_a_resource_with_the_same_name_prefix() {
    let mut operator = Operator::none().await;
    let space = operator.space().await;
    for name in ["web", "web-2"] {
        space.applied(name).await;
    }
    operator.start(2);
    let api = space.api::<Terraform>();
    let secrets = space.api::<Secret>();
    for name in ["web", "web-2"] {
        for kept in [names::record(name), names::pin(name)] {
            let secret = secrets.get_opt(&kept).await.unwrap();
            assert!(secret.is_some(), "no {kept}");
        }
        api.delete(name, &DeleteParams::default()).await.unwrap();
        job(&space, &format!("{name}-destroy-2")).await;
        reports(&secrets, name, 2).await.unwrap();
        until(&format!("{name} to go"), async || {
            let tf = api.get_opt(name).await.unwrap();
            tf.map_or(Ok(()), |tf| Err(format!("{:?}", tf.status)))
        })
        .await;
    }
    let secrets: Vec<Secret> = space.list().await;
    let names: Vec<_> = secrets.iter().map(ResourceExt::name_any).collect();
    assert!(names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn tenancy_hundreds_of_runs_delay_another_tenant_by_one_run() {
    let mut operator = Operator::none().await;
    let greedy = operator.space().await;
    let modest = operator.space().await;
    for number in 0..MANY {
        greedy.applied(&format!("greedy{number}")).await;
    }
    modest.applied("modest").await;
    operator.start(1);
    let all = greedy.raw();
    let (now, list) = (DeleteParams::default(), ListParams::default());
    all.delete_collection(&now, &list).await.unwrap();
    let secrets = greedy.api::<Secret>();
    until("the first run", async || {
        let made = greedy.list::<Job>().await.len();
        (made == 1).then_some(()).ok_or_else(|| count(made))
    })
    .await;
    until("a long queue", async || {
        let all = greedy.api::<Terraform>().list(&list).await.unwrap();
        let queued = |tf: &&Terraform| {
            tf.status
                .as_ref()
                .is_some_and(|status| status.queue.is_some())
        };
        let waiting = all.iter().filter(queued).count();
        (waiting >= MANY - 20)
            .then_some(())
            .ok_or_else(|| format!("{waiting} wait"))
    })
    .await;
    modest.raw().delete("modest", &now).await.unwrap();
    wait_for_reason(&modest, "modest", "Queued").await;
    // The runs of `greedy` end one after the other, until a run of `modest` starts.
    let mut done = Vec::new();
    for _ in 0..3 {
        if !modest.list::<Job>().await.is_empty() {
            break;
        }
        let next = until("the next run of anybody", async || {
            if !modest.list::<Job>().await.is_empty() {
                return Ok(None);
            }
            greedy
                .list::<Job>()
                .await
                .into_iter()
                .map(|job| job.name_any())
                .find(|name| !done.contains(name))
                .map(Some)
                .ok_or_else(|| format!("{} were done", done.len()))
        })
        .await;
        let Some(next) = next else { break };
        let name = next.strip_suffix("-destroy-2").unwrap();
        reports(&secrets, name, 2).await.unwrap();
        done.push(next);
    }
    job(&modest, "modest-destroy-2").await;
    assert!(
        done.len() <= 2,
        "{} runs of one before one of the other: {done:?}",
        done.len()
    );
}
