//! States in an S3 bucket: locks and ownership.

use alustan_tests::{Counter, Scene, condition, scene};
use kube::api::DeleteParams;
use serde_json::{Value, json};

const TABLE: &str = "locks";

/// Creates a bucket for the test, and a Secret with its credentials.
async fn bucket(scene: &Scene) {
    scene.aws_with_secret(&scene.namespace, TABLE).await;
}

fn in_bucket(scene: &Scene, name: &str, repository: &str, key: &str) -> Value {
    let mut resource = scene.resource_of(name, repository);
    resource["spec"]["backend"] = scene.s3_backend(&scene.namespace, TABLE, key);
    resource
}

#[tokio::test]
async fn lock_of_a_dead_pod_is_released_and_any_other_awaited() {
    scene("lock", |scene| async move {
        let counter = Counter::start().await;
        bucket(&scene).await;
        let place = format!("{}/state", scene.namespace);
        scene.lock(TABLE, &place, "alice@laptop").await;
        let module = counter.counted_object("a");
        scene.commit("web", &[("main.tf", &module)]).await;
        let mut web = in_bucket(&scene, "web", "web", "state");
        web["spec"]["retry"]["limit"] = json!(1);
        scene.apply(&web).await;
        let tf = scene
            .wait("web", "a second run in vain", |tf| {
                let runs = &tf.status.as_ref().map(|status| status.runs.len());
                let is_locked = condition(tf, "Ready")
                    .is_some_and(|condition| condition.reason == "StateLocked");
                is_locked && *runs >= Some(2)
            })
            .await;
        let message = &condition(&tf, "Ready").unwrap().message;
        for part in ["alice@laptop", "does not count towards", "next attempt at"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        let lock = tf.status.unwrap().lock.unwrap();
        assert_eq!(
            (lock.who.as_str(), lock.operation.as_str()),
            ("alice@laptop", "OperationTypeApply")
        );
        assert_eq!(lock.since.0.to_string(), "2026-11-20T08:15:00Z");
        assert_eq!(counter.creations_and_destructions(), (0, 0));
        assert!(scene.lock_at(TABLE, &place).await.is_some());
        scene.unlock(TABLE, &place).await;
        let status = scene.ready("web").await.status.unwrap();
        assert_eq!(
            (status.lock, counter.creations_and_destructions()),
            (None, (1, 0))
        );

        counter.hold("/more");
        let more = module + &counter.resource("more", "/more", "");
        scene.commit("web", &[("main.tf", &more)]).await;
        counter.reached("/more").await;
        let run = scene.run_number("web").await;
        let pod = format!("batch.kubernetes.io/job-name=web-apply-{run}");
        scene.cluster.kill(&scene.namespace, &pod).await;
        scene.reason("web", "Interrupted").await;
        let lock = scene.lock_at(TABLE, &place).await.unwrap();
        let holder = lock["Who"].as_str().unwrap();
        assert!(holder.contains(&format!("@web-apply-{run}-")), "{holder}");
        counter.release("/more");
        scene.ready_after_run("web", run + 1).await;
        let job = format!("web-apply-{}", run + 1);
        scene.log(&job, "releasing the state lock").await;
        assert_eq!(scene.lock_at(TABLE, &place).await, None);
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
    })
    .await;
}
