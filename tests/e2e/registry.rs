//! Registries: required credentials, refused requests and pruning.

use alustan_tests::{Fault, Operators, RegistryFront, scene, scene_with_own_operators};
use serde_json::{Value, json};

const PRIVATE: &str = "private-registry.alustan.test";

/// The operator reports wrong credentials, and rereads a Secret after its correction. The registry Secret has no entry with the key in
/// `secretRef.key`, so the operator reads the entry `.dockerconfigjson`.
#[tokio::test]
async fn corrected_credentials_of_git_and_registry_are_reread() {
    scene("login", |scene| async move {
        let repository = format!("private/{}", scene.namespace);
        scene
            .commit_with(&repository, |folder| {
                std::fs::write(folder.join("main.tf"), "").unwrap();
            })
            .await;
        let login = async |password: &str| {
            let data = [("username", "alustan"), ("password", password)];
            scene.secret("login", "Opaque", &data).await;
        };
        let kind = "kubernetes.io/dockerconfigjson";
        let registry = async |config: &str| {
            scene
                .secret("regcred", kind, &[(".dockerconfigjson", config)])
                .await;
        };
        login("wrong-for-git").await;
        registry(&scene.docker_config(PRIVATE, "alustan", "wrong-for-registry")).await;
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["url"] = json!(format!("https://git.alustan.test/{repository}"));
        web["spec"]["gitRepo"]["credentialsSecret"] = json!({"name": "login"});
        web["spec"]["containerRegistry"] = json!({
            "imageName": format!("{PRIVATE}/{}/web", scene.namespace),
            "secretRef": {"name": "regcred", "key": "dockerhub-cred"},
        });
        scene.apply(&web).await;
        let message = scene.reason("web", "GitAuthenticationFailed").await;
        assert!(!message.contains("wrong-for"), "{message}");
        login("alustan-test").await;
        let message = scene.reason("web", "RegistryUnauthorized").await;
        assert!(!message.contains("wrong-for"), "{message}");
        let helper = json!({"auths": {PRIVATE: {}}, "credsStore": "desktop"});
        registry(&helper.to_string()).await;
        let message = scene.reason("web", "InvalidRegistryCredentials").await;
        assert!(message.contains("credential helper `desktop`"), "{message}");
        registry(&scene.docker_config(PRIVATE, "alustan", "alustan-test")).await;
        scene.ready("web").await;
        let pod = scene.pod_of("web-apply-1").await.spec.unwrap();
        assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "regcred");
    })
    .await;
}

#[tokio::test]
async fn docker_hub_accepts_credentials_in_a_dockercfg_secret() {
    scene("hub", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        let config = scene.docker_config("https://index.docker.io/v1/", "alustan", "alustan-test");
        let config: Value = serde_json::from_str(&config).unwrap();
        let mut config = config["auths"].clone();
        let kind = "kubernetes.io/dockercfg";
        scene
            .secret("old", kind, &[(".dockercfg", &config.to_string())])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["containerRegistry"] = json!({
            "imageName": format!("registry-1.docker.io/{}/web", scene.namespace),
            "secretRef": {"name": "old", "key": ".dockercfg"},
            "builder": {"kind": "Kaniko"},
        });
        scene.apply(&web).await;
        scene.ready("web").await;
        let pod = scene.pod_of("web-apply-1").await.spec.unwrap();
        let image = pod.containers[0].image.clone().unwrap();
        let begin = format!("docker.io/{}/web@sha256:", scene.namespace);
        assert!(image.starts_with(&begin), "{image}");
        assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "web-registry");

        // Rotation of the Secret updates the image pull Secret.
        let before = scene.data("web-registry").await;
        let login = config.as_object().unwrap().values().next().cloned();
        config["elsewhere.example.com"] = login.unwrap();
        scene
            .secret("old", kind, &[(".dockercfg", &config.to_string())])
            .await;
        scene
            .annotate("web", alustan_api::RECONCILE_AT, "now")
            .await;
        scene.ready_after_run("web", 2).await;
        let after = scene.data("web-registry").await;
        assert_ne!(before, after);
        assert!(after[".dockerconfigjson"].contains("elsewhere.example.com"));
    })
    .await;
}

#[tokio::test]
async fn registry_without_tls_needs_insecure_and_reuses_its_images() {
    scene("plain", |scene| async move {
        let registry = RegistryFront::start(&scene.cluster, Fault::Immutable("context-")).await;
        scene
            .commit("web", &[("main.tf", "output \"v\" { value = 1 }")])
            .await;
        let mut web = scene.resource("web");
        let image = format!("{}/{}/web", registry.address, scene.namespace);
        web["spec"]["containerRegistry"] = json!({"imageName": image});
        scene.apply(&web).await;
        let message = scene.reason("web", "RegistryTls").await;
        assert!(message.contains("containerRegistry.insecure"), "{message}");

        web["spec"]["containerRegistry"]["insecure"] = json!(true);
        web["spec"]["containerRegistry"]["builder"] = json!({"kind": "Kaniko"});
        scene.apply(&web).await;
        let first = scene.ready("web").await.status.unwrap().image.unwrap();
        scene
            .commit("web", &[("main.tf", "output \"v\" { value = 2 }")])
            .await;
        scene.ready_after_run("web", 2).await;
        // The operator reuses the existing image. The registry would refuse a second push to the tag of the image.
        let builds = scene.jobs("build").await.len();
        scene
            .commit("web", &[("main.tf", "output \"v\" { value = 1 }")])
            .await;
        let again = scene.ready_after_run("web", 3).await.status.unwrap();
        assert_eq!(again.image.unwrap(), first);
        assert_eq!(scene.jobs("build").await.len(), builds);
        assert_eq!(scene.data("web-outputs").await["v"], "1");
    })
    .await;
}

#[tokio::test]
async fn prune_removes_only_old_images_that_are_not_in_use() {
    scene("prune", |scene| async move {
        // Pruning keeps a context that a resource of another namespace uses. The module contains the name of the namespace, so no other test
        // has the same context.
        let namespace = &scene.namespace;
        let version = |number: u8| format!("output \"v\" {{ value = {number} }} # {namespace}");
        let tag = |tf: alustan_api::Terraform| tf.status.unwrap().image.unwrap().tag;
        scene.commit("web", &[("main.tf", &version(1))]).await;
        let mut other = scene.resource_of("other", "web");
        scene.apply(&other).await;
        let pinned = tag(scene.ready("other").await);
        other["spec"]["suspend"] = json!(true);
        scene.apply(&other).await;

        let commit = async |number| scene.commit("web", &[("main.tf", &version(number))]).await;
        let second = commit(2).await;
        let mut web = scene.resource("web");
        web["spec"]["containerRegistry"]["prune"] = json!({"keep": 2, "olderThan": "1h"});
        scene.apply(&web).await;
        let unused = tag(scene.ready_at("web", &second).await);
        let kept = tag(scene.ready_at("web", &commit(3).await).await);
        let current = tag(scene.ready_at("web", &commit(4).await).await);
        assert!(unused != pinned && unused != current);
        // Backdates three images, because pruning deletes only images older than `olderThan`. `current` keeps its creation time.
        let contexts = [
            scene.age_image("web", &pinned, 2020).await,
            scene.age_image("web", &unused, 2021).await,
            scene.age_image("web", &kept, 2022).await,
        ];
        scene.spoil("web", "release").await;

        web["spec"]["containerRegistry"]["prune"]["keep"] = json!(1);
        scene.apply(&web).await;
        scene.event("web", "Pruned").await;
        assert!(!scene.has_image("web", &unused).await);
        assert!(!scene.has_image("web", &contexts[1]).await);
        for needed in [
            &pinned,
            &kept,
            &current,
            &contexts[0],
            &contexts[2],
            "release",
        ] {
            assert!(scene.has_image("web", needed).await, "{needed}");
        }
    })
    .await;
}

/// Tests that run with the installed operator scaled to zero: see `scene_with_own_operators`.
mod own_operators {
    use super::*;

    #[tokio::test]
    async fn dockerfile_of_the_repository_builds_the_runner_image() {
        scene_with_own_operators("dockerfile", |scene| async move {
        let tool = "#!/bin/sh\necho \"{\\\"said\\\": \\\"hello from the tool\\\"}\"\n";
        let dockerfile =
            "ARG ALUSTAN_BASE\nFROM ${ALUSTAN_BASE}\nCOPY --chown=0:0 module/tools/ /usr/local/share/tools/\n";
        let files = [
            ("stack/main.tf", "output \"a\" { value = file(\"/usr/local/share/tools/hello\") }"),
            ("tools/hello", tool),
            ("docker/Dockerfile", dockerfile),
        ];
        scene.commit("web", &files).await;
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["path"] = json!("stack");
        web["spec"]["gitRepo"]["include"] = json!(["tools"]);
        web["spec"]["containerRegistry"]["dockerfile"] = json!("docker/Dockerfile");
        scene.apply(&web).await;
        let operators = Operators::of(&scene).await.with("ALUSTAN_ALLOW_DOCKERFILES", "true");
        let operator = operators.start(None);
        scene.ready("web").await;
        assert_eq!(scene.data("web-outputs").await["a"], tool);
        operator.kill().await;
    })
    .await;
    }
}
