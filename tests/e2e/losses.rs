//! Objects that another client deletes while a resource uses them.

use alustan_tests::{Counter, condition, scene};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn missing_image_is_reported_and_a_change_replaces_the_run() {
    scene("gone", |scene| async move {
        let counter = Counter::start().await;
        let text = counter.module();
        scene.commit("web", &[("main.tf", &text)]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});
        scene.apply(&web).await;
        let tf = scene.ready("web").await;
        let digest = tf.status.unwrap().image.unwrap().digest.unwrap();
        scene.lose_image("web", &digest).await;
        web["spec"]["variables"]["v"] = json!("two");
        scene.apply(&web).await;
        let message = scene.reason("web", "ImagePullBackOff").await;
        for part in ["run 2 (spec) cannot start: ", &digest, "does not start by"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }

        // Changes the spec again, because the operator waits for the missing image longer than the deadline of the test.
        web["spec"]["variables"]["v"] = json!("three");
        scene.apply(&web).await;
        scene
            .wait("web", "the next run in place of that one", |tf| {
                let status = tf.status.as_ref().unwrap();
                let last = &status.runs[0];
                status.run == Some(3) && (last.number, last.result.as_str()) == (2, "Cancelled")
            })
            .await;
        let more = format!("{text}\noutput \"more\" {{ value = 1 }}");
        scene.commit("web", &[("main.tf", &more)]).await;
        let status = scene.ready_after_run("web", 4).await.status.unwrap();
        let results: Vec<_> = status.runs.iter().map(|run| run.result.as_str()).collect();
        assert_eq!(results, ["Done", "Cancelled", "Cancelled", "Done"]);
        assert_eq!(scene.data("web-outputs").await["v"], "three");
        assert_eq!(counter.creations_and_destructions(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn no_run_starts_beside_a_run_whose_record_is_lost() {
    scene("record", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/made");
        scene.commit("web", &[("main.tf", &counter.module())]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});
        scene.apply(&web).await;
        counter.reached("/made").await;
        scene.remove_secret("web-run").await;
        let message = scene.reason("web", "RecordLost").await;
        assert!(message.contains("Job web-apply-1"), "{message}");

        // A changed spec starts no run while the run record is missing.
        web["spec"]["variables"]["v"] = json!("two");
        scene.apply(&web).await;
        let tf = scene
            .wait("web", "the change to be seen", |tf| {
                let observed = tf.status.as_ref().unwrap().observed_generation;
                tf.metadata.generation == Some(2) && observed == Some(2)
            })
            .await;
        assert_eq!(condition(&tf, "Ready").unwrap().reason, "RecordLost");
        assert_eq!(scene.jobs("run").await, ["web-apply-1"]);
        let record = scene.api::<Secret>().get_opt("web-run").await.unwrap();
        assert!(record.is_none(), "{record:?}");

        // The run record is lost, so the operator does not know what run 1 created. Run 2 finds the created object in the state.
        counter.release("/made");
        scene.ready_after_run("web", 2).await;
        assert_eq!(scene.data("web-outputs").await["v"], "two");
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        assert_eq!(scene.jobs("run").await, ["web-apply-1", "web-apply-2"]);
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}
