//! Objects of any kind: waited for before a run, before a destroy, and before Ready.

use alustan_tests::{Counter, condition, scene};
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::inputs::grant;

fn module(counter: &Counter) -> String {
    counter.life("a")
}

fn on_config_map(name: &str, cel: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "cel": cel, "timeout": "2s"}])
}

#[tokio::test]
async fn waitfor_holds_a_run_back_until_a_test_passes_and_says_when_it_takes_too_long() {
    scene("waits", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &module(&counter))]).await;
        let mut web = scene.resource("web");
        web["spec"]["waitFor"] = on_config_map("gate", "object.data.open == 'yes'");
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "WaitTimedOut");
        assert!(
            message.contains("spec.waitFor[0]: ConfigMap gate does not exist"),
            "{message}"
        );
        scene.config_map("gate", &[("open", "no")]).await;
        scene
            .said(
                "web",
                "spec.waitFor[0].cel: ConfigMap gate does not pass: object.data.open == 'yes'",
            )
            .await;
        assert_eq!(counter.lives(), (0, 0));
        scene.config_map("gate", &[("open", "yes")]).await;
        scene.ready("web").await;
        // What is applied waits for nothing.
        scene.config_map("gate", &[("open", "no")]).await;
        scene
            .wait("web", "the test to fail again", |tf| {
                condition(tf, "DependenciesReady").is_some_and(|it| it.status == "False")
            })
            .await;
        assert_eq!(
            condition(&scene.ready("web").await, "Ready")
                .unwrap()
                .reason,
            "Applied"
        );

        let mut bad = scene.resource_of("bad", "web");
        bad["spec"]["waitFor"] = on_config_map("gate", "object.data.open");
        scene.apply(&bad).await;
        let (reason, message) = scene.stalled("bad").await;
        assert_eq!(reason, "InvalidExpression");
        assert!(
            message.contains("spec.waitFor[0].cel: it gives neither true nor false"),
            "{message}"
        );
    })
    .await;
}

#[tokio::test]
async fn waitfor_health_checks_decide_ready_after_an_apply() {
    scene("health", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &module(&counter))]).await;
        let mut web = scene.resource("web");
        web["spec"]["healthChecks"] = on_config_map("health", "object.data.up == 'yes'");
        scene.config_map("health", &[("up", "no")]).await;
        scene.apply(&web).await;
        scene.reason("web", "HealthCheckFailed").await;
        assert_eq!(counter.lives(), (1, 0));
        scene.config_map("health", &[("up", "yes")]).await;
        scene.ready_after_run("web", 1).await;
        scene.config_map("health", &[("up", "no")]).await;
        let message = scene.reason("web", "HealthCheckFailed").await;
        assert!(
            message.contains("spec.healthChecks[0].cel: ConfigMap health does not pass"),
            "{message}"
        );
        scene.config_map("health", &[("up", "yes")]).await;
        scene.ready_after_run("web", 1).await;
    })
    .await;
}

/// Another controller's finalizer keeps an Ingress: what is beneath it stays until it is gone.
#[tokio::test]
async fn waitfor_of_a_destroy_names_what_is_still_there_and_its_finalizers() {
    scene("beneath", |scene| async move {
        let counter = Counter::start().await;
        grant(&scene, "networking.k8s.io/ingresses").await;
        scene
            .commit("cluster", &[("main.tf", &module(&counter))])
            .await;
        let mut cluster = scene.resource("cluster");
        cluster["spec"]["destroyWaitFor"] = json!([
            {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress"},
        ]);
        scene.apply(&cluster).await;
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
        scene.ready("cluster").await;
        let uid = scene
            .begin_to_delete("cluster", &DeleteParams::foreground())
            .await;
        scene
            .said(
                "cluster",
                "spec.destroyWaitFor[0]: must be gone first: Ingress shop (not deleted yet)",
            )
            .await;
        let api = scene.api::<Ingress>();
        api.delete("shop", &DeleteParams::default()).await.unwrap();
        scene
            .said(
                "cluster",
                "Ingress shop (being deleted; its finalizers: ingress.example.com/resources)",
            )
            .await;
        assert_eq!(counter.lives(), (1, 0));
        let done = json!({"metadata": {"finalizers": null}});
        api.patch("shop", &PatchParams::default(), &Patch::Merge(&done))
            .await
            .unwrap();
        scene.deleted("cluster", &uid).await;
        assert_eq!(counter.lives(), (1, 1));
    })
    .await;
}
