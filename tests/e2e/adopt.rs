//! Adoption of states that were created outside of the operator.

use alustan_tests::scene;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn adopt_local_state_pushed_before_first_run_recreates_nothing() {
    scene("adopt-local", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        // The resource `old` simulates an engine outside of the cluster: after the deletion of `old`, the real objects and a file with the
        // state remain.
        let mut old = scene.resource_of("old", "web");
        old["spec"]["deletionPolicy"] = json!("Orphan");
        scene.apply(&old).await;
        scene.ready("old").await;
        let state = scene.alustan(&["state", "pull", "old"]).await;
        scene.delete("old", &DeleteParams::foreground()).await;
        scene.remove_secret("old-state").await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("terraform.tfstate");
        std::fs::write(&file, state).unwrap();

        // Steps of docs/migration.md.
        let mut web = scene.resource("web");
        web["spec"]["suspend"] = json!(true);
        web["spec"]["backend"] = json!({"adopt": true});
        scene.apply(&web).await;
        scene.reason("web", "Suspended").await;
        let file = file.to_str().unwrap();
        scene.alustan(&["state", "push", "web", file]).await;
        scene.alustan(&["resume", "web"]).await;
        let runs = scene.ready("web").await.status.unwrap().runs;
        let results: Vec<_> = runs.iter().map(|run| run.result.as_str()).collect();
        assert_eq!(results, ["NoChanges"]);
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
    })
    .await;
}
