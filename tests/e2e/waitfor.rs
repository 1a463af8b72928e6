//! Objects of any kind that delay runs, destroy runs or the condition `Ready` of a resource.

use alustan_tests::{Counter, condition, scene};
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::inputs::grant;

fn module(counter: &Counter) -> String {
    counter.counted_object("a")
}

fn on_config_map(name: &str, cel: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "cel": cel, "timeout": "2s"}])
}

/// `waitFor` delays the run, a health check delays Ready, and an Ingress with another controller's finalizer delays destroy.
#[tokio::test]
async fn objects_of_any_kind_delay_run_ready_and_destroy() {
    scene("waits", |scene| async move {
        let counter = Counter::start().await;
        grant(&scene, "networking.k8s.io/ingresses").await;
        scene.commit("web", &[("main.tf", &module(&counter))]).await;
        scene.config_map("health", &[("up", "no")]).await;
        let mut web = scene.resource("web");
        web["spec"]["waitFor"] = on_config_map("gate", "object.data.open == 'yes'");
        web["spec"]["healthChecks"] = on_config_map("health", "object.data.up == 'yes'");
        web["spec"]["destroyWaitFor"] = json!([
            {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress"},
        ]);
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "WaitTimedOut");
        assert!(
            message.contains("spec.waitFor[0]: ConfigMap gate does not exist"),
            "{message}"
        );
        scene.config_map("gate", &[("open", "no")]).await;
        scene
            .wait_for_message(
                "web",
                "spec.waitFor[0].cel: the expression is false for ConfigMap gate: object.data.open == 'yes'",
            )
            .await;
        assert_eq!(counter.creations_and_destructions(), (0, 0));
        scene.config_map("gate", &[("open", "yes")]).await;
        let message = scene.reason("web", "HealthCheckFailed").await;
        assert!(
            message.contains("spec.healthChecks[0].cel: the expression is false for ConfigMap health"),
            "{message}"
        );
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.config_map("health", &[("up", "yes")]).await;
        scene.ready_after_run("web", 1).await;

        // An applied resource stays Ready while `waitFor` is not met. It is not Ready while a health check fails.
        scene.config_map("gate", &[("open", "no")]).await;
        scene
            .wait("web", "the test to fail again", |tf| {
                condition(tf, "DependenciesReady").is_some_and(|condition| condition.status == "False")
            })
            .await;
        let tf = scene.ready("web").await;
        assert_eq!(condition(&tf, "Ready").unwrap().reason, "Applied");
        scene.config_map("health", &[("up", "no")]).await;
        scene.reason("web", "HealthCheckFailed").await;

        let mut bad = scene.resource_of("bad", "web");
        bad["spec"]["waitFor"] = on_config_map("gate", "object.data.open");
        scene.apply(&bad).await;
        let (reason, message) = scene.stalled("bad").await;
        assert_eq!(reason, "InvalidExpression");
        assert!(
            message.contains("spec.waitFor[0].cel: the result of the expression is not a boolean"),
            "{message}"
        );

        scene
            .create(&json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {
                    "name": "shop", "namespace": scene.namespace,
                    "finalizers": ["ingress.example.com/resources"],
                },
                "spec": {"defaultBackend": {"service": {"name": "shop", "port": {"number": 80}}}},
            }))
            .await;
        scene.config_map("gate", &[("open", "yes")]).await;
        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        scene
            .wait_for_message(
                "web",
                "spec.destroyWaitFor[0]: waiting for the deletion of Ingress shop (not deleted yet)",
            )
            .await;
        let api = scene.api::<Ingress>();
        api.delete("shop", &DeleteParams::default()).await.unwrap();
        scene
            .wait_for_message(
                "web",
                "Ingress shop (being deleted; finalizers: ingress.example.com/resources)",
            )
            .await;
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        let done = json!({"metadata": {"finalizers": null}});
        api.patch("shop", &PatchParams::default(), &Patch::Merge(&done))
            .await
            .unwrap();
        scene.deleted("web", &uid).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
    })
    .await;
}
