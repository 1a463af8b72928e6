//! Namespaces as platform teams set them up (docs/clusters.md).

use alustan_tests::{Operators, scene_with_own_operators};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

/// User id outside of `/etc/passwd` of all images, as OpenShift assigns it.
const USER: i64 = 1_000_650_000;
/// Module with a provider from the image, whose files belong to another user.
const MODULE: &str = r#"
resource "time_static" "now" { rfc3339 = "2026-01-01T00:00:00Z" }
resource "terraform_data" "script" {
  provisioner "local-exec" { command = "test $(id -u) = 1000650000" }
}
output "year" { value = time_static.now.year }
"#;

/// Tests that run with the installed operator scaled to zero: see `scene_with_own_operators`.
mod own_operators {
    use super::*;

    /// `LimitRange`, `ResourceQuota` on all resources, PodSecurity *restricted*, and a user id that the images do not know.
    #[tokio::test]
    async fn clusters_limited_namespace_builds_applies_and_destroys_as_any_user() {
        scene_with_own_operators("limited", |scene| async move {
            scene.enforce(&scene.namespace, "restricted").await;
            let least = json!({"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "1Gi"});
            let most = json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"});
            let quota: serde_json::Map<_, _> = ["limits", "requests"]
                .iter()
                .flat_map(|field| {
                    ["cpu", "memory", "ephemeral-storage"].map(|name| format!("{field}.{name}"))
                })
                .map(|name| (name, json!("20Gi")))
                .collect();
            for (kind, name, spec) in [
                (
                    "LimitRange",
                    "containers",
                    json!({"limits": [{"type": "Container", "min": least, "max": most}]}),
                ),
                ("ResourceQuota", "all", json!({ "hard": quota })),
            ] {
                let metadata = json!({"name": name, "namespace": scene.namespace});
                scene
                    .create(&json!({
                        "apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec,
                    }))
                    .await;
            }
            let options = json!({"resources": {"requests": least, "limits": most}});
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("pods.yaml");
            let defaults = json!({"runs": options, "builds": options});
            std::fs::write(&file, defaults.to_string()).unwrap();
            let operator = Operators::of(&scene)
                .await
                .with("ALUSTAN_POD_DEFAULTS", file.to_str().unwrap())
                .with("ALUSTAN_POD_USER", &USER.to_string())
                .start(None);

            scene.commit("web", &[("main.tf", MODULE)]).await;
            scene.apply(&scene.resource("web")).await;
            scene.ready("web").await;
            assert_eq!(scene.data("web-outputs").await["year"], "2026");
            // The second build and the second run use the cache volume.
            let more = format!("{MODULE}output \"more\" {{ value = 1 }}\n");
            scene.commit("web", &[("main.tf", &more)]).await;
            scene.ready_after_run("web", 2).await;

            let pods = scene.api::<Pod>().list(&ListParams::default()).await;
            let pods = pods.unwrap().items;
            assert!(pods.len() >= 3, "two builds and the last run");
            for pod in pods {
                let spec = pod.spec.unwrap();
                assert_eq!(spec.security_context.unwrap().fs_group, Some(USER));
                for container in spec.containers {
                    let user = container.security_context.unwrap().run_as_user;
                    assert_eq!(user, Some(USER), "{}", container.name);
                }
            }
            scene.delete("web", &DeleteParams::foreground()).await;
            scene.nothing_left().await;
            operator.kill().await;
        })
        .await;
    }
}
