//! The main path: a commit is built, applied and destroyed.

use alustan_tests::scene;
use kube::api::DeleteParams;

const MODULE: &str = r#"
variable "greeting" { type = string }
resource "terraform_data" "a" { input = var.greeting }
output "said" { value = terraform_data.a.output }
"#;

#[tokio::test]
async fn a_commit_is_built_applied_and_destroyed() {
    scene("main", |scene| async move {
        let commit = scene.commit("web", &[("main.tf", MODULE)]).await;
        let mut web = scene.resource_by_kaniko("web");
        web["spec"]["variables"] = serde_json::json!({"greeting": "hello"});
        scene.apply(&web).await;
        let tf = scene.ready("web").await;
        let status = tf.status.unwrap();
        assert_eq!(status.source.unwrap().revision, commit);
        let digest = status.image.unwrap().digest.unwrap();
        let image = format!(
            "registry.alustan.test:5000/{}/web@{digest}",
            scene.namespace
        );
        let pod = scene.pod_of("web-apply-1").await.spec.unwrap();
        assert_eq!(pod.containers[0].image, Some(image));
        assert_eq!(status.plan.unwrap().summary, "+1 ~0 -0");
        assert_eq!(scene.data("web-outputs").await["said"], "hello");
        scene.log("web-apply-1", "Apply complete!").await;
        assert!(!scene.data("web-run").await.contains_key("inputs"));
        let report = scene.data("web-report").await;
        assert!(!report.contains_key("report") && !report.contains_key("outputs"));
        let shown = scene.kubectl(&["get", "tf", "web"]).await;
        assert!(shown.contains("Success"), "{shown}");

        // Foreground deletion, as in Argo CD, deletes the objects that the resource owns before the resource.
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}
