//! The stories of `deploy/examples`, by their twins: applied by `hack/twin` as a reader does it.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_tests::{Scene, scene};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

/// Applies the twin of an example: all of it at once, in the order of its file.
async fn twin(scene: &Scene, example: &str) {
    let arguments = [example, &scene.namespace];
    scene.cluster.run("hack/twin", &arguments).await;
}

/// The data of a `ConfigMap` that a module made, if it is there.
async fn made(scene: &Scene, name: &str) -> Option<BTreeMap<String, String>> {
    let map = scene.api::<ConfigMap>().get_opt(name).await.unwrap()?;
    Some(map.data.unwrap_or_default())
}

/// Changes the resource `name` as `kubectl patch` would.
async fn change(scene: &Scene, name: &str, spec: Value) {
    let patch = json!({"spec": spec});
    let api = scene.api::<Terraform>();
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// What triggered the last run of the resource `name`, once that is run `number`.
async fn trigger(scene: &Scene, name: &str, number: i64) -> String {
    let tf = scene.ready_after_run(name, number).await;
    tf.status.unwrap().runs[0].trigger.clone()
}

#[tokio::test]
async fn examples_the_cluster_is_made_first_and_what_runs_on_it_goes_first() {
    scene("apps", |scene| async move {
        twin(&scene, "cluster-then-apps").await;
        scene.ready("apps").await;
        let cluster = json!({"name": "blue"});
        assert_eq!(json!(made(&scene, "cluster").await), cluster);
        for app in ["app-blog", "app-postfix"] {
            let data = made(&scene, app).await.unwrap();
            assert_eq!(data["cluster"], "blue", "{app}");
        }
        // The way in comes from the other module alone, and is seen by nobody else.
        let token = scene.data("module-credentials").await["KUBE_TOKEN"].clone();
        let kubeconfig: Value =
            serde_json::from_str(&scene.data("cluster-outputs").await["kubeconfig"]).unwrap();
        assert_eq!(kubeconfig["token"], token);
        let apps = scene.api::<Terraform>().get("apps").await.unwrap();
        assert!(apps.spec.runner.is_none());
        let all = scene.all_that_can_be_read().await;
        assert!(!all.contains(&token));

        change(&scene, "cluster", json!({"variables": {"name": "green"}})).await;
        let because = trigger(&scene, "apps", 2).await;
        assert_eq!(because, "input Terraform cluster");
        let data = made(&scene, "app-blog").await.unwrap();
        assert_eq!(data["cluster"], "green");

        let how = DeleteParams::foreground();
        let uid = scene.begin_to_delete("cluster", &how).await;
        scene
            .said("cluster", "apps depend on it and go first")
            .await;
        assert!(made(&scene, "app-blog").await.is_some());
        scene.delete("apps", &how).await;
        assert!(made(&scene, "app-blog").await.is_none());
        scene.deleted("cluster", &uid).await;
        assert!(made(&scene, "cluster").await.is_none());
        scene.nothing_left().await;
    })
    .await;
}
