//! Plans that wait for approval.

use alustan_api::{State, Terraform};
use alustan_tests::{Counter, Scene, scene};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

/// Waits until a plan of `name` other than `last` is pending approval. Returns its id and the resource.
pub(crate) async fn pending(scene: &Scene, name: &str, last: Option<&str>) -> (String, Terraform) {
    let id = |tf: &Terraform| {
        let plan = tf.status.as_ref()?.plan.as_ref()?;
        let id = plan.id.clone().filter(|_| plan.pending_approval)?;
        (Some(id.as_str()) != last).then_some(id)
    };
    let waits = "a plan to wait for approval";
    let tf = scene.wait(name, waits, |tf| id(tf).is_some()).await;
    (id(&tf).unwrap(), tf)
}

/// Approves plan `id` as `kubectl alustan approve` does, with field manager `alice`.
pub(crate) async fn approve(scene: &Scene, name: &str, id: &str) {
    let by = scene.cluster.user().await;
    let patch = json!({"spec": {"approval": {"plan": id, "by": by}}});
    let alice = PatchParams {
        field_manager: Some("alice".to_owned()),
        ..PatchParams::default()
    };
    let api = scene.api::<Terraform>();
    api.patch(name, &alice, &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[tokio::test]
async fn approval_of_a_plan_is_required_and_valid_once() {
    Box::pin(scene("approval", |scene| async move {
        let counter = Counter::start().await;
        let module = |text: &str| {
            format!(
                "output \"o\" {{ value = 1 }}\n# {text}\n{}",
                counter.counted_object("a")
            )
        };
        scene.commit("web", &[("main.tf", &module("one"))]).await;
        let mut web = scene.resource("web");
        web["spec"]["approval"] = json!({"mode": "Manual", "destroy": "Manual"});
        scene.apply(&web).await;
        let (first, tf) = pending(&scene, "web", None).await;
        let status = tf.status.clone().unwrap();
        assert_eq!(status.state, State::AwaitingApproval);
        for part in [
            &format!("plan {first} waits for approval"),
            "+1 ~0 -0: create terraform_data.a",
            &format!("kubectl patch tf web -n {} --type merge", scene.namespace),
        ] {
            assert!(
                status.message.contains(part),
                "no {part:?} in {}",
                status.message
            );
        }
        scene.event("web", "AwaitingApproval").await;
        scene.log("web-plan-1", "will be created").await;
        let plan = scene.data("web-plan").await;
        assert_eq!(plan["id"], first);
        assert!(
            plan["plan.txt"].contains("terraform_data.a will be created"),
            "{plan:?}"
        );

        // An unknown plan id approves nothing. A commit that changes the module invalidates the pending plan.
        approve(&scene, "web", "cafe").await;
        scene
            .wait_for_message(
                "web",
                "spec.approval.plan is \"cafe\", which is not this plan",
            )
            .await;
        scene.commit("web", &[("main.tf", &module("two"))]).await;
        let (second, _) = pending(&scene, "web", Some(&first)).await;
        approve(&scene, "web", &first).await;
        scene
            .wait_for_message("web", "which is not this plan")
            .await;
        assert_eq!(counter.creations_and_destructions(), (0, 0));

        approve(&scene, "web", &second).await;
        let tf = scene.ready("web").await;
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        let status = tf.status.unwrap();
        let plan = status.plan.unwrap();
        assert_eq!(plan.id.as_ref(), Some(&second));
        let user = scene.cluster.user().await;
        assert_eq!(plan.approved_by, Some(user));
        assert_eq!(plan.approval_field_manager.as_deref(), Some("alice"));
        assert!(plan.approved_at.is_some() && !plan.pending_approval);
        assert_eq!(status.runs[0].trigger, format!("approval {second}"));
        assert_eq!(scene.data("web-outputs").await["o"], "1");

        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        let (third, tf) = pending(&scene, "web", Some(&second)).await;
        let message = tf.status.unwrap().message;
        assert!(
            message.contains("1 object to destroy, +0 ~0 -1: delete terraform_data.a"),
            "{message}"
        );
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        approve(&scene, "web", &third).await;
        scene.deleted("web", &uid).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    }))
    .await;
}
