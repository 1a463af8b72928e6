//! The cache volume.

use alustan_tests::scene;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

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
        assert!(claims.get_opt("web-cache").await.unwrap().is_some());
        scene.ready("none").await;
        assert!(claims.get_opt("none-cache").await.unwrap().is_none());

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
            let log = scene.pod_log(&pod.name_any(), "prepare").await;
            let shared = "from the shared cache directory";
            assert_eq!(log.contains(shared), run == 3, "{log}");
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
