//! Builder kind Append, against registries with different mount and upload behaviour.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::labels;
use alustan_tests::{Fault, RegistryFront, Scene, node, scene};
use serde_json::{Value, json};

const PRIVATE: &str = "private-registry.alustan.test";
const MODULE: &str = r#"
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "now" { rfc3339 = "2026-01-01T00:00:00Z" }
resource "terraform_data" "script" {
  provisioner "local-exec" { command = "./bin/link" }
}
output "year" { value = time_static.now.year }
"#;

/// Returns the layer digests of an image in the dev cluster's registry.
async fn layers(scene: &Scene, image: &str) -> Vec<String> {
    let image = format!("docker://{}/{image}", node(5000));
    let inspect = ["inspect", "--raw", "--tls-verify=false", &image];
    let manifest: Value =
        serde_json::from_str(&scene.cluster.run("skopeo", &inspect).await).unwrap();
    manifest["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| layer["digest"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns mode, owner, size and path of each file below `/alustan` in the layers above the base image.
async fn files(scene: &Scene, name: &str, tag: &str) -> BTreeSet<String> {
    let base = layers(scene, "alustan/terraform:dev").await;
    let repository = format!("{}/{name}", scene.namespace);
    let mut files = BTreeSet::new();
    for layer in layers(scene, &format!("{repository}:{tag}")).await {
        if base.contains(&layer) {
            continue;
        }
        let blob = format!("http://{}/v2/{repository}/blobs/{layer}", node(5000));
        let list = format!("curl -sS --fail {blob} | tar -tvzf - --numeric-owner");
        let list = scene.cluster.run("sh", &["-c", &list]).await;
        files.extend(list.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let path = words[5..].join(" ");
            let path = path
                .strip_prefix('/')
                .unwrap_or(&path)
                .trim_end_matches('/');
            let entry = format!("{} {} {} {path}", words[0], words[1], words[2]);
            path.starts_with("alustan/").then_some(entry)
        }));
    }
    files
}

/// Returns the image configuration without the value of the context label, which contains the name of the repository.
async fn config(scene: &Scene, name: &str, tag: &str) -> Value {
    let image = format!("docker://{}/{}/{name}:{tag}", node(5000), scene.namespace);
    let inspect = ["inspect", "--config", "--raw", "--tls-verify=false", &image];
    let image: Value = serde_json::from_str(&scene.cluster.run("skopeo", &inspect).await).unwrap();
    let mut config = image["config"].clone();
    let context = labels::image::CONTEXT;
    let artifact = config["Labels"][context].take();
    assert!(
        artifact.as_str().unwrap().contains("@sha256:"),
        "{artifact}"
    );
    json!({ "architecture": image["architecture"], "os": image["os"], "config": config })
}

/// Returns the resource `web`, with base image and runner image behind the registry proxy `front`.
fn through(scene: &Scene, front: &RegistryFront) -> Value {
    let mut web = scene.resource("web");
    web["spec"]["containerRegistry"] = json!({
        "imageName": format!("{}/{}/web", front.address, scene.namespace),
        "baseImage": format!("{}/alustan/terraform:dev", front.address),
        "insecure": true,
        "builder": {"kind": "Append"},
    });
    web
}

async fn builds_and_applies_through(scene: &Scene, fault: Fault) {
    let front = RegistryFront::start(&scene.cluster, fault).await;
    scene
        .commit("web", &[("main.tf", "output \"v\" { value = 1 }")])
        .await;
    scene.apply(&through(scene, &front)).await;
    let image = scene.ready("web").await.status.unwrap().image.unwrap();
    let image = format!("{}/web:{}", scene.namespace, image.tag);
    let base = layers(scene, "alustan/terraform:dev").await;
    assert!(layers(scene, &image).await.starts_with(&base));
    assert!(front.injected() > 0, "no request of the kind to be changed");
}

#[tokio::test]
async fn append_image_equals_kanikos_in_a_restricted_namespace() {
    scene("same", |scene| async move {
        let module = |folder: &std::path::Path| {
            std::fs::create_dir(folder.join("bin")).unwrap();
            std::fs::write(folder.join("main.tf"), MODULE).unwrap();
            std::fs::write(folder.join("bin/tool"), "#!/bin/sh\ntrue\n").unwrap();
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(folder.join("bin/tool"), executable).unwrap();
            std::os::unix::fs::symlink("tool", folder.join("bin/link")).unwrap();
        };
        for name in ["kaniko", "append"] {
            let repository = format!("{}/{name}", scene.namespace);
            scene.commit_with(&repository, module).await;
        }
        scene.apply(&scene.resource_by_kaniko("kaniko")).await;
        let kaniko = scene.ready("kaniko").await.status.unwrap();
        scene.enforce(&scene.namespace, "restricted").await;
        let mut append = scene.resource("append");
        append["spec"]["containerRegistry"]["builder"] = json!({"kind": "Append"});
        scene.apply(&append).await;
        let append = scene.ready("append").await.status.unwrap();
        let tag = |image: &Option<alustan_api::ImageStatus>| image.as_ref().unwrap().tag.clone();
        let by_kaniko = files(&scene, "kaniko", &tag(&kaniko.image)).await;
        let by_append = files(&scene, "append", &tag(&append.image)).await;
        assert!(by_append.len() > 5, "{by_append:#?}");
        assert_eq!(by_append, by_kaniko);
        let of_kaniko = config(&scene, "kaniko", &tag(&kaniko.image)).await;
        let of_append = config(&scene, "append", &tag(&append.image)).await;
        assert_eq!(of_append, of_kaniko);
        assert_eq!(append.plan.unwrap().summary, "+2 ~0 -0");
        assert_eq!(
            scene.data("append-outputs").await,
            scene.data("kaniko-outputs").await
        );
    })
    .await;
}

#[tokio::test]
async fn append_copies_base_layers_that_cannot_be_mounted() {
    scene("mount", |scene| async move {
        builds_and_applies_through(&scene, Fault::MountsNothing).await;
    })
    .await;
    scene("nomount", |scene| async move {
        builds_and_applies_through(&scene, Fault::RefusesMounts).await;
    })
    .await;
}

#[tokio::test]
async fn append_build_succeeds_after_interrupted_uploads() {
    scene("cut", |scene| async move {
        // 12 uploads fail. A build retries an upload at most three times and then fails, so the operator starts another build.
        let remaining = Arc::new(AtomicUsize::new(12));
        builds_and_applies_through(&scene, Fault::CutsUploads(remaining.clone())).await;
        assert_eq!(remaining.load(Ordering::SeqCst), 0);
    })
    .await;
}

#[tokio::test]
async fn append_pushes_to_a_private_registry_with_credentials() {
    scene("private", |scene| async move {
        scene
            .commit("web", &[("main.tf", "output \"v\" { value = 1 }")])
            .await;
        let kind = "kubernetes.io/dockerconfigjson";
        let secret = async |password: &str| {
            let config = scene.docker_config(PRIVATE, "alustan", password);
            scene
                .secret("regcred", kind, &[(".dockerconfigjson", &config)])
                .await;
        };
        secret("wrong-password").await;
        let mut web = scene.resource("web");
        web["spec"]["containerRegistry"] = json!({
            "imageName": format!("{PRIVATE}/{}/web", scene.namespace),
            "secretRef": {"name": "regcred", "key": ".dockerconfigjson"},
            "builder": {"kind": "Append"},
        });
        scene.apply(&web).await;
        let message = scene.reason("web", "RegistryUnauthorized").await;
        assert!(!message.contains("wrong-password"), "{message}");
        secret("alustan-test").await;
        scene.ready("web").await;
    })
    .await;
}

#[tokio::test]
async fn append_refuses_whiteouts_until_they_are_renamed() {
    scene("whiteout", |scene| async move {
        let module = ("main.tf", "output \"v\" { value = 1 }");
        scene
            .commit("web", &[module, ("data/.wh.config", "")])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["retry"]["limit"] = json!(1);
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "FileUnsupported");
        assert!(message.contains("data/.wh.config"), "{message}");
        scene.commit("web", &[module, ("data/config", "")]).await;
        scene.ready("web").await;
    })
    .await;
}
