//! Registries that want credentials.

use alustan_tests::{Scene, scene};
use serde_json::{Value, json};

const PRIVATE: &str = "private-registry.alustan.test";

fn in_private(scene: &Scene, name: &str, secret: &Value) -> Value {
    let mut resource = scene.resource_of(name, "web");
    let image = format!("{PRIVATE}/{}/{name}", scene.namespace);
    resource["spec"]["containerRegistry"] = json!({"imageName": image, "secretRef": secret});
    resource
}

#[tokio::test]
async fn a_private_registry_is_pushed_to_and_pulled_from_with_any_kind_of_secret() {
    scene("login", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        let config = scene.docker_config(PRIVATE, "alustan", "alustan-test");
        let kind = "kubernetes.io/dockerconfigjson";
        scene
            .secret("typed", kind, &[(".dockerconfigjson", &config)])
            .await;
        scene
            .secret("plain", "Opaque", &[("dockerhub-cred", &config)])
            .await;
        // The seed's key is not in a Secret of the usual type.
        let typed = json!({"name": "typed", "key": "dockerhub-cred"});
        scene.apply(&in_private(&scene, "typed", &typed)).await;
        let plain = json!({"name": "plain", "key": "dockerhub-cred"});
        scene.apply(&in_private(&scene, "plain", &plain)).await;
        scene.ready("typed").await;
        scene.ready("plain").await;
        let pulls = scene
            .pod_of("typed-apply-1")
            .await
            .spec
            .unwrap()
            .image_pull_secrets
            .unwrap();
        assert_eq!(pulls[0].name, "typed");
        let pulls = scene
            .pod_of("plain-apply-1")
            .await
            .spec
            .unwrap()
            .image_pull_secrets
            .unwrap();
        assert_eq!(pulls[0].name, "plain-registry");

        // The Secret is rotated: the one that kubelet pulls with follows.
        let before = scene.data("plain-registry").await;
        let mut rotated: Value = serde_json::from_str(&config).unwrap();
        rotated["auths"]["elsewhere.example.com"] = rotated["auths"][PRIVATE].clone();
        let rotated = rotated.to_string();
        scene
            .secret("plain", "Opaque", &[("dockerhub-cred", &rotated)])
            .await;
        scene
            .annotate("plain", "alustan.io/reconcile-at", "now")
            .await;
        scene.ready_after_run("plain", 2).await;
        let after = scene.data("plain-registry").await;
        assert_ne!(before, after);
        assert!(after[".dockerconfigjson"].contains("elsewhere.example.com"));
    })
    .await;
}
