//! Runs in pods with injected sidecars.

use alustan_tests::{Injector, scene};
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn mesh_a_run_is_over_when_its_engine_container_has_terminated() {
    scene("mesh", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        let injector = Injector::start(&scene).await;
        let names = ["web", "native"];
        for name in names {
            scene.apply(&scene.resource_of(name, "web")).await;
        }
        for name in names {
            scene.ready(name).await;
        }
        // Three pods got a sidecar: the pod of the shared build, and the run pod of each of the two resources.
        assert_eq!(injector.pods(), 3);

        // The kubelet terminates native sidecars when the run ends. A regular sidecar keeps the pod running, so the operator deletes the
        // Job.
        let pod = scene.pod_of("native-apply-1").await;
        assert_eq!(pod.spec.unwrap().init_containers.unwrap()[0].name, "proxy");
        scene
            .until("the Job with a sidecar to be deleted", async || {
                let jobs = scene.jobs("run").await;
                (jobs == ["native-apply-1"]).then_some(())
            })
            .await;

        // The next run starts, and destroy completes.
        let mut edited = scene.resource_of("web", "web");
        edited["spec"]["variables"] = json!({"unused": 1});
        scene.apply(&edited).await;
        scene.ready_after_run("web", 2).await;
        for name in names {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        assert_eq!(counter.creations_and_destructions(), (2, 2));
    })
    .await;
}
