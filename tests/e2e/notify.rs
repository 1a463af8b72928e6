//! Delivery of notifications.

use std::collections::BTreeSet;
use std::process::Stdio;

use alustan_tests::{Cluster, Inbox, Message, Scene, scene};
use kube::api::DeleteParams;
use serde_json::json;
use tokio::process::{Child, Command};

/// Signing secret: "what both sides know" in base64.
const SECRET: &str = "whsec_d2hhdCBib3RoIHNpZGVzIGtub3c=";

/// Computes the signature of a message with openssl, independently of the operator's code.
const CHECK: &str = r#"key=$(printf %s "${SECRET#whsec_}" | base64 -d)
printf '%s.%s.%s' "$ID" "$AT" "$BODY" | openssl dgst -sha256 -hmac "$key" -binary | base64"#;

async fn is_signed(scene: &Scene, message: &Message) {
    let arguments = [
        format!("ID={}", message.header("webhook-id")),
        format!("AT={}", message.header("webhook-timestamp")),
        format!("BODY={}", message.body),
        format!("SECRET={SECRET}"),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["bash", "-c", CHECK]);
    let expected = scene.cluster.run("env", &arguments).await;
    let given = message.header("webhook-signature");
    assert_eq!(given, format!("v1,{}", expected.trim()), "{message:?}");
}

/// Returns the accepted events without repetitions.
fn events(inbox: &Inbox) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let messages = inbox.messages();
    messages
        .iter()
        .filter(|request| request.accepted && seen.insert(request.json()["id"].clone().to_string()))
        .map(|request| request.json()["data"]["event"].as_str().unwrap().to_owned())
        .collect()
}

async fn wait_for_events(scene: &Scene, inbox: &Inbox, expected: &[&str]) {
    let description = format!("{expected:?} to be told");
    scene
        .until(&description, async || {
            (events(inbox) == expected).then_some(())
        })
        .await;
}

/// Starts the relay of `deploy/notifications/slack`. Returns its address.
fn relay_to(slack: &Inbox) -> (Child, String) {
    let port = "18474";
    let relay = Command::new("python3")
        .arg(Cluster::root().join("deploy/notifications/slack/relay.py"))
        .env("SLACK_URL", format!("http://{}/", slack.address))
        .env("SECRET", SECRET)
        .env("PORT", port)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (host, _) = slack.address.rsplit_once(':').unwrap();
    (relay, format!("http://{host}:{port}/"))
}

#[tokio::test]
async fn notifications_are_signed_and_repeated_until_accepted() {
    scene("notify", |scene| async move {
        // The receiver refuses the first two attempts to deliver the first message.
        let inbox = Inbox::start(2).await;
        scene
            .secret(
                "inbox",
                "Opaque",
                &[
                    ("secret", SECRET),
                    ("url", &format!("http://{}/", inbox.address)),
                ],
            )
            .await;
        let slack = Inbox::start(0).await;
        let (_relay, url) = relay_to(&slack);
        scene
            .secret("slack-relay", "Opaque", &[("secret", SECRET)])
            .await;
        scene
            .secret("wrong", "Opaque", &[("secret", "whsec_YSBndWVzcw==")])
            .await;
        scene
            .commit("web", &[("main.tf", "output \"a\" { value = 1 }\n")])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["notifications"] = json!([
            {"secretRef": {"name": "inbox"}},
            {"url": url, "secretRef": {"name": "slack-relay"}},
            {"url": url, "secretRef": {"name": "wrong"}},
        ]);
        scene.apply(&web).await;
        wait_for_events(&scene, &inbox, &["Succeeded"]).await;
        assert_eq!(inbox.messages().len(), 3, "two tries were refused");
        scene.event("web", "NotificationFailed").await;
        scene
            .until("a message in Slack", async || {
                (slack.messages().len() == 1).then_some(())
            })
            .await;
        let message = slack.messages()[0].json();
        let text = message["text"].as_str().unwrap();
        assert!(
            text.contains("Succeeded") && text.contains("/web"),
            "{text}"
        );

        // Slack got one message: the relay refused the message with the wrong signature.
        web["spec"]["notifications"] = json!([{"secretRef": {"name": "inbox"}}]);
        scene.apply(&web).await;
        scene.delete("web", &DeleteParams::foreground()).await;
        wait_for_events(&scene, &inbox, &["Succeeded", "Destroyed"]).await;
        assert_eq!(slack.messages().len(), 1);
        for message in inbox.messages() {
            is_signed(&scene, &message).await;
            assert_eq!(
                message.header("content-type"),
                "application/cloudevents+json"
            );
            assert_eq!(message.header("webhook-id"), message.json()["id"]);
        }
    })
    .await;
}
