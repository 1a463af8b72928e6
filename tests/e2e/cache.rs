//! The cache volume.

use alustan_tests::scene;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
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
async fn builds_and_runs_share_a_volume_and_a_provider_is_installed_once() {
    scene("cache", |scene| async move {
        scene.commit("web", &[("main.tf", MODULE)]).await;
        scene.apply(&scene.resource("web")).await;
        let mut none = scene.resource("none");
        none["spec"]["cache"] = json!({"enabled": false});
        scene.commit("none", &[("main.tf", "")]).await;
        scene.apply(&none).await;
        let first = scene.ready("web").await.status.unwrap();
        let builds = scene.jobs("build").await;
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
            assert!(
                claims.is_empty() || claims == ["web-cache"],
                "{job}: {claims:?}"
            );
        }
        let claims = scene.api::<PersistentVolumeClaim>();
        assert!(claims.get_opt("web-cache").await.unwrap().is_some());
        scene.ready("none").await;
        assert!(claims.get_opt("none-cache").await.unwrap().is_none());

        let more = format!("{MODULE}\noutput \"more\" {{ value = 1 }}");
        scene.commit("web", &[("main.tf", &more)]).await;
        let second = scene.ready_after_run("web", 2).await.status.unwrap();
        let (first, second) = (first.image.unwrap().tag, second.image.unwrap().tag);
        assert_ne!(first, second);
        let job = alustan_api::names::build_job(&second);
        let pod = scene.pod_of(&job).await.metadata.name.unwrap();
        let log = scene.pod_log(&pod, "build").await;
        assert!(log.contains("from the shared cache directory"), "{log}");
    })
    .await;
}

#[tokio::test]
async fn interrupt_by_a_full_volume_or_a_lost_one_costs_time_and_nothing_else() {
    scene("disk", |scene| async move {
        let disk = scene.disk(1024).await;
        let module = |text: &str| format!("{MODULE}\noutput \"text\" {{ value = \"{text}\" }}");
        scene.commit("web", &[("main.tf", &module("one"))]).await;
        let mut web = scene.resource("web");
        web["spec"]["cache"] = json!({"storageClassName": disk.class, "size": "1Mi"});
        disk.fill();
        scene.apply(&web).await;
        // It is built and run with no room for providers, for plans, for anything.
        scene.ready_after_run("web", 1).await;
        scene.commit("web", &[("main.tf", &module("two"))]).await;
        let status = scene.ready_after_run("web", 2).await.status.unwrap();
        assert!(disk.is_full());
        scene.log("web-apply-2", "the plan is not kept").await;
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
