//! What is measured, what the probes say, and what stays of the log of a failed run.

use alustan_tests::{Scene, scene};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::{Value, json};

/// A module that changes nothing outside its state; `end` is how its apply ends.
fn module(end: &str) -> String {
    format!(
        r#"
        variable "token" {{ default = "" }}
        resource "terraform_data" "a" {{
          provisioner "local-exec" {{ command = "echo the token is ${{var.token}}; {end}" }}
        }}
        "#
    )
}

/// What the installed operator answers at `path`.
async fn ask(scene: &Scene, path: &str) -> String {
    let name = "jsonpath={.items[0].metadata.name}";
    let selector = "app.kubernetes.io/name=alustan,app.kubernetes.io/component=controller";
    let list = [
        "get",
        "pod",
        "-n",
        "alustan-system",
        "-l",
        selector,
        "-o",
        name,
    ];
    let pod = scene.cluster.run("kubectl", &list).await;
    let path = format!("/api/v1/namespaces/alustan-system/pods/{pod}:8080/proxy{path}");
    scene.cluster.run("kubectl", &["get", "--raw", &path]).await
}

/// The value of `sample`; 0 where there is none.
fn value(text: &str, sample: &str) -> f64 {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn metrics_count_what_happens_and_name_nobody() {
    scene("metrics", |scene| async move {
        let done = "alustan_runs_total{kind=\"apply\",result=\"Done\"}";
        let planned = "alustan_step_duration_seconds_count{step=\"plan\"}";
        let stalled = "alustan_resources_stalled{reason=\"InvalidImageName\"}";
        let before = ask(&scene, "/metrics").await;
        scene
            .commit("measured", &[("main.tf", &module("true"))])
            .await;
        scene
            .apply(&scene.resource_of("measured", "measured"))
            .await;
        let mut wrong = scene.resource_of("wrong", "measured");
        wrong["spec"]["containerRegistry"]["imageName"] = json!("Not A Name");
        scene.apply(&wrong).await;
        scene.ready("measured").await;
        scene.stalled("wrong").await;
        let after = scene
            .until("a scrape that tells of it", async || {
                let text = ask(&scene, "/metrics").await;
                (value(&text, stalled) >= 1.0).then_some(text)
            })
            .await;
        for sample in [done, planned] {
            assert!(
                value(&after, sample) > value(&before, sample),
                "{sample}\n{after}"
            );
        }
        for sample in [
            "alustan_git_requests_total{operation=\"fetch\",result=\"ok\"}",
            "alustan_registry_requests_total{operation=\"digest\",result=\"ok\"}",
            "alustan_api_requests_total{method=\"PATCH\",code=\"200\"}",
            "alustan_resources{state=\"Success\"}",
            "alustan_run_places",
            "alustan_ready",
        ] {
            assert!(value(&after, sample) >= 1.0, "{sample}\n{after}");
        }
        let last = "alustan_last_reconcile_timestamp_seconds{result=\"ok\"}";
        let ago = Timestamp::now().as_duration().as_secs_f64() - value(&after, last);
        assert!(ago.abs() < 600.0, "{ago}\n{after}");
        for name in [
            scene.namespace.as_str(),
            "git.alustan.test",
            "registry.alustan.test",
        ] {
            assert!(!after.contains(name), "{name}\n{after}");
        }
        assert!(after.ends_with("# EOF\n"));
    })
    .await;
}

#[tokio::test]
async fn metrics_come_with_probes_and_a_version() {
    scene("probes", |scene| async move {
        assert!(
            ask(&scene, "/livez")
                .await
                .starts_with("ok: the loop turned ")
        );
        assert!(ask(&scene, "/readyz").await.starts_with("ok: "));
        let version: Value = serde_json::from_str(&ask(&scene, "/version").await).unwrap();
        assert_eq!(version["protocol"], json!(alustan_api::run::PROTOCOL));
        assert_eq!(version["crd"], json!("alustan.io/v1alpha1"));
    })
    .await;
}

#[tokio::test]
async fn metrics_aside_the_log_of_a_failed_run_outlives_its_pod() {
    scene("kept-log", |scene| async move {
        scene
            .commit("broken", &[("main.tf", &module("exit 3"))])
            .await;
        scene
            .secret("token", "Opaque", &[("token", "s3cr3t-value")])
            .await;
        let mut resource = scene.resource_of("web", "broken");
        resource["spec"]["variablesFrom"] =
            json!([{"secretRef": {"name": "token", "keys": {"token": "token"}}}]);
        resource["spec"]["retry"] = json!({"limit": 1});
        scene.apply(&resource).await;
        scene.stalled("web").await;
        let job = scene.api::<Job>();
        job.delete("web-apply-1", &DeleteParams::background())
            .await
            .unwrap();
        let read = format!(
            "kubectl get secret web-report -n {} -o jsonpath='{{.data.log-1}}' | base64 -d | gunzip",
            scene.namespace
        );
        let log = scene.cluster.run("bash", &["-c", &read]).await;
        assert!(log.contains("the token is (redacted)"), "{log}");
        assert!(!log.contains("s3cr3t"), "{log}");
    })
    .await;
}
