//! Others are told what happens.

use std::collections::BTreeSet;
use std::process::Stdio;

use alustan_tests::{Cluster, Inbox, Message, Scene, scene};
use kube::api::DeleteParams;
use serde_json::json;
use tokio::process::Command;

/// In base64: "what both sides know".
const SECRET: &str = "whsec_d2hhdCBib3RoIHNpZGVzIGtub3c=";

/// Checks a signature as a receiver would, by another implementation.
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

/// The events that came so far, each once.
fn events(inbox: &Inbox) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let messages = inbox.messages();
    let new = messages
        .iter()
        .filter(|it| it.taken && seen.insert(it.json()["id"].clone().to_string()));
    new.map(|it| it.json()["data"]["event"].as_str().unwrap().to_owned())
        .collect()
}

async fn heard(scene: &Scene, inbox: &Inbox, expected: &[&str]) {
    let what = format!("{expected:?} to be told");
    scene
        .until(&what, async || (events(inbox) == expected).then_some(()))
        .await;
}

#[tokio::test]
async fn notify_tells_each_event_at_least_once_signed_and_the_last_word_too() {
    scene("notify", |scene| async move {
        // The first two tries of the first message are refused.
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
        scene
            .commit(
                "web",
                &[(
                    "main.tf",
                    "variable \"v\" {}\noutput \"v\" { value = var.v }\n",
                )],
            )
            .await;
        let mut web = scene.resource("web");
        web["spec"]["variables"] = json!({"v": "a"});
        web["spec"]["notifications"] = json!([{"secretRef": {"name": "inbox"}}]);
        web["spec"]["retry"] = json!({"limit": 1});
        scene.apply(&web).await;
        heard(&scene, &inbox, &["Succeeded"]).await;
        assert_eq!(inbox.messages().len(), 3, "two tries were refused");
        scene.event("web", "NotificationFailed").await;

        web["spec"]["approval"] = json!({"mode": "Manual"});
        web["spec"]["variables"]["v"] = json!("b");
        scene.apply(&web).await;
        heard(&scene, &inbox, &["Succeeded", "ApprovalNeeded"]).await;
        web["spec"]["approval"] = json!({"mode": "Auto"});
        scene.apply(&web).await;
        heard(
            &scene,
            &inbox,
            &["Succeeded", "ApprovalNeeded", "Succeeded"],
        )
        .await;

        scene.delete("web", &DeleteParams::foreground()).await;
        heard(
            &scene,
            &inbox,
            &["Succeeded", "ApprovalNeeded", "Succeeded", "Destroyed"],
        )
        .await;
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

#[tokio::test]
async fn notify_tells_what_the_api_server_refuses_and_goes_where_the_mended_address_is() {
    scene("refused", |scene| async move {
        let inbox = Inbox::start(0).await;
        let quota = ["create", "quota", "none", "--hard=count/jobs.batch=0"];
        scene.kubectl(&quota).await;
        scene
            .commit("web", &[("main.tf", "output \"a\" { value = 1 }\n")])
            .await;
        let mut web = scene.resource("web");
        // Nobody listens there.
        web["spec"]["notifications"] =
            json!([{"url": "http://10.99.1.1:1/", "events": ["Failed"]}]);
        scene.apply(&web).await;
        scene.event("web", "NotificationFailed").await;
        let url = format!("http://{}/", inbox.address);
        web["spec"]["notifications"][0]["url"] = json!(url);
        scene.apply(&web).await;
        // The message that waited, and the one about the edited resource, which fails the same way.
        heard(&scene, &inbox, &["Failed", "Failed"]).await;
        for message in inbox.messages() {
            assert_eq!(
                message.json()["data"]["reason"],
                "QuotaRefused",
                "{message:?}"
            );
        }
        scene.kubectl(&["delete", "quota", "none"]).await;
        scene.ready("web").await;
    })
    .await;
}

#[tokio::test]
async fn notify_reaches_slack_by_the_relay_of_the_docs() {
    scene("slack", |scene| async move {
        let slack = Inbox::start(0).await;
        let port = "18474";
        let _relay = Command::new("python3")
            .arg(Cluster::root().join("deploy/notifications/slack/relay.py"))
            .env("SLACK_URL", format!("http://{}/", slack.address))
            .env("SECRET", SECRET)
            .env("PORT", port)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("python3");
        let host = slack.address.split(':').next().unwrap();
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
        let url = format!("http://{host}:{port}/");
        web["spec"]["notifications"] = json!([
            {"url": url, "secretRef": {"name": "slack-relay"}},
            {"url": url, "secretRef": {"name": "wrong"}},
        ]);
        scene.apply(&web).await;
        scene
            .until("a message in Slack", async || {
                (slack.messages().len() == 1).then_some(())
            })
            .await;
        let text = slack.messages()[0].json()["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            text.contains("Succeeded") && text.contains("/web"),
            "{text}"
        );
        scene.event("web", "NotificationFailed").await;
    })
    .await;
}
