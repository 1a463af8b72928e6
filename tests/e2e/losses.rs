//! Things that somebody removed from under a resource.

use alustan_api::Terraform;
use alustan_api::run::RunKind;
use alustan_tests::{Counter, condition, scene};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn an_image_that_is_gone_is_told_and_what_changes_does_not_wait_for_it() {
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
        for part in ["run 2 (spec) cannot start: ", &digest, "waited for until"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }

        // It would be waited for longer than anybody waits here.
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
        assert_eq!(counter.lives(), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn a_state_that_is_gone_is_not_taken_for_an_empty_one() {
    scene("state", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &counter.module())]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});
        scene.apply(&web).await;
        scene.ready("web").await;
        let state = scene.remove_secret("web-state").await;
        web["spec"]["variables"]["v"] = json!("two");
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "StateLost", "{message}");
        for part in ["web-state", "Nothing was changed", "backup"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        scene.event("web", "StateLost").await;
        assert_eq!(counter.lives(), (1, 0));

        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        scene
            .wait("web", "a destroy that refuses", |tf| {
                let last = &tf.status.as_ref().unwrap().runs[0];
                let stalled = condition(tf, "Stalled").unwrap();
                last.kind == RunKind::Destroy
                    && last.reason.as_deref() == Some("StateLost")
                    && (stalled.status.as_str(), stalled.reason.as_str()) == ("True", "StateLost")
            })
            .await;
        assert_eq!(counter.lives(), (1, 0));

        scene.restore_secret(state).await;
        scene
            .annotate("web", alustan_api::RECONCILE_AT, "restored")
            .await;
        scene.deleted("web", &uid).await;
        assert_eq!(counter.lives(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn no_run_begins_beside_one_whose_record_is_gone() {
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

        // There is something to run now, and still nothing is run.
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

        // It cannot report what it made, but its state tells.
        counter.release("/made");
        scene.ready_after_run("web", 2).await;
        assert_eq!(scene.data("web-outputs").await["v"], "two");
        assert_eq!(counter.lives(), (1, 0));
        assert_eq!(scene.jobs("run").await, ["web-apply-1", "web-apply-2"]);
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.lives(), (1, 1));
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn outputs_that_were_removed_or_renamed_are_written_while_ready_stays() {
    scene("outputs", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &counter.module())]).await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "one"});
        scene.apply(&web).await;
        let first = scene.ready("web").await;
        scene.remove_secret("web-outputs").await;
        let done = |tf: &Terraform, run| tf.status.as_ref().unwrap().runs[0].number == run;
        scene
            .wait("web", "run 2 to be done", |tf| done(tf, 2))
            .await;
        assert_eq!(scene.data("web-outputs").await["v"], "one");

        web["spec"]["outputs"] = json!({"secretName": "elsewhere"});
        scene.apply(&web).await;
        let last = scene
            .wait("web", "run 3 to be done", |tf| done(tf, 3))
            .await;
        assert_eq!(scene.data("elsewhere").await["v"], "one");
        let status = last.status.as_ref().unwrap();
        let outputs = status.outputs.as_ref().unwrap();
        assert_eq!(outputs.secret_name, "elsewhere");
        let triggers: Vec<_> = status.runs.iter().map(|run| run.trigger.as_str()).collect();
        assert_eq!(triggers, ["outputs", "outputs", "created"]);
        // It would be another moment if it had not been Ready in between.
        let since = |tf| condition(tf, "Ready").unwrap().last_transition_time.clone();
        assert_eq!(since(&first), since(&last));
        assert_eq!(counter.lives(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}
