//! Failures, their budget, and the way back.

use alustan_tests::{Counter, scene};
use serde_json::json;

#[tokio::test]
async fn an_apply_that_failed_half_way_is_finished_and_nothing_is_made_twice() {
    scene("half", |scene| async move {
        let counter = Counter::start().await;
        let first = counter.resource("first", "/first", "");
        let after = "depends_on = [terraform_data.first]";
        let broken = format!(
            "{first}\nresource \"terraform_data\" \"second\" {{\n  {after}\n  provisioner \"local-exec\" {{\n    \
             command = \"echo no room left on the shelf >&2; exit 3\"\n  }}\n}}\n"
        );
        scene.commit("web", &[("main.tf", &broken)]).await;
        let mut web = scene.resource("web");
        web["spec"]["retry"]["limit"] = json!(2);
        scene.apply(&web).await;
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "ApplyFailed");
        for part in [
            "no room left on the shelf",
            "failed 2 times in a row",
            "kubectl annotate tf web",
            "alustan.io/reconcile-at",
            "job/web-apply-2",
        ] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        scene.event("web", "ApplyFailed").await;
        assert_eq!(scene.jobs("run").await.len(), 2);

        // A person asks for another try: a new budget, the same fault.
        scene.annotate("web", "alustan.io/reconcile-at", "once more").await;
        scene
            .wait("web", "the runs that were asked for", |tf| {
                let stalled = alustan_tests::condition(tf, "Stalled");
                let run = tf.status.as_ref().and_then(|status| status.run);
                run == Some(4) && stalled.is_some_and(|stalled| stalled.status == "True")
            })
            .await;

        let mended = format!("{first}\n{}", counter.resource("second", "/second", after));
        scene.commit("web", &[("main.tf", &mended)]).await;
        let status = scene.ready_after_run("web", 5).await.status.unwrap();
        assert_eq!((counter.count("/first"), counter.count("/second")), (1, 1));
        assert_eq!(status.retry, None);
        assert_eq!(status.runs.len(), 5);
    })
    .await;
}
