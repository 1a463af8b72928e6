//! Temporary outages of git, the registry and the API server during builds and runs.

use alustan_api::Terraform;
use alustan_tests::{Counter, Scene, condition, scene_alone};
use kube::api::DeleteParams;
use serde_json::{Value, json};

/// Returns a resource with `spec.retry.limit: 1`. Transient failures do not count against the limit.
fn resource(scene: &Scene, name: &str, repository: &str) -> Value {
    let mut resource = scene.resource_of(name, repository);
    resource["spec"]["variables"] = json!({"v": name});
    resource["spec"]["retry"]["limit"] = json!(1);
    resource
}

/// Returns status and reason of a condition.
fn is(tf: &Terraform, kind: &str) -> (String, String) {
    let condition = condition(tf, kind);
    condition
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .unwrap_or_default()
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn retry_during_git_and_registry_outage_uses_no_budget() {
        scene_alone("outage", |scene| async move {
            let counter = Counter::start().await;
            for name in ["rests", "runs", "comes"] {
                scene.commit(name, &[("main.tf", &counter.module())]).await;
            }
            scene.apply(&resource(&scene, "rests", "rests")).await;
            scene.ready("rests").await;
            counter.hold("/made");
            scene.apply(&resource(&scene, "runs", "runs")).await;
            counter.reached_times("/made", 2).await;

            scene.cluster.stop(&["fcgiwrap", "registry"]).await;
            let mut comes = resource(&scene, "comes", "comes");
            comes["spec"]["containerRegistry"]["builder"] = json!({"kind": "Kaniko"});
            scene.apply(&comes).await;
            scene.reason("comes", "RepositoryUnreachable").await;
            // A run at a known revision does not contact the git server: a changed variable starts a run, and a run in progress continues.
            let mut rests = resource(&scene, "rests", "rests");
            rests["spec"]["variables"]["v"] = json!("changed");
            scene.apply(&rests).await;
            counter.release("/made");
            scene.ready_after_run("rests", 2).await;
            // Waits for the next poll of the repository, because run 2 may end before that poll.
            let unreachable = ("False".into(), "RepositoryUnreachable".into());
            let tf = scene
                .wait("rests", "the repository to be missed", |tf| {
                    is(tf, "SourceReady") == unreachable
                })
                .await;
            assert_eq!(is(&tf, "Ready").0, "True");
            scene.ready("runs").await;

            // The git server returns before the registry: new revisions are fetched, and their builds wait for the registry.
            scene.cluster.start().await;
            scene.cluster.stop(&["registry"]).await;
            let tf = scene
                .wait("comes", "the registry to be missed", |tf| {
                    let (_, reason) = is(tf, "Ready");
                    ["RegistryUnreachable", "BuildFailed", "ImagePullBackOff"]
                        .contains(&reason.as_str())
                })
                .await;
            assert_eq!(is(&tf, "Stalled").0, "False");
            let more = "output \"more\" { value = 1 }\n";
            scene
                .commit("runs", &[("main.tf", &(counter.module() + more))])
                .await;
            scene.reason("runs", "RegistryUnreachable").await;
            scene.cluster.start().await;
            for (name, run) in [("comes", 1), ("runs", 2), ("rests", 2)] {
                scene.ready_without_failures(name, run).await;
            }
            assert_eq!(counter.creations_and_destructions(), (3, 0));
        })
        .await;
    }

    #[tokio::test]
    async fn retry_during_api_server_outage_loses_and_repeats_nothing() {
        scene_alone("api", |scene| async move {
            let counter = Counter::start().await;
            scene.commit("web", &[("main.tf", &counter.module())]).await;
            scene.apply(&resource(&scene, "goes", "web")).await;
            scene.ready("goes").await;
            counter.hold("/made");
            counter.hold("/destroyed");
            scene.apply(&resource(&scene, "makes", "web")).await;
            let uid = scene
                .begin_to_delete("goes", &DeleteParams::foreground())
                .await;
            counter.reached_times("/made", 2).await;
            counter.reached("/destroyed").await;
            scene.cluster.stop(&["apiserver"]).await;
            counter.release("/made");
            counter.release("/destroyed");
            // The engines of the resources `makes` and `goes` have finished. Their runners retry until states and reports are saved.
            scene.printed("makes-apply-1", "Creation complete").await;
            scene
                .printed("goes-destroy-2", "Destruction complete")
                .await;
            scene.cluster.start().await;
            scene.deleted("goes", &uid).await;
            let status = scene.ready("makes").await.status.unwrap();
            assert_eq!((status.run, status.retry), (Some(1), None));
            assert_eq!(counter.creations_and_destructions(), (2, 1));
            scene.delete("makes", &DeleteParams::foreground()).await;
            assert_eq!(counter.creations_and_destructions(), (2, 2));
            scene.nothing_left().await;
        })
        .await;
    }
}
