//! Metrics, probes and the version of the installed operator.

use alustan_tests::{Scene, scene_alone};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Returns the response of the installed operator at `path`.
async fn http_get(scene: &Scene, path: &str) -> String {
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

/// Returns the value of `sample`; 0 if it is missing.
fn value(text: &str, sample: &str) -> f64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// Tests that run while no other test runs: see `scene_alone`. Counters start again at 0 if another test restarts the operator.
mod alone {
    use super::*;

    #[tokio::test]
    async fn metrics_count_runs_and_name_no_resource() {
        scene_alone("metrics", |scene| async move {
            let done = "alustan_runs_total{kind=\"apply\",result=\"Done\"}";
            let planned = "alustan_step_duration_seconds_count{step=\"plan\"}";
            let stalled = "alustan_resources_stalled{reason=\"InvalidImageName\"}";
            let before = http_get(&scene, "/metrics").await;
            let module = "resource \"terraform_data\" \"a\" {}\n";
            scene.commit("measured", &[("main.tf", module)]).await;
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
                    let text = http_get(&scene, "/metrics").await;
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

            let alive = http_get(&scene, "/livez").await;
            assert!(
                alive.starts_with("ok: last iteration of the controller loop "),
                "{alive}"
            );
            let ready = http_get(&scene, "/readyz").await;
            assert!(ready.starts_with("ok: "), "{ready}");
            let version: Value = serde_json::from_str(&http_get(&scene, "/version").await).unwrap();
            assert_eq!(version["protocol"], json!(alustan_api::run::PROTOCOL));
            assert_eq!(version["crd"], json!("alustan.io/v1alpha1"));
        })
        .await;
    }
}
