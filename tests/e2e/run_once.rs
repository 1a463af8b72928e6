//! A run is executed once, also if the operator is killed.

use alustan_tests::{Counter, scene};

/// Resource name of the maximum length, 50 characters.
const NAME: &str = "a-name-of-fifty-characters-for-the-job-and-its-pod";

#[tokio::test]
async fn apply_runs_once_after_controller_crash() {
    scene("killed", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/made");
        scene
            .commit("web", &[("main.tf", &counter.resource("a", "/made", ""))])
            .await;
        scene.apply(&scene.resource_of(NAME, "web")).await;
        counter.reached("/made").await;
        scene.cluster.kill_controller().await;
        // The apply ends while no operator runs.
        counter.release("/made");
        let tf = scene.ready(NAME).await;
        let status = tf.status.unwrap();
        assert_eq!((counter.count("/made"), status.run), (1, Some(1)));
        assert_eq!(status.runs.len(), 1, "{:?}", status.runs);
        assert_eq!(scene.jobs("run").await, [format!("{NAME}-apply-1")]);
    })
    .await;
}
