//! The cache volume.

use std::path::Path;

use alustan_api::{labels, names};
use alustan_tests::{Scene, scene};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::approval::{approve, pending};

const MODULE: &str = r#"
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "now" {}
"#;

#[tokio::test]
async fn builds_and_runs_share_a_volume_after_the_first_apply() {
    scene("cache", |scene| async move {
        scene.commit("web", &[("main.tf", MODULE)]).await;
        scene.apply(&scene.resource("web")).await;
        let mut none = scene.resource("none");
        none["spec"]["cache"] = json!({"enabled": false});
        scene.commit("none", &[("main.tf", "")]).await;
        scene.apply(&none).await;
        let first = scene.ready("web").await.status.unwrap();
        let builds = scene.jobs("build").await;
        // The first build and the first run mount no cache volume, because the volume would be empty.
        for job in [&builds[0], &builds[1], "web-apply-1"] {
            let claims: Vec<_> = scene
                .pod_of(job)
                .await
                .spec
                .unwrap()
                .volumes
                .unwrap()
                .into_iter()
                .filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name))
                .collect();
            assert!(claims.is_empty(), "{job}: {claims:?}");
        }
        let claims = scene.api::<PersistentVolumeClaim>();
        scene.ready("none").await;
        for claim in ["web-cache", "none-cache"] {
            assert!(claims.get_opt(claim).await.unwrap().is_none(), "{claim}");
        }

        let mut tags = vec![first.image.unwrap().tag];
        for run in [2, 3] {
            let more = format!("{MODULE}\noutput \"more\" {{ value = {run} }}");
            scene.commit("web", &[("main.tf", &more)]).await;
            let status = scene.ready_after_run("web", run).await.status.unwrap();
            let tag = status.image.unwrap().tag;
            assert!(!tags.contains(&tag));
            let job = alustan_api::names::build_job(&tag);
            let pod = scene.pod_of(&job).await;
            let mut claims = pod
                .spec
                .iter()
                .flat_map(|spec| spec.volumes.iter().flatten())
                .filter_map(|volume| volume.persistent_volume_claim.as_ref());
            assert!(claims.any(|claim| claim.claim_name == "web-cache"), "{job}");
            tags.push(tag);
        }
    })
    .await;
}

#[tokio::test]
async fn interrupt_by_a_full_or_lost_volume_fails_no_run() {
    scene("disk", |scene| async move {
        let disk = scene.disk(1024).await;
        let module = |text: &str| format!("{MODULE}\noutput \"text\" {{ value = \"{text}\" }}");
        scene.commit("web", &[("main.tf", &module("one"))]).await;
        let mut web = scene.resource("web");
        web["spec"]["cache"] = json!({"storageClassName": disk.class, "size": "1Mi"});
        disk.fill();
        scene.apply(&web).await;
        // Builds and runs succeed on a full cache volume, which has no room for providers or plans.
        scene.ready_after_run("web", 1).await;
        scene.commit("web", &[("main.tf", &module("two"))]).await;
        let status = scene.ready_after_run("web", 2).await.status.unwrap();
        assert!(disk.is_full());
        scene.log("web-apply-2", "failed to store the plan").await;
        assert_eq!(
            status
                .runs
                .iter()
                .filter(|run| run.result == "Failed")
                .count(),
            0
        );

        scene.lose_volume("web-cache").await;
        web["spec"]["cache"] = json!({"size": "1Mi"});
        scene.apply(&web).await;
        scene.commit("web", &[("main.tf", &module("three"))]).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(scene.data("web-outputs").await["text"], "three");
        let claim = scene
            .api::<PersistentVolumeClaim>()
            .get("web-cache")
            .await
            .unwrap();
        assert_eq!(
            claim.spec.unwrap().storage_class_name.as_deref(),
            Some("local-path")
        );
        scene.remove_disk(disk).await;
    })
    .await;
}

/// Name of the shared claim.
pub(crate) const CLAIM: &str = "plans";

/// Creates the shared claim, as an administrator does. The dev cluster has one node, so `ReadWriteOnce` is enough.
pub(crate) async fn create_claim(scene: &Scene) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": CLAIM, "namespace": scene.namespace, "annotations": {labels::ALLOW_CACHE: "true"},
        },
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    scene.create(&claim).await;
}

fn sharing(scene: &Scene, name: &str, approval: &str) -> Value {
    let mut resource = scene.resource(name);
    resource["spec"]["cache"] = json!({"claimName": CLAIM});
    resource["spec"]["approval"] = json!({"mode": approval});
    resource
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

#[tokio::test]
async fn cache_claim_is_shared_by_concurrent_runs() {
    scene("shared-cache", |scene| async move {
        create_claim(&scene).await;
        let volume = scene.volume_of(CLAIM).await;
        let module = "resource \"terraform_data\" \"a\" {}\n";
        for name in ["one", "two"] {
            scene.commit(name, &[("main.tf", module)]).await;
            scene.apply(&sharing(&scene, name, "Manual")).await;
        }
        let (one, first) = pending(&scene, "one", None).await;
        let (two, second) = pending(&scene, "two", None).await;
        let folder = |name: &str, uid: Option<String>| {
            volume.join(names::cache_directory(name, &uid.unwrap()))
        };
        let folders = [folder("one", first.uid()), folder("two", second.uid())];
        for folder in &folders {
            let plans: Vec<_> = std::fs::read_dir(folder.join("plans")).unwrap().collect();
            assert_eq!(plans.len(), 1, "{plans:?}");
        }
        tokio::join!(approve(&scene, "one", &one), approve(&scene, "two", &two));
        for name in ["one", "two"] {
            scene.ready(name).await;
            let run = scene.run_number(name).await;
            let job = format!("{name}-apply-{run}");
            let pod = scene.pod_of(&job).await;
            let containers = pod.spec.unwrap().containers;
            let mounts = containers[0].volume_mounts.as_ref().unwrap();
            let cache = mounts.iter().find(|mount| mount.name == "cache").unwrap();
            let uid = pod.metadata.labels.unwrap()["alustan.io/uid"].clone();
            assert_eq!(cache.sub_path, Some(names::cache_directory(name, &uid)));
            // The approved plan is applied: each run finds the plan of its resource.
            let log = scene.log(&job, "done").await;
            assert!(!log.contains("planning again"), "{log}");
        }
        assert!(!is_empty(&folders[0]) && !is_empty(&folders[1]));

        // Destroy and orphaning empty the directory of the resource alone.
        scene.delete("one", &DeleteParams::default()).await;
        scene
            .until("the directory of one to be empty", async || {
                is_empty(&folders[0]).then_some(())
            })
            .await;
        assert!(!is_empty(&folders[1]));
        let mut orphan = sharing(&scene, "two", "Manual");
        orphan["spec"]["deletionPolicy"] = json!("Orphan");
        scene.apply(&orphan).await;
        scene.delete("two", &DeleteParams::default()).await;
        scene
            .until("the directory of two to be empty", async || {
                is_empty(&folders[1]).then_some(())
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn cache_claim_that_is_removed_is_reported() {
    scene("removed-cache", |scene| async move {
        create_claim(&scene).await;
        scene.volume_of(CLAIM).await;
        let module =
            |text: &str| format!("resource \"terraform_data\" \"a\" {{ input = \"{text}\" }}\n");
        scene.commit("web", &[("main.tf", &module("one"))]).await;
        scene.apply(&sharing(&scene, "web", "Auto")).await;
        scene.ready_after_run("web", 1).await;
        scene.apply(&sharing(&scene, "web", "Manual")).await;
        scene.commit("web", &[("main.tf", &module("two"))]).await;
        let (id, _) = pending(&scene, "web", None).await;

        let claims = scene.api::<PersistentVolumeClaim>();
        let uid = claims.get(CLAIM).await.unwrap().uid().unwrap();
        claims
            .delete(CLAIM, &DeleteParams::default())
            .await
            .unwrap();
        // Finished pods refer to the claim. The operator deletes their Jobs.
        scene.annotate("web", "alustan.io/wake", "1").await;
        scene.gone::<PersistentVolumeClaim>(CLAIM, &uid).await;
        approve(&scene, "web", &id).await;
        let message = scene.reason("web", "CacheClaimNotFound").await;
        assert!(
            message.contains("spec.cache.claimName: PersistentVolumeClaim plans does not exist"),
            "{message}"
        );

        // The plan was on the volume. It is made again, and applied because its id is the same.
        create_claim(&scene).await;
        scene.ready("web").await;
        let job = format!("web-apply-{}", scene.run_number("web").await);
        let log = scene.log(&job, "done").await;
        assert!(log.contains("planning again"), "{log}");
        scene.delete("web", &DeleteParams::default()).await;
    })
    .await;
}

/// Returns the entry of provider `time` in the dependency lock file in `text`.
fn lock_of_time(text: &str) -> String {
    let start = text
        .match_indices("provider \"")
        .map(|(start, _)| &text[start..])
        .find(|entry| {
            let line = entry.lines().next().unwrap_or_default();
            line.ends_with("hashicorp/time\" {")
        })
        .unwrap();
    let end = start.find("\n}\n").unwrap();
    format!("{}\n}}\n", &start[..end])
}

#[tokio::test]
async fn cache_with_a_provider_replaced_by_another_pod_is_not_used() {
    scene("replaced-cache", |scene| async move {
        create_claim(&scene).await;
        let volume = scene.volume_of(CLAIM).await;
        scene.commit("web", &[("main.tf", MODULE)]).await;
        scene.apply(&sharing(&scene, "web", "Auto")).await;
        let web = scene.ready_after_run("web", 1).await;
        let digest = web.status.as_ref().unwrap().image.clone().unwrap().digest;
        let lock = lock_of_time(&scene.image_text("web", &digest.unwrap()).await);
        let address = lock.split('"').nth(1).unwrap();
        let version = lock.split('"').nth(3).unwrap();
        let directory = names::cache_directory("web", &web.uid().unwrap());
        let package = format!("{directory}/plugins/{address}/{version}/linux_amd64");

        // Any pod of the namespace can mount the whole claim.
        let image = scene.pod_of("web-apply-1").await.spec.unwrap().containers[0]
            .image
            .clone();
        let program = format!("/all/{package}/terraform-provider-time_v{version}");
        let write = format!(
            "mkdir -p /all/{package} && echo '#!/bin/sh' >{program} && chmod 755 {program}"
        );
        let other = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "other", "namespace": scene.namespace},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {
                    "fsGroup": 65532, "runAsUser": 65532, "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "other", "image": image, "command": ["sh", "-c", write],
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "all", "mountPath": "/all"}],
                }],
                "volumes": [{"name": "all", "persistentVolumeClaim": {"claimName": CLAIM}}],
            },
        });
        scene.create(&other).await;
        let pods = scene.api::<Pod>();
        scene
            .until("the other pod to end", async || {
                let phase = pods.get("other").await.ok()?.status?.phase?;
                assert_ne!(phase, "Failed");
                (phase == "Succeeded").then_some(())
            })
            .await;
        assert!(volume.join(&package).is_dir());

        let module = format!("{MODULE}\noutput \"more\" {{ value = 1 }}");
        let files = [("main.tf", module.as_str()), (".terraform.lock.hcl", &lock)];
        scene.commit("web", &files).await;
        let status = scene.ready_after_run("web", 2).await.status.unwrap();
        let job = names::build_job(&status.image.unwrap().tag);
        let pod = scene.pod_of(&job).await;
        let log = scene.pod_log(&pod.name_any(), "prepare").await;
        assert!(log.contains("does not match .terraform.lock.hcl"), "{log}");
        assert!(!volume.join(&package).exists());
    })
    .await;
}
