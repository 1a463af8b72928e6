//! Tenants share one operator: the load, quotas and limits of one tenant do not delay another tenant.

use alustan_api::Terraform;
use alustan_tests::{Operators, Scene, condition, scene, scene_alone};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

/// Number of resources of one tenant.
const MANY: usize = 1_000;
/// Number of requests that the test sends concurrently.
const AT_ONCE: usize = 20;

/// Returns the number of resources with a queue position in their status.
async fn queued(scene: &Scene) -> usize {
    let all = scene
        .api::<Terraform>()
        .list(&ListParams::default())
        .await
        .unwrap();
    let waits = |tf: &&Terraform| {
        tf.status
            .as_ref()
            .is_some_and(|status| status.queue.is_some())
    };
    all.iter().filter(waits).count()
}

/// Returns the creation times of the test's Jobs, of builds and of runs: each takes a place.
async fn started(scene: &Scene) -> Vec<Timestamp> {
    let jobs = scene
        .api::<Job>()
        .list(&ListParams::default())
        .await
        .unwrap();
    jobs.iter()
        .filter_map(ResourceExt::creation_timestamp)
        .map(|time| time.0)
        .collect()
}

#[tokio::test]
async fn tenancy_quota_refusal_is_reported_and_run_is_retried() {
    scene("quota", |scene| async move {
        let hard = async |limit: &str| {
            let quota = json!({
                "apiVersion": "v1", "kind": "ResourceQuota",
                "metadata": {"name": "small", "namespace": scene.namespace},
                "spec": {"hard": serde_json::from_str::<serde_json::Value>(limit).unwrap()},
            });
            scene.create(&quota).await;
            scene
                .until("the quota to count", async || {
                    let hard = "jsonpath={.status.hard}";
                    let observed = scene.kubectl(&["get", "quota", "small", "-o", hard]).await;
                    let observed: serde_json::Value = serde_json::from_str(&observed).ok()?;
                    (observed == quota["spec"]["hard"]).then_some(())
                })
                .await;
        };
        let module = "variable \"v\" {}\noutput \"v\" { value = var.v }\n";
        scene.commit("web", &[("main.tf", module)]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});

        // A quota for Jobs refuses the build Job.
        hard(r#"{"count/jobs.batch": "0"}"#).await;
        scene.apply(&web).await;
        let message = scene.reason("web", "QuotaRefused").await;
        for part in ["exceeded quota: small", "kubectl describe resourcequota"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        hard(r#"{"count/jobs.batch": "20"}"#).await;
        scene.ready("web").await;

        // A quota for pods allows the Job of the run and refuses its pod.
        hard(r#"{"pods": "0"}"#).await;
        web["spec"]["variables"] = json!({"v": "two"});
        scene.apply(&web).await;
        let message = scene.reason("web", "QuotaRefused").await;
        assert!(message.contains("requested: pods=1"), "{message}");
        hard(r#"{"pods": "20"}"#).await;
        scene.ready("web").await;
        let runs = scene
            .api::<Terraform>()
            .get("web")
            .await
            .unwrap()
            .status
            .unwrap()
            .runs;
        let refused = runs
            .iter()
            .filter(|run| run.reason.as_deref() == Some("QuotaRefused"));
        assert!(refused.count() >= 1, "{runs:?}");

        // A LimitRange for PersistentVolumeClaims refuses the default size of the cache volume, and allows 1 GiB.
        let limits = json!({
            "apiVersion": "v1", "kind": "LimitRange",
            "metadata": {"name": "volumes", "namespace": scene.namespace},
            "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]},
        });
        scene.create(&limits).await;
        let mut other = scene.resource_of("other", "web");
        other["spec"]["variables"] = json!({"v": "one"});
        scene.apply(&other).await;
        // The first run mounts no volume.
        scene.ready("other").await;
        other["spec"]["variables"] = json!({"v": "two"});
        scene.apply(&other).await;
        let message = scene.reason("other", "LimitRangeRefused").await;
        assert!(
            message.contains("maximum storage usage per PersistentVolumeClaim"),
            "{message}"
        );
        other["spec"]["cache"] = json!({"size": "1Gi"});
        scene.apply(&other).await;
        scene.ready("other").await;
    })
    .await;
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    #[ignore = "takes three minutes, and the API tier shows the same without pods; `make full` runs it"]
    async fn tenancy_a_thousand_runs_delay_another_tenant_by_one_run() {
        scene_alone("thousand", |greedy| async move {
            greedy.cluster.scale_operator(0).await;
            let operators = Operators::of(&greedy)
                .await
                .everywhere()
                .with("ALUSTAN_MAX_CONCURRENT_RUNS", "2")
                .with("ALUSTAN_MAX_RUNS_PER_NAMESPACE", "2");
            let operator = operators.start(None);
            let counter = greedy.commit_counted_object("web").await;
            let resource = |name: &str| {
                let mut resource = greedy.resource_of(name, "web");
                resource["spec"]["gitRepo"]["interval"] = json!("12h");
                resource
            };
            greedy.apply(&resource("web")).await;
            greedy.ready("web").await;
            counter.hold("/made");
            for part in (0..MANY).collect::<Vec<_>>().chunks(AT_ONCE) {
                let all: Vec<_> = part
                    .iter()
                    .map(|number| resource(&format!("web{number}")))
                    .collect();
                futures::future::join_all(all.iter().map(|resource| greedy.apply(resource))).await;
            }
            counter.reached_times("/made", 3).await;
            greedy
                .until("a long queue", async || {
                    (queued(&greedy).await >= MANY - 10).then_some(())
                })
                .await;

            let modest = |modest: std::sync::Arc<Scene>| {
                let counter = counter.clone();
                let greedy = greedy.clone();
                async move {
                    let module = "output \"text\" { value = \"a\" }\n";
                    modest.commit("app", &[("main.tf", module)]).await;
                    modest.apply(&modest.resource("app")).await;
                    modest
                        .wait("app", "its turn to be awaited", |tf| {
                            condition(tf, "Ready")
                                .is_some_and(|condition| condition.reason == "Queued")
                        })
                        .await;
                    let since = Timestamp::now();
                    counter.release("/made");
                    modest.ready("app").await;
                    let own = started(&modest).await.into_iter().min().unwrap();
                    let before = started(&greedy)
                        .await
                        .into_iter()
                        .filter(|at| *at > since && *at < own)
                        .count();
                    println!("Jobs of the other tenant that were started before: {before}");
                    assert!(before <= 1, "{before}");
                }
            };
            greedy.beside("modest".to_owned(), modest).await;

            // Most resources of the greedy tenant have applied nothing, and are deleted without destroy.
            let delete = ["delete", "tf", "--all", "--wait=false"];
            greedy.kubectl(&delete).await;
            for _ in 0..3 {
                let remaining = greedy.kubectl(&["get", "tf", "-o", "name"]).await;
                println!("left: {}", remaining.lines().count());
                let gone = ["wait", "--for=delete", "tf", "--all", "--timeout=170s"];
                greedy.try_kubectl(&gone).await;
            }
            greedy.nothing_left().await;
            operator.kill().await;
        })
        .await;
    }
}
