//! Several replicas of the operator: the leader crashes or shuts down, and another replica takes over.

use std::time::{Duration, Instant};

use alustan_tests::{Scene, scene_alone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::json;

const SYSTEM: &str = "alustan-system";

/// Waits until the name of the leader's pod fulfils `wanted`. Returns that name.
async fn leader(
    scene: &Scene,
    (namespace, lease): (&str, &str),
    wanted: impl Fn(&str) -> bool,
) -> String {
    scene
        .until("a leader", async || {
            let holder = scene.cluster.lease_holder(namespace, lease).await?;
            wanted(&holder).then_some(holder)
        })
        .await
}

/// Returns the names of the installed operator's pods that are not being deleted.
async fn pods(scene: &Scene) -> Vec<String> {
    let api: Api<Pod> = Api::namespaced(scene.cluster.client.clone(), SYSTEM);
    let selector = "app.kubernetes.io/name=alustan,app.kubernetes.io/component=controller";
    let ours = ListParams::default().labels(selector);
    api.list(&ours)
        .await
        .unwrap()
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| pod.name_any())
        .collect()
}

async fn http_get(scene: &Scene, pod: &str, path: &str) -> String {
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy{path}");
    scene.cluster.run("kubectl", &["get", "--raw", &path]).await
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn ha_two_replicas_report_the_leader_and_accept_every_push() {
        scene_alone("replicas", |scene| async move {
            scene.cluster.scale_operator(2).await;
            let lease = (SYSTEM, "alustan");
            let all = pods(&scene).await;
            assert_eq!(all.len(), 2, "{all:?}");
            // A terminating replica may still be the leader, and standby replicas read the Lease only every two seconds. The test repeats
            // the check until all replicas name the same leader.
            let leads = scene
                .until("both to name the same leader", async || {
                    let leads = scene.cluster.lease_holder(lease.0, lease.1).await?;
                    for pod in &all {
                        let (role, metric) = if *pod == leads {
                            ("this replica is the leader".to_owned(), "alustan_leader 1")
                        } else {
                            (
                                format!("on standby; the leader is {leads}"),
                                "alustan_leader 0",
                            )
                        };
                        let body = http_get(&scene, pod, "/readyz").await;
                        assert!(body.starts_with("ok: "), "{body}");
                        let metrics = http_get(&scene, pod, "/metrics").await;
                        if !body.contains(&role) || !metrics.lines().any(|line| line == metric) {
                            return None;
                        }
                    }
                    all.contains(&leads).then_some(leads)
                })
                .await;

            let module = |text: &str| format!("output \"text\" {{ value = \"{text}\" }}\n");
            scene.commit("web", &[("main.tf", &module("a"))]).await;
            let mut web = scene.resource("web");
            web["spec"]["gitRepo"]["interval"] = json!("12h");
            scene.apply(&web).await;
            scene.ready("web").await;
            let second = scene.commit("web", &[("main.tf", &module("b"))]).await;
            let url = web["spec"]["gitRepo"]["url"].clone();
            let push = json!({"repository": url, "ref": "refs/heads/main"});
            let server = scene.git_server().await;
            // Each push uses a separate connection, so that each replica receives some pushes.
            for _ in 0..12 {
                assert_eq!(server.report(&push).await, json!({"resources": 1}));
            }
            scene.ready_at("web", &second).await;

            let evicted_at = Instant::now();
            let evict = ["delete", "pod", "-n", SYSTEM, "--wait=false", &leads];
            scene.cluster.run("kubectl", &evict).await;
            let next = leader(&scene, lease, |holder| holder != leads).await;
            println!(
                "{next} led {:?} after {leads} was told to go",
                evicted_at.elapsed()
            );
            assert!(evicted_at.elapsed() < Duration::from_secs(10));
            scene
                .until("a push to be heard", async || {
                    let response = server.report(&push).await;
                    (response == json!({"resources": 1})).then_some(())
                })
                .await;
        })
        .await;
    }
}
