//! `spec.mode: PlanOnly`, and `kubectl alustan plan --now`.

use alustan_api::State;
use alustan_tests::{condition, scene};
use serde_json::json;

use crate::drift::{MODULE, resource, text};

#[tokio::test]
async fn modules_plan_only_never_applies() {
    scene("plan-only", |scene| async move {
        scene.provider_credentials("credentials").await;
        scene.commit("greeting", &[("main.tf", MODULE)]).await;
        let mut web = resource(&scene, "web", "Correct");
        web["spec"]["mode"] = json!("PlanOnly");
        scene.apply(&web).await;
        let status = scene.ready("web").await.status.unwrap();
        assert_eq!(status.state, State::Planned);
        assert_eq!(status.plan.unwrap().summary, "+1 ~0 -0");
        let printed = scene.alustan(&["plan", "web"]).await;
        let change = "kubectl_manifest.greeting will be created";
        assert!(printed.contains(change), "{printed}");

        let printed = scene.alustan(&["plan", "web", "--now", "--wait"]).await;
        for part in [change, "has changes, which are not applied: +1 ~0 -0"] {
            assert!(printed.contains(part), "{printed}");
        }
        assert_eq!(text(&scene, "web").await, None);
        let jobs = scene.jobs("run").await;
        assert!(
            jobs.iter().all(|job| job.starts_with("web-drift-")),
            "{jobs:?}"
        );

        // The change of the mode applies the plan. A requested plan then has no changes.
        web["spec"]["mode"] = json!("Apply");
        scene.apply(&web).await;
        scene
            .wait("web", "the apply", |tf| {
                condition(tf, "Ready").is_some_and(|ready| ready.reason == "Applied")
            })
            .await;
        assert_eq!(text(&scene, "web").await.as_deref(), Some("hello"));
        let printed = scene.alustan(&["plan", "web", "--now", "--wait"]).await;
        assert!(printed.contains("has no changes"), "{printed}");

        // Drift is reported and not corrected, and the deletion waits for a user.
        web["spec"]["mode"] = json!("PlanOnly");
        scene.apply(&web).await;
        let change = "{\"data\":{\"text\":\"changed\"}}";
        scene
            .kubectl(&["patch", "configmap", "web", "--type=merge", "-p", change])
            .await;
        scene
            .wait("web", "drift", |tf| {
                let status = tf.status.as_ref();
                status.is_some_and(|status| status.state == State::Drifted)
            })
            .await;
        scene
            .kubectl(&["delete", "tf", "web", "--wait=false"])
            .await;
        scene
            .wait("web", "the wait of the deletion", |tf| {
                condition(tf, "Stalled").is_some_and(|stalled| stalled.reason == "PlanOnly")
            })
            .await;
        assert_eq!(text(&scene, "web").await.as_deref(), Some("changed"));
        let apply = r#"{"spec":{"mode":"Apply"}}"#;
        scene
            .kubectl(&["patch", "tf", "web", "--type=merge", "-p", apply])
            .await;
        scene
            .until("the destroy", async || {
                text(&scene, "web").await.is_none().then_some(())
            })
            .await;
    })
    .await;
}
