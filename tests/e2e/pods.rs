//! Pod options of resources, with defaults and limits of the operator (`--pod-defaults`).

use alustan_tests::{Counter, Operators, Scene, TAINT, scene_alone};
use kube::api::DeleteParams;
use serde_json::{Value, json};

/// Module that needs several hundred MiB of memory, and that publishes the mounted files and the environment.
fn module(counter: &Counter) -> String {
    let outputs = r#"
output "pairs" { value = length(setproduct(range(1000), range(1000))) }
output "ca" { value = try(file("/etc/company/ca.crt"), "none") }
output "login" { value = try(file("/etc/login/token"), "none") }
"#;
    format!("{}{outputs}", counter.counted_object("a"))
}

/// Returns resource `web` with the options `pod` for its runs. Without cache volume, so that only the taint delays its pods.
fn with_options(scene: &Scene, pod: Value) -> Value {
    let mut web = scene.resource("web");
    web["spec"]["cache"] = json!({"enabled": false});
    web["spec"]["runner"]["pod"] = pod;
    web
}

/// Returns the name of the Job of the last run of `web`.
async fn last_job(scene: &Scene) -> String {
    format!("web-apply-{}", scene.run_number("web").await)
}

/// Tests that taint the only node, so no other test may run: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn pod_options_cure_taints_and_memory_and_mount_files() {
        scene_alone("pods", |scene| async move {
            let counter = Counter::start().await;
            scene.commit("web", &[("main.tf", &module(&counter))]).await;
            scene
                .config_map("company-ca", &[("ca.crt", "the CA")])
                .await;
            scene
                .secret("login", "Opaque", &[("token", "the token")])
                .await;
            let class = format!("alustan-{}", scene.namespace);
            let create = [
                "create",
                "priorityclass",
                &class,
                "--value=1000",
                "--preemption-policy=Never",
            ];
            scene.kubectl(&create).await;
            let defaults = json!({
                "builds": {"tolerations": [{"key": TAINT, "operator": "Exists"}]},
                "allowed": {
                    "tolerations": [{"key": TAINT}],
                    "priorityClassNames": [class],
                    "annotations": ["linkerd.io/*"],
                },
                "maximum": {"resources": {"memory": "4Gi"}},
            });
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("pods.yaml");
            std::fs::write(&file, defaults.to_string()).unwrap();
            scene.cluster.scale_operator(0).await;
            let operators = Operators::of(&scene).await;
            let operators = operators.with("ALUSTAN_POD_DEFAULTS", file.to_str().unwrap());
            let operator = operators.start(None);

            // Refused options start nothing.
            let priority = json!({"priorityClassName": "system-node-critical"});
            scene.apply(&with_options(&scene, priority)).await;
            let (reason, message) = scene.stalled("web").await;
            assert_eq!(reason, "PodOptionNotAllowed");
            assert!(
                message.contains("spec.runner.pod.priorityClassName"),
                "{message}"
            );
            assert!(scene.jobs("build").await.is_empty());

            // The build tolerates the taint by default, the run does not.
            scene.cluster.taint_node().await;
            let memory = |limit: &str| json!({"limits": {"memory": limit}});
            scene
                .apply(&with_options(&scene, json!({"resources": memory("160Mi")})))
                .await;
            let message = scene.reason("web", "Unschedulable").await;
            assert!(message.contains("untolerated taint"), "{message}");

            // A toleration starts the run, which has too little memory.
            let tolerations = json!([{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]);
            let tolerant =
                |limit: &str| json!({"tolerations": tolerations, "resources": memory(limit)});
            scene.apply(&with_options(&scene, tolerant("160Mi"))).await;
            scene
                .wait_for_message("web", "spec.runner.pod.resources")
                .await;
            assert_eq!(counter.creations_and_destructions(), (0, 0));

            // More memory cures it, without another change.
            scene.apply(&with_options(&scene, tolerant("3Gi"))).await;
            scene.ready("web").await;
            assert_eq!(scene.data("web-outputs").await["ca"], "none");
            let run = scene.run_number("web").await;

            // Scheduling options start no run. Volumes start a run.
            let mut options = tolerant("3Gi");
            options["priorityClassName"] = json!(class);
            options["annotations"] =
                json!({"linkerd.io/inject": "enabled", "linkerd.io/skip": "a"});
            scene.apply(&with_options(&scene, options.clone())).await;
            scene.ready_after_run("web", run).await;
            options["volumes"] = json!([
                {"name": "ca", "configMap": {"name": "company-ca"}},
                {"name": "login", "secret": {"secretName": "login"}},
            ]);
            options["volumeMounts"] = json!([
                {"name": "ca", "mountPath": "/etc/company", "readOnly": true},
                {"name": "login", "mountPath": "/etc/login", "readOnly": true},
            ]);
            let reference = json!({"secretKeyRef": {"name": "login", "key": "token"}});
            options["env"] = json!([{"name": "LOGIN_TOKEN", "valueFrom": reference}]);
            options["envFrom"] = json!([{"secretRef": {"name": "login"}, "prefix": "LOGIN_"}]);
            scene.apply(&with_options(&scene, options)).await;
            scene.ready_after_run("web", run + 1).await;
            let outputs = scene.data("web-outputs").await;
            assert_eq!([&outputs["ca"], &outputs["login"]], ["the CA", "the token"]);
            let pod = scene.pod_of(&last_job(&scene).await).await;
            let annotations = pod.metadata.annotations.unwrap();
            assert_eq!(annotations["linkerd.io/inject"], "enabled");
            assert_eq!(annotations["linkerd.io/skip"], "a");
            assert_eq!(annotations["sidecar.istio.io/inject"], "false");
            assert_eq!(pod.spec.unwrap().priority_class_name.unwrap(), class);

            // Destroy needs neither the Secret nor the ConfigMap.
            scene.remove_secret("login").await;
            scene.kubectl(&["delete", "configmap", "company-ca"]).await;
            scene.delete("web", &DeleteParams::foreground()).await;
            assert_eq!(counter.creations_and_destructions(), (1, 1));
            scene.nothing_left().await;
            operator.kill().await;
            scene.kubectl(&["delete", "priorityclass", &class]).await;
        })
        .await;
    }
}
