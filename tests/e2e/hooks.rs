//! A push that a git server tells of is applied at once.

use alustan_tests::{condition, scene};
use serde_json::json;

#[tokio::test]
async fn hooks_a_push_is_applied_at_once_by_who_follows_it_and_by_nobody_else() {
    scene("hooks", |scene| async move {
        let module = |text: &str| format!("output \"text\" {{ value = \"{text}\" }}\n");
        for name in ["web", "other"] {
            scene.commit(name, &[("main.tf", &module("a"))]).await;
            let mut resource = scene.resource(name);
            resource["spec"]["gitRepo"]["interval"] = json!("12h");
            scene.apply(&resource).await;
        }
        let url = scene.resource("web")["spec"]["gitRepo"]["url"].clone();
        for name in ["web", "other"] {
            scene.ready(name).await;
        }
        let first = scene
            .commit_unnoticed("web", &[("main.tf", &module("b"))])
            .await;
        let other = scene
            .commit_unnoticed("other", &[("main.tf", &module("b"))])
            .await;
        let told = json!({"repository": url, "ref": "refs/heads/elsewhere"});
        let server = scene.git_server().await;
        assert_eq!(
            server.signs("whsec_YSBndWVzcw==", &told).await["reason"],
            "InvalidSignature"
        );
        assert_eq!(server.tells(&told).await, json!({"resources": 0}));
        let told = json!({"repository": url, "ref": "refs/heads/main"});
        assert_eq!(server.tells(&told).await, json!({"resources": 1}));
        let tf = scene.ready_after_run("web", 2).await;
        let revision = tf.status.as_ref().unwrap().source.as_ref().unwrap();
        assert_eq!(revision.revision, first);
        // Nobody told of the other one.
        let tf = scene.ready("other").await;
        let status = tf.status.as_ref().unwrap();
        assert_ne!(status.source.as_ref().unwrap().revision, other);
        assert_eq!(condition(&tf, "Ready").unwrap().status, "True");
        assert_eq!(status.run, Some(1));
    })
    .await;
}
