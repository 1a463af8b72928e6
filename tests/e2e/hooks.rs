//! A push that a git server tells of is applied at once.

use alustan_tests::{Scene, condition, scene};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// As docs/hooks.md shows it.
const SENDER: &str = r#"set -eu
id=$(openssl rand -hex 16) at=$(date +%s)
signature=$(printf '%s.%s.%s' "$id" "$at" "$BODY" | openssl dgst -sha256 -hmac "$SECRET" -binary | base64)
hack/cluster/in curl -sS -d "$BODY" -H "webhook-id: $id" -H "webhook-timestamp: $at" -H "webhook-signature: v1,$signature" \
  "http://$HOST/hooks/generic""#;

const SYSTEM: &str = "alustan-system";

/// What the operator answers to a push of which somebody tells it who knows `secret`.
async fn push(scene: &Scene, secret: &str, body: &Value) -> Value {
    let service = ["get", "service", "alustan-controller", "-n", SYSTEM];
    let host = scene
        .kubectl(&[&service[..], &["-o", "jsonpath={.spec.clusterIP}"]].concat())
        .await;
    let arguments = [
        format!("HOST={host}"),
        format!("SECRET={secret}"),
        format!("BODY={body}"),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["bash", "-c", SENDER]);
    let answer = scene.cluster.run("env", &arguments).await;
    serde_json::from_str(&answer).unwrap()
}

async fn secret(scene: &Scene) -> String {
    let path = "jsonpath={.data.dev}";
    let get = ["get", "secret", "alustan-hooks", "-n", SYSTEM, "-o", path];
    let encoded = scene.kubectl(&get).await;
    let ByteString(secret) = serde_json::from_value(json!(encoded.trim())).unwrap();
    String::from_utf8(secret).unwrap()
}

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
        let first = scene.commit("web", &[("main.tf", &module("b"))]).await;
        let other = scene.commit("other", &[("main.tf", &module("b"))]).await;
        let told = json!({"repository": url, "ref": "refs/heads/elsewhere"});
        let secret = secret(&scene).await;
        assert_eq!(
            push(&scene, "a guess", &told).await["reason"],
            "InvalidSignature"
        );
        assert_eq!(push(&scene, &secret, &told).await, json!({"resources": 0}));
        let told = json!({"repository": url, "ref": "refs/heads/main"});
        assert_eq!(push(&scene, &secret, &told).await, json!({"resources": 1}));
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
