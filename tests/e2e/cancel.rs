//! Runs that a user cancels, and plans that a user discards.

use alustan_api::TerraformRun;
use alustan_api::run::{RunPhase, RunRecord};
use alustan_tests::{Counter, Scene, scene};
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::approval::{approve, pending};

/// Module with two objects, created one after the other. Each object requests a path when it is created.
fn module(counter: &Counter) -> String {
    let first = counter.resource("first", "/first", "");
    let after = "depends_on = [terraform_data.first]";
    first + &counter.resource("second", "/second", after)
}

/// Returns the record of run `number`.
async fn recorded(scene: &Scene, number: i64) -> TerraformRun {
    let runs = scene.api::<TerraformRun>();
    let runs = runs.list(&ListParams::default()).await.unwrap();
    let mut runs = runs.into_iter();
    runs.find(|run| run.spec.number == number).unwrap()
}

#[tokio::test]
async fn cancelled_apply_saves_its_state_and_waits_for_a_request() {
    scene("cancel", |scene| async move {
        let counter = Counter::start().await;
        let text = module(&counter);
        let module = [("web/main.tf", text.as_str())];
        scene.commit("web", &module).await;
        counter.hold("/second");
        let mut web = scene.resource("web");
        web["spec"]["gitRepo"]["path"] = json!("web");
        web["spec"]["retry"] = json!({"minBackoff": "1s", "maxBackoff": "1s"});
        scene.apply(&web).await;
        counter.reached("/second").await;

        scene.annotate("web", alustan_api::CANCEL_RUN, "2").await;
        scene
            .wait_for_message("web", "alustan.io/cancel-run is \"2\" and has no effect")
            .await;
        let printed = scene.alustan(&["cancel", "web"]).await;
        assert!(printed.contains("cancellation of run 1"), "{printed}");
        let message = scene.reason("web", "RunCancelled").await;
        for part in [
            "run 1 (apply) was cancelled by a user while it changed objects",
            "the next plan shows what is missing",
            "not retried automatically",
        ] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        let (reason, _) = scene.stalled("web").await;
        assert_eq!(reason, "RunCancelled");

        // The engine ended by itself: the state is saved, and its lock is released.
        let record: RunRecord =
            serde_json::from_str(&scene.data("web-run").await["record"]).unwrap();
        assert_eq!((record.phase, record.lock), (RunPhase::Recorded, None));
        let pointer: Value =
            serde_json::from_str(&scene.data("web-state").await["pointer"]).unwrap();
        assert!(pointer["current"]["serial"].is_u64(), "{pointer}");
        let state = scene.alustan(&["state", "pull", "web"]).await;
        assert!(state.contains("\"first\""), "{state}");
        let run = recorded(&scene, 1).await.status.unwrap();
        assert_eq!(
            (run.result.as_str(), run.reason.as_deref()),
            ("Failed", Some("RunCancelled"))
        );
        let log = format!("{}{}", run.log.head, run.log.tail);
        assert!(log.contains("Interrupt received"), "{log}");

        // A commit outside of the module causes a reconcile, which starts no run.
        counter.release("/second");
        let outside = [&module[..], &[("README.md", "outside of the module")]].concat();
        let commit = scene.commit("web", &outside).await;
        scene
            .wait("web", "the commit", |tf| {
                let status = tf.status.as_ref();
                let source = status.and_then(|status| status.source.as_ref());
                source.is_some_and(|source| source.revision == commit)
            })
            .await;
        assert_eq!(scene.run_number("web").await, 1);
        assert_eq!(scene.stalled("web").await.0, "RunCancelled");
        assert_eq!(counter.count("/second"), 1);

        scene.alustan(&["reconcile", "web"]).await;
        scene.ready_after_run("web", 2).await;
        // The second object was interrupted while it was created, and is replaced.
        assert_eq!((counter.count("/first"), counter.count("/second")), (1, 2));
    })
    .await;
}

#[tokio::test]
async fn discarded_plan_is_not_applied_until_a_new_plan_is_approved() {
    scene("discard", |scene| async move {
        let counter = Counter::start().await;
        let module = counter.counted_object("a");
        scene.commit("web", &[("main.tf", &module)]).await;
        let mut web = scene.resource("web");
        web["spec"]["approval"] = json!({"mode": "Manual"});
        scene.apply(&web).await;
        let (first, _) = pending(&scene, "web", None).await;
        let printed = scene.alustan(&["discard", "web", &first]).await;
        assert!(printed.contains("discarded; for a new plan"), "{printed}");
        let (reason, message) = scene.stalled("web").await;
        assert_eq!(reason, "PlanDiscarded");
        let discarded = format!("plan {first} of run 1 was discarded by a user");
        assert!(message.contains(&discarded), "{message}");
        approve(&scene, "web", &first).await;
        scene
            .wait_for_message(
                "web",
                "spec.approval.plan names this plan and has no effect",
            )
            .await;
        assert_eq!(scene.run_number("web").await, 1);

        // The new plan has the same changes and another id, so the earlier approval is not valid for it.
        scene.alustan(&["reconcile", "web"]).await;
        let (second, _) = pending(&scene, "web", Some(&first)).await;
        assert_ne!(second, first);
        assert_eq!(counter.creations_and_destructions(), (0, 0));
        approve(&scene, "web", &second).await;
        scene.ready("web").await;
        assert_eq!(counter.creations_and_destructions(), (1, 0));
    })
    .await;
}
