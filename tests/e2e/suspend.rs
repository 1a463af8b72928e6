//! `spec.suspend`.

use alustan_tests::{Counter, condition, scene};
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn suspend_cancels_what_plans_leaves_alone_what_applies_and_keeps_a_deleted_one() {
    scene("suspend", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/plan");
        counter.hold("/made");
        scene.commit("web", &[("main.tf", &counter.life("a"))]).await;
        let mut web = scene.resource("web");
        let plan = format!(
            "#!/usr/bin/env bash\n({})\nterraform plan -input=false -lock=false -detailed-exitcode -out=\"$ALUSTAN_PLAN_FILE\"\n",
            counter.command("/plan")
        );
        web["spec"]["scripts"] = json!({"plan": {"inline": plan}});
        scene.apply(&web).await;
        counter.reached("/plan").await;
        web["spec"]["suspend"] = json!(true);
        scene.apply(&web).await;
        let suspended = scene
            .wait("web", "the run to be cancelled", |tf| {
                let status = tf.status.as_ref().unwrap();
                let last = status.runs.first().map(|run| run.result.as_str());
                let ready = condition(tf, "Ready").unwrap();
                (last, ready.reason.as_str()) == (Some("Cancelled"), "Suspended")
            })
            .await;
        assert!(suspended.status.unwrap().message.contains("\"suspend\":false"));
        assert_eq!(counter.lives(), (0, 0));

        counter.release("/plan");
        web["spec"]["suspend"] = json!(false);
        scene.apply(&web).await;
        counter.reached("/made").await;
        web["spec"]["suspend"] = json!(true);
        scene.apply(&web).await;
        scene.said("web", "applying, run 2").await;
        counter.release("/made");
        let tf = scene.ready("web").await;
        assert_eq!(condition(&tf, "Ready").unwrap().reason, "Suspended");
        assert_eq!(counter.lives(), (1, 0));

        let uid = scene.begin_to_delete("web", &DeleteParams::foreground()).await;
        scene.reason("web", "Suspended").await;
        assert_eq!(counter.lives(), (1, 0));
        web["spec"]["suspend"] = json!(false);
        scene.apply(&web).await;
        scene.deleted("web", &uid).await;
        assert_eq!(counter.lives(), (1, 1));
    })
    .await;
}
