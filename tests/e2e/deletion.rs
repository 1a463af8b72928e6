//! Deletion in all the moments that it can come at.

use alustan_api::State;
use alustan_tests::{Counter, scene};
use kube::api::DeleteParams;
use serde_json::json;

/// A module whose object is counted when it is made and when it is destroyed.
fn counted(counter: &Counter) -> String {
    let destroyed = format!(
        "provisioner \"local-exec\" {{\n    when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    \
         command = \"{}\"\n  }}",
        counter.command("/destroyed")
    );
    counter.resource("a", "/made", &destroyed)
}

#[tokio::test]
async fn a_deleted_resource_is_destroyed_whichever_way_it_is_deleted() {
    scene("delete", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("web", &[("main.tf", &counted(&counter))])
            .await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(
            (counter.count("/made"), counter.count("/destroyed")),
            (1, 1)
        );
        scene.nothing_left().await;

        // The same content again: its image is in the registry, so no build comes before the run.
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;
        assert!(scene.jobs("build").await.is_empty(), "nothing was built");
        scene.delete("web", &DeleteParams::background()).await;
        assert_eq!(
            (counter.count("/made"), counter.count("/destroyed")),
            (2, 2)
        );
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_never_applied_goes_at_once() {
    scene("never", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        // One that has no commit, one whose build cannot start, one that is deleted at once.
        let mut lost = scene.resource_of("lost", "web");
        lost["spec"]["gitRepo"]["branch"] = json!("no-such-branch");
        let mut stuck = scene.resource_of("stuck", "web");
        stuck["spec"]["containerRegistry"]["builder"] =
            json!({"image": "registry.alustan.test:5000/no/such-builder"});
        let quick = scene.resource_of("quick", "web");
        scene.apply(&lost).await;
        scene.apply(&stuck).await;
        scene.apply(&quick).await;
        scene.delete("quick", &DeleteParams::background()).await;
        scene.reason("lost", "BranchNotFound").await;
        scene.delete("lost", &DeleteParams::foreground()).await;
        let building = scene
            .wait("stuck", "what the build waits for", |tf| {
                let message = tf.status.as_ref().map(|status| status.message.as_str());
                message.is_some_and(|message| message.contains("ImagePull"))
            })
            .await;
        assert_eq!(building.status.unwrap().state, State::Building);
        scene.delete("stuck", &DeleteParams::foreground()).await;
        assert!(scene.jobs("run").await.is_empty(), "nothing was run");
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_cannot_start_is_cancelled_by_deletion() {
    scene("pull", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        let mut web = scene.resource("web");
        web["spec"]["containerRegistry"]["builder"] =
            json!({"image": "registry.alustan.test:5000/no/such-builder"});
        scene.apply(&web).await;
        let tf = scene
            .wait("web", "a build that waits", |tf| {
                let message = tf.status.as_ref().map(|status| status.message.as_str());
                message.is_some_and(|message| message.contains("ImagePull"))
            })
            .await;
        let tag = tf.status.unwrap().image.unwrap().tag;
        scene.delete("web", &DeleteParams::background()).await;
        // What stands in the registry under this tag can be resolved, but no node can run it.
        scene.spoil("web", &tag).await;
        scene.apply(&web).await;
        scene
            .wait("web", "what the run waits for", |tf| {
                let message = tf.status.as_ref().map(|status| status.message.as_str());
                message.is_some_and(|text| text.contains("run 1 (created) cannot start: "))
            })
            .await;
        scene.delete("web", &DeleteParams::foreground()).await;
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_plans_is_cancelled_by_deletion() {
    scene("cancel", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/planning");
        scene
            .commit("web", &[("main.tf", &counted(&counter))])
            .await;
        let mut web = scene.resource("web");
        let plan = format!(
            "{}\nterraform plan -out=$ALUSTAN_PLAN_FILE",
            counter.command("/planning")
        );
        web["spec"]["scripts"] = json!({"plan": {"inline": plan}});
        scene.apply(&web).await;
        counter.reached("/planning").await;
        // Nobody answers the plan's question: it would never end by itself.
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.count("/made"), 0);
        scene.nothing_left().await;
        counter.release("/planning");
    })
    .await;
}

#[tokio::test]
async fn a_run_that_applies_is_waited_for_and_then_destroyed() {
    scene("waits", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/made");
        scene
            .commit("web", &[("main.tf", &counted(&counter))])
            .await;
        scene.apply(&scene.resource("web")).await;
        counter.reached("/made").await;
        let uid = scene
            .begin_to_delete("web", &DeleteParams::foreground())
            .await;
        scene
            .wait("web", "to be told that the apply goes on", |tf| {
                let message = tf.status.as_ref().map(|status| status.message.as_str());
                message.is_some_and(|message| message.contains("is applying and is not cut short"))
            })
            .await;
        counter.release("/made");
        scene.deleted("web", &uid).await;
        assert_eq!(
            (counter.count("/made"), counter.count("/destroyed")),
            (1, 1)
        );
        scene.nothing_left().await;
    })
    .await;
}
