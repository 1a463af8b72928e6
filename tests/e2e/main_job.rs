//! The main job: from a commit to applied, and back.

use alustan_tests::scene;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::api::{DeleteParams, ListParams};

const MODULE: &str = r#"
variable "greeting" { type = string }
resource "terraform_data" "a" { input = var.greeting }
output "said" { value = terraform_data.a.output }
"#;

#[tokio::test]
async fn a_commit_is_built_applied_and_destroyed() {
    scene("main", |scene| async move {
        let commit = scene.commit("web", &[("main.tf", MODULE)]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = serde_json::json!({"greeting": "hello"});
        scene.apply(&web).await;
        let tf = scene.ready("web").await;
        let status = tf.status.unwrap();
        assert_eq!(status.source.unwrap().revision, commit);
        assert!(status.image.unwrap().digest.unwrap().starts_with("sha256:"));
        assert_eq!(status.plan.unwrap().summary, "+1 ~0 -0");
        assert_eq!(scene.data("web-outputs").await["said"], "hello");
        let log = scene.kubectl(&["logs", "job/web-apply-1"]).await;
        assert!(log.contains("Apply complete!"), "{log}");
        let record = scene.data("web-run").await;
        assert!(!record.contains_key("inputs") && !record.contains_key("outputs"));

        scene.delete("web", &DeleteParams::foreground()).await;
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=alustan");
        assert!(
            scene
                .api::<Secret>()
                .list(&ours)
                .await
                .unwrap()
                .items
                .is_empty()
        );
        assert!(
            scene
                .api::<Job>()
                .list(&ours)
                .await
                .unwrap()
                .items
                .iter()
                .all(|job| { job.metadata.deletion_timestamp.is_some() })
        );
        assert!(
            scene
                .api::<PersistentVolumeClaim>()
                .list(&ours)
                .await
                .unwrap()
                .items
                .iter()
                .all(|claim| claim.metadata.deletion_timestamp.is_some())
        );
    })
    .await;
}
