//! The shortest and the longest names, and names that begin alike.

use alustan_tests::scene;
use kube::api::DeleteParams;
use serde_json::json;

#[tokio::test]
async fn names_of_one_and_fifty_characters_and_names_that_begin_alike_get_along() {
    scene("names", |scene| async move {
        scene
            .commit(
                "any",
                &[(
                    "main.tf",
                    "variable \"v\" {}\noutput \"v\" { value = var.v }",
                )],
            )
            .await;
        let long = "n".repeat(50);
        let names = ["a", "web", "web-2", long.as_str()];
        for name in names {
            let mut resource = scene.resource_of(name, "any");
            resource["spec"]["variables"] = json!({"v": name});
            scene.apply(&resource).await;
        }
        for name in names {
            scene.ready(name).await;
            assert_eq!(scene.data(&format!("{name}-outputs")).await["v"], name);
        }
        // Deleting one takes nothing from another whose name begins with it.
        scene.delete("web", &DeleteParams::foreground()).await;
        scene
            .annotate("web-2", "alustan.io/reconcile-at", "now")
            .await;
        scene.ready_after_run("web-2", 2).await;
        assert_eq!(scene.data("web-2-outputs").await["v"], "web-2");
        for name in ["a", "web-2", long.as_str()] {
            scene.delete(name, &DeleteParams::foreground()).await;
        }
        scene.nothing_left().await;
    })
    .await;
}
