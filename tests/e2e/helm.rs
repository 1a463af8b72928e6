//! The chart, installed from the cluster's registry.

use std::path::Path;

use alustan_tests::{Cluster, Scene, node, scene_without_operator};
use kube::api::DeleteParams;
use serde_json::{Value, json};

const CRD: &str = "terraforms.alustan.io";

/// Pushes the chart in a folder with `make helm-push`. Returns the arguments with which helm installs it.
async fn push(scene: &Scene, chart: &Path) -> Vec<String> {
    let chart = format!("CHART={}", chart.display());
    let registry = format!("{}/{}/charts", node(5000), scene.namespace);
    let push = ["PLAIN_HTTP=1", &chart, "hack/helm-push", &registry];
    let output = scene.cluster.run("env", &push).await;
    output.split_whitespace().map(str::to_owned).collect()
}

/// Installs or upgrades the release from `chart`, with the values of the dev cluster and the arguments `more`.
async fn helm(scene: &Scene, verb: &str, chart: &[String], more: &[&str]) -> String {
    let mut arguments = vec![verb, "alustan", "-n", "alustan-system", "--plain-http"];
    arguments.extend([
        "--wait",
        "--timeout=2m",
        "-f",
        "deploy/helm/values/dev.yaml",
    ]);
    arguments.extend(chart.iter().map(String::as_str));
    arguments.extend(more);
    scene.cluster.run("helm", &arguments).await
}

/// Writes an earlier version of the chart. Its CRD lacks `spec.notifications`.
fn earlier(folder: &Path) {
    let chart = Cluster::root().join("deploy/helm/alustan");
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([chart.join("."), folder.to_owned()])
        .status();
    assert!(copied.unwrap().success());
    let chart = folder.join("Chart.yaml");
    let text = std::fs::read_to_string(&chart).unwrap();
    let lines = text.lines().map(|line| match line.split_once(": ") {
        Some(("version", _)) => "version: 0.0.1\n".to_owned(),
        _ => format!("{line}\n"),
    });
    std::fs::write(chart, lines.collect::<String>()).unwrap();

    let file = folder.join("files/crd.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut crd: Value = serde_saphyr::from_str(&text).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = schema["properties"]["spec"]["properties"].as_object_mut();
    assert!(spec.unwrap().remove("notifications").is_some());
    std::fs::write(file, crd.to_string()).unwrap();
}

/// Returns the names of the objects that `kubectl get` finds.
async fn names(scene: &Scene, arguments: &[&str]) -> Vec<String> {
    let get = [&["get", "--ignore-not-found", "-o", "name"], arguments].concat();
    let output = scene.cluster.run("kubectl", &get).await;
    output.lines().map(str::to_owned).collect()
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn helm_upgrades_the_crd_and_uninstall_keeps_resources() {
        scene_without_operator("helm", async |scene| {
        let folder = tempfile::tempdir().unwrap();
        earlier(folder.path());
        let first = push(&scene, folder.path()).await;
        let chart = Cluster::root().join("deploy/helm/alustan");
        let second = push(&scene, &chart).await;
        assert_eq!((first[0].as_str(), first[2].as_str()), (second[0].as_str(), "0.0.1"));

        // `--take-ownership` is required because kustomize has installed the CRD.
        helm(&scene, "install", &first, &["--take-ownership"]).await;
        let module = "resource \"terraform_data\" \"a\" {}\noutput \"id\" { value = terraform_data.a.id }";
        scene.commit("web", &[("main.tf", module)]).await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        let made = scene.data("web-outputs").await;
        let mut resource = scene.resource("told");
        resource["spec"]["notifications"] = json!([{"url": "https://events.alustan.test"}]);
        let (taken, message) = scene.would_create(&scene.namespace, &resource).await;
        assert!(!taken && message.contains("notifications"), "{message}");

        helm(&scene, "upgrade", &second, &["--set", "maxConcurrentRuns=7"]).await;
        let (taken, message) = scene.would_create(&scene.namespace, &resource).await;
        assert!(taken, "the CRD is the earlier one: {message}");
        let limit = "jsonpath={..env[?(@.name=='ALUSTAN_MAX_CONCURRENT_RUNS')].value}";
        let limit = ["get", "-n", "alustan-system", "deployment/alustan-controller", "-o", limit];
        assert_eq!(scene.cluster.run("kubectl", &limit).await, "7");
        scene.ready("web").await;
        assert_eq!(scene.run_number("web").await, 1, "an upgrade is no reason to run");

        let state = ["-n", &scene.namespace, "secret", "-l", "app.kubernetes.io/component=state"];
        let before = names(&scene, &state).await;
        assert!(!before.is_empty());
        let uninstall = ["uninstall", "alustan", "-n", "alustan-system", "--wait"];
        scene.cluster.run("helm", &uninstall).await;
        let kept = ["crd", CRD];
        assert_eq!(names(&scene, &kept).await.len(), 1, "the CRD");
        assert_eq!(names(&scene, &["-n", &scene.namespace, "tf"]).await.len(), 1);
        assert_eq!(names(&scene, &state).await, before);
        let kinds = "deployment,service,serviceaccount,role,rolebinding,clusterrole,clusterrolebinding,validatingadmissionpolicy";
        let ours = ["-n", "alustan-system", kinds, "-l", "app.kubernetes.io/instance=alustan"];
        assert_eq!(names(&scene, &ours).await, Vec::<String>::new(), "left behind");

        // A new release, installed after `helm uninstall`, continues with the existing resources. It owns the CRD without
        // `--take-ownership`.
        helm(&scene, "install", &second, &[]).await;
        scene.annotate("web", "alustan.io/reconcile-at", "now").await;
        scene.ready_after_run("web", 2).await;
        assert_eq!(scene.data("web-outputs").await, made);
        scene.delete("web", &DeleteParams::background()).await;
        scene.nothing_left().await;
    })
    .await;
    }
}
