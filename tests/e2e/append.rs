//! Builder kind Append makes the same image as kaniko.

use std::collections::BTreeSet;

use alustan_api::labels;
use alustan_tests::{Scene, scene};
use serde_json::{Value, json};

const REGISTRY: &str = "10.99.1.2:5000";
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

/// Layer digests of an image in the dev cluster's registry.
async fn layers(scene: &Scene, image: &str) -> Vec<String> {
    let image = format!("docker://{REGISTRY}/{image}");
    let inspect = ["inspect", "--raw", "--tls-verify=false", &image];
    let manifest: Value =
        serde_json::from_str(&scene.cluster.run("skopeo", &inspect).await).unwrap();
    let layers = manifest["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["digest"].as_str().unwrap().to_owned())
        .collect()
}

/// Mode, owner, size and path of everything below `/alustan` in the layers that are not of the base image.
async fn files(scene: &Scene, name: &str, tag: &str) -> BTreeSet<String> {
    let base = layers(scene, "alustan/terraform:dev").await;
    let repository = format!("{}/{name}", scene.namespace);
    let mut files = BTreeSet::new();
    for layer in layers(scene, &format!("{repository}:{tag}")).await {
        if base.contains(&layer) {
            continue;
        }
        let blob = format!("http://{REGISTRY}/v2/{repository}/blobs/{layer}");
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

/// Settings of an image for the container runtime, without the context label, which names the repository.
async fn config(scene: &Scene, name: &str, tag: &str) -> Value {
    let image = format!("docker://{REGISTRY}/{}/{name}:{tag}", scene.namespace);
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

#[tokio::test]
async fn append_makes_kanikos_files_in_a_restricted_namespace() {
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
