//! Modules from which all configuration files or all objects are removed.

use alustan_tests::{Counter, scene};

use crate::approval::{approve, pending};

/// A folder without configuration files is an error and destroys nothing. A module without objects destroys all objects after approval.
#[tokio::test]
async fn empty_folder_destroys_nothing_empty_module_needs_approval() {
    scene("empty", |scene| async move {
        let counter = Counter::start().await;
        let module = counter.counted_object("a");
        scene.commit("web", &[("main.tf", &module)]).await;
        scene.apply(&scene.resource("web")).await;
        scene.ready("web").await;

        scene.commit("web", &[("README.md", "moved")]).await;
        let message = scene.reason("web", "NoConfiguration").await;
        assert!(message.contains("no configuration files"), "{message}");
        assert_eq!(counter.creations_and_destructions(), (1, 0));

        let empty = "output \"moved\" { value = true }";
        scene.commit("web", &[("main.tf", empty)]).await;
        let (plan, tf) = pending(&scene, "web", None).await;
        let status = tf.status.unwrap();
        assert_eq!(status.plan.unwrap().summary, "+0 ~0 -1");
        let because = status.message;
        assert!(because.contains("spec.approval.emptying"), "{because}");

        approve(&scene, "web", &plan).await;
        scene.ready("web").await;
    })
    .await;
}
