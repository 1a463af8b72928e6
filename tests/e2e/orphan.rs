//! Orphaned objects of a resource, and their adoption.

use alustan_tests::{Scene, scene};
use kube::api::DeleteParams;
use serde_json::json;

const WHAT: &str = "secrets,persistentvolumeclaims";

/// Returns the names of the orphaned objects.
async fn left(scene: &Scene) -> String {
    let namespace = scene.namespace.as_str();
    let marked = [
        "get",
        WHAT,
        "-n",
        namespace,
        "-o",
        "name",
        "-l",
        "alustan.io/orphaned",
    ];
    scene.kubectl(&marked).await
}

#[tokio::test]
async fn orphan_state_is_adopted_by_the_next_resource_of_the_name() {
    scene("orphan", |scene| async move {
        let counter = scene.commit_counted_object("web").await;
        let mut volume = scene.resource_of("volume", "web");
        volume["spec"]["backend"] = json!({"provider": "local"});
        let resources = [scene.resource("web"), volume];
        for resource in &resources {
            let mut orphan = resource.clone();
            orphan["spec"]["deletionPolicy"] = json!("Orphan");
            scene.apply(&orphan).await;
        }
        for name in ["web", "volume"] {
            scene.ready(name).await;
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        let marked = left(&scene).await;
        let of_web = marked.contains("secret/web-state\n");
        assert!(of_web && marked.contains("/volume-cache\n"), "{marked}");

        for resource in &resources {
            scene.apply(resource).await;
        }
        for (name, object) in [
            ("web", "Secret web-state"),
            ("volume", "PersistentVolumeClaim volume-cache"),
        ] {
            let message = scene.reason(name, "OrphanedState").await;
            let adopt = format!(
                "kubectl patch tf {name} -n {} --type merge -p '{{\"spec\":{{\"backend\":{{\"adopt\":true}}}}}}'",
                scene.namespace
            );
            assert!(message.contains(object) && message.contains(&adopt), "{message}");
            assert!(!message.contains("remove"), "{message}");
            // Runs the command that the message of `Ready` suggests.
            scene.cluster.run("bash", &["-c", &adopt]).await;
            let runs = scene.ready(name).await.status.unwrap().runs;
            let results: Vec<_> = runs.iter().map(|run| run.result.as_str()).collect();
            assert_eq!(results, ["NoChanges"], "{name}");
        }
        assert_eq!((counter.creations_and_destructions(), left(&scene).await.as_str()), ((2, 0), ""));
        for name in ["web", "volume"] {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        assert_eq!(counter.creations_and_destructions(), (2, 2));
    })
    .await;
}
