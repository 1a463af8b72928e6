//! Runs that are interrupted while they apply.

use std::collections::BTreeSet;

use alustan_api::Terraform;
use alustan_api::run::{RunPhase, RunRecord};
use alustan_tests::{Counter, Gate, Scene, condition, node, scene, scene_alone};
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::LogParams;
use serde_json::{Value, json};

/// Module with two objects, created one after the other. On creation, each object requests a path that contains the name of the resource.
fn module(counter: &Counter) -> String {
    let first = counter.resource("first", "/${var.name}/first", "");
    let after = "depends_on = [terraform_data.first]";
    let second = counter.resource("second", "/${var.name}/second", after);
    format!("variable \"name\" {{}}\n{first}{second}")
}

/// Returns a resource of [`module`]. With a backoff of 30 minutes, only the annotation `alustan.io/reconcile-at` starts a retry.
fn resource(scene: &Scene, name: &str) -> Value {
    let mut resource = scene.resource_of(name, "web");
    resource["spec"]["variables"] = json!({"name": name});
    resource["spec"]["retry"] = json!({"minBackoff": "30m", "maxBackoff": "30m"});
    resource
}

/// Apply script that runs the engine in the background, and forwards signals to the engine.
const WRAPPER: &str = r#"
handed_on() { kill -INT "$engine"; }
trap handed_on INT TERM
terraform apply -auto-approve &
engine=$!
until wait "$engine"; code=$?; ! kill -0 "$engine" 2>/dev/null; do :; done
exit "$code"
"#;

async fn record(scene: &Scene, name: &str) -> RunRecord {
    let data = scene.data(&format!("{name}-run")).await;
    serde_json::from_str(&data["record"]).unwrap()
}

/// Asserts that the state is saved, that its lock is released, and that the message of condition `Ready` names the Job of run 1. Returns
/// the message.
async fn in_good_order(scene: &Scene, name: &str, reason: &str) -> String {
    let message = scene.reason(name, reason).await;
    let record = record(scene, name).await;
    assert_eq!((record.phase, record.lock), (RunPhase::Recorded, None));
    let pointer = &scene.data(&format!("{name}-state")).await["pointer"];
    let pointer: Value = serde_json::from_str(pointer).unwrap();
    assert!(pointer["current"]["serial"].is_u64(), "{pointer}");
    assert!(message.contains("next attempt at"), "{message}");
    assert!(
        message.contains(&format!("job/{name}-apply-1")),
        "{message}"
    );
    message
}

/// Follows the log of `pod` to its end, also if the pod is deleted.
async fn log_until_the_end(scene: &Scene, pod: &str) -> tokio::task::JoinHandle<String> {
    let follow = LogParams {
        follow: true,
        ..LogParams::default()
    };
    // Retries, because the API server may not know yet that the container runs.
    let log = scene
        .until("the log of the pod", async || {
            scene.api::<Pod>().log_stream(pod, &follow).await.ok()
        })
        .await;
    tokio::spawn(async move {
        let (mut log, mut text) = (std::pin::pin!(log), String::new());
        log.read_to_string(&mut text).await.unwrap();
        text
    })
}

#[tokio::test]
async fn interrupted_apply_is_continued_after_pod_deletion_or_sigkill() {
    scene("interrupt", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &module(&counter))]).await;
        let all = ["plain", "wrapped", "killed"];
        for name in all {
            counter.hold(&format!("/{name}/second"));
            let mut web = resource(&scene, name);
            if name == "wrapped" {
                web["spec"]["scripts"]["apply"]["inline"] = json!(WRAPPER);
            }
            scene.apply(&web).await;
        }
        for name in ["plain", "wrapped"] {
            counter.reached(&format!("/{name}/second")).await;
            let pod = scene.pod_of(&format!("{name}-apply-1")).await.name_any();
            let log = log_until_the_end(&scene, &pod).await;
            scene
                .kubectl(&["delete", "pod", &pod, "--wait=false"])
                .await;
            let message = in_good_order(&scene, name, "Interrupted").await;
            for part in ["the pod was terminated", "does not count towards"] {
                assert!(message.contains(part), "no {part:?} in {message}");
            }
            let log = log.await.unwrap();
            // The runner sends one SIGINT to each engine process: to the one that applies, and to the one that shows the plan, if it still
            // runs.
            let interrupts: Vec<&str> = log
                .lines()
                .filter(|line| line.contains("sending SIGINT to the engine"))
                .collect();
            let engines: BTreeSet<&str> = interrupts.iter().copied().collect();
            assert!(!engines.is_empty(), "{log}");
            assert_eq!(engines.len(), interrupts.len(), "{log}");
            assert!(log.contains("Interrupt received"), "{log}");
            assert!(!log.contains("Two interrupts received"), "{log}");
        }

        counter.reached("/killed/second").await;
        let pod = "batch.kubernetes.io/job-name=killed-apply-1";
        scene.cluster.kill(&scene.namespace, pod).await;
        let message = scene.reason("killed", "Interrupted").await;
        for part in [
            "run 1 (apply) ended without a report",
            "exit code 137",
            "the run was applying; its last changes may be missing in the state",
            "does not count towards",
            "next attempt at",
        ] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        assert_eq!(record(&scene, "killed").await.lock, None);

        for name in all {
            counter.release(&format!("/{name}/second"));
            scene
                .annotate(name, alustan_api::RECONCILE_AT, "go on")
                .await;
        }
        for name in all {
            scene.ready_after_run(name, 2).await;
            let count = |path: &str| counter.count(&format!("/{name}/{path}"));
            // The first run was interrupted while it created the second object.
            assert_eq!(count("second"), 2, "{name}");
            // The state of a killed runner may lack the first object.
            assert!(name == "killed" || count("first") == 1, "{name}");
        }
    })
    .await;
}

/// Returns the backend block of a state in the bucket `name` behind the proxy `gate`.
fn bucket(gate: &Gate, name: &str) -> String {
    let address = &gate.address;
    format!(
        "terraform {{\n  backend \"s3\" {{\n    bucket = \"{name}\"\n    key = \"state\"\n    \
         region = \"us-east-1\"\n    access_key = \"test\"\n    secret_key = \"test\"\n    \
         max_retries = 1\n    use_path_style = true\n    skip_credentials_validation = true\n    \
         skip_requesting_account_id = true\n    skip_metadata_api_check = true\n    \
         endpoints = {{ s3 = \"http://{address}\" }}\n  }}\n}}\n"
    )
}

#[tokio::test]
async fn interrupt_of_the_backend_during_apply_loses_no_state() {
    scene("rescue", |scene| async move {
        let counter = Counter::start().await;
        scene.aws(&scene.namespace, "locks").await;
        let gate = Gate::to(node(5566)).await;
        let text = bucket(&gate, &scene.namespace) + &module(&counter);
        scene.commit("web", &[("main.tf", &text)]).await;
        counter.hold("/web/second");
        let mut web = resource(&scene, "web");
        web["spec"]["retry"] = json!({"minBackoff": "1s", "maxBackoff": "5s", "limit": 1});
        scene.apply(&web).await;
        counter.reached("/web/second").await;
        gate.close();
        counter.release("/web/second");
        let tf = scene
            .wait_for_message("web", "it is kept in Secret web-report")
            .await;
        let ready = condition(&tf, "Ready").unwrap();
        assert!(
            ready.message.contains("does not count towards"),
            "{}",
            ready.message
        );
        // The next run fails, because the backend is still unreachable.
        scene
            .wait("web", "a run in vain", |tf| {
                let runs = &tf.status.as_ref().unwrap().runs;
                runs.first()
                    .is_some_and(|run| run.number > 1 && run.result == "Failed")
            })
            .await;
        gate.open();
        let tf = scene.ready("web").await;
        let count = |path: &str| counter.count(path);
        assert_eq!((count("/web/first"), count("/web/second")), (1, 1));
        let job = &tf.status.as_ref().unwrap().runs[0].job;
        let pushing = "pushing the unsaved state of an earlier run";
        let log = scene.log(job, pushing).await;
        let (pushed, planned) = (log.find(pushing), log.find("terraform plan"));
        assert!(planned.is_some() && pushed < planned, "{log}");
        assert!(!scene.data("web-report").await.contains_key("leftover"));
    })
    .await;
}

fn run_results(tf: &Terraform) -> Vec<&str> {
    assert_eq!(condition(tf, "Ready").unwrap().status, "True");
    let runs = &tf.status.as_ref().unwrap().runs;
    runs.iter().map(|run| run.result.as_str()).collect()
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn interrupt_of_the_node_does_not_end_an_apply() {
        scene_alone("node", |scene| async move {
            let counter = Counter::start().await;
            scene.commit("web", &[("main.tf", &module(&counter))]).await;
            counter.hold("/web/second");
            scene.apply(&resource(&scene, "web")).await;
            counter.reached("/web/second").await;
            // A short outage of the kubelet does not affect running pods.
            scene.cluster.stop(&["kubelet"]).await;
            scene.cluster.start().await;
            // A PodDisruptionBudget counts only Ready pods as healthy. After a restart of the kubelet, the pod is not Ready for a while.
            scene
                .until("the pod to be Ready again", async || {
                    let pod = ["wait", "pod", "--for=condition=Ready", "--timeout=1s"];
                    let selector = ["-l", "batch.kubernetes.io/job-name=web-apply-1"];
                    let (ready, _) = scene.try_kubectl(&[&pod[..], &selector].concat()).await;
                    let (has_log, _) = scene.try_kubectl(&["logs", "job/web-apply-1"]).await;
                    (ready && has_log).then_some(())
                })
                .await;

            scene
                .until("the disruption budget to count the pod", async || {
                    let budgets = scene.api::<PodDisruptionBudget>();
                    let budget = budgets.get("web-runner").await.ok()?;
                    (budget.status?.current_healthy == 1).then_some(())
                })
                .await;
            let pod = scene.pod_of("web-apply-1").await.name_any();
            let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", scene.namespace);
            let eviction = json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": pod, "namespace": scene.namespace},
            });
            let create = ["create", "--raw", &path, "-f", "-"];
            let (evicted, output) = scene
                .cluster
                .output("kubectl", &create, Some(&eviction.to_string()))
                .await;
            assert!(!evicted, "{output}");
            for part in ["TooManyRequests", "disruption budget"] {
                assert!(output.contains(part), "no {part:?} in {output}");
            }

            let draining = scene.clone();
            let drain = tokio::spawn(async move {
                let limit = "--timeout=170s";
                let drain = ["drain", "node1", "--force", "--delete-emptydir-data", limit];
                draining.cluster.run("kubectl", &drain).await
            });
            scene
                .until("the drain to have evicted the operator", async || {
                    let operator = ["-n", "alustan-system", "get", "pods", "-o", "name"];
                    let pending = ["--field-selector=status.phase=Pending"];
                    let all = [&operator[..], &pending].concat();
                    let pending = scene.cluster.run("kubectl", &all).await;
                    (!pending.is_empty()).then_some(())
                })
                .await;
            let pod = scene.pod_of("web-apply-1").await;
            assert_eq!(pod.metadata.deletion_timestamp, None);
            assert!(!drain.is_finished(), "{:?}", drain.await);
            counter.release("/web/second");
            let drained = drain.await.unwrap();
            assert!(drained.contains("node/node1 drained"), "{drained}");

            scene.cluster.run("kubectl", &["uncordon", "node1"]).await;
            let tf = scene.ready("web").await;
            let count = |path: &str| counter.count(path);
            assert_eq!((count("/web/first"), count("/web/second")), (1, 1));
            assert_eq!(run_results(&tf), ["Done"]);
        })
        .await;
    }
}
