use kube::runtime::watcher;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{sleep, timeout};

use super::*;
use crate::fake_api::{self, RequestLog};
use crate::indexed_store::{IndexedWriter, indexed_store};
use crate::resource::Guarded;

struct Scene {
    notifier: Arc<Notifier>,
    resources: IndexedWriter<Guarded>,
    woken: UnboundedReceiver<Ref>,
    /// Requests that the fake API server received.
    api: RequestLog,
}

/// Creates a notifier in a cluster in which each Secret has a key `secret`.
async fn scene() -> Scene {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (kube, api) = fake_api::serve(|request| match &*request.method {
        "GET" => {
            let secret = json!({"metadata": {"name": "key"}, "data": {"secret": "a2V5"}});
            (200, secret)
        }
        _ => (201, request.body.clone()),
    })
    .await;
    let (resources, writer) = indexed_store();
    let (wake, woken) = mpsc::unbounded_channel();
    let notifier = Notifier::new(NotifierParts {
        kube,
        instance: "test".to_owned(),
        receivers: None,
        ca_pem: None,
        page_url: Some("https://page.test".parse().unwrap()),
        resources,
        wake,
    });
    Scene {
        notifier: notifier.unwrap(),
        resources: writer,
        woken,
        api,
    }
}

/// Returns the resource `team/web` with receivers `notifications`.
fn web(notifications: &Value) -> Terraform {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {"name": "web", "namespace": "team", "uid": "u"},
        "spec": {
            "gitRepo": {"url": "https://git.test/team/infra"},
            "containerRegistry": {"imageName": "registry.test/team/web"},
            "notifications": notifications,
        },
    }))
    .unwrap()
}

fn web_ref() -> Ref {
    Ref::new("web").within("team")
}

/// Returns a status with a failure for `reason`.
fn failed(reason: &str) -> TerraformStatus {
    serde_json::from_value(json!({
        "state": "Failed", "message": "no",
        "conditions": [{
            "type": "Ready", "status": "False", "reason": reason, "message": "no",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }))
    .unwrap()
}

impl Scene {
    /// Changes the receivers of the resource to `notifications`.
    fn with(&mut self, notifications: &Value) -> Terraform {
        let tf = web(notifications);
        let event = watcher::Event::Apply(Guarded(Ok(tf.clone())));
        self.resources.apply(event);
        tf
    }

    /// Waits until no message is due. Returns the number of delivered messages.
    async fn settled(&mut self) -> usize {
        let wait = async {
            while !self.notifier.notices(&web_ref(), None).due.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(10), wait).await.unwrap();
        let delivered = self.notifier.notices(&web_ref(), None).finished;
        delivered.values().map(Vec::len).sum()
    }

    fn warnings(&self) -> usize {
        let requests = self.api.lock();
        let events = requests
            .iter()
            .filter(|request| request.uri.contains("/events"));
        events.count()
    }

    /// Waits until `warnings` warning events are created. Returns the bodies of all requests to the API server.
    async fn warned(&self, warnings: usize) -> String {
        let wait = async {
            while self.warnings() < warnings {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(10), wait).await.unwrap();
        let requests = self.api.lock();
        requests
            .iter()
            .map(|request| request.body.to_string())
            .collect()
    }
}

async fn receiver(status: u16) -> (Value, RequestLog) {
    let (url, log) = fake_api::address(move |_| (status, json!({}))).await;
    (json!([{"url": url}]), log)
}

async fn wait_for_request(log: &RequestLog) {
    let wait = async {
        while log.lock().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), wait).await.unwrap();
}

#[tokio::test]
async fn each_event_is_sent_once_and_requeues_the_resource() {
    let mut scene = scene().await;
    let (notifications, log) = receiver(200).await;
    let tf = scene.with(&notifications);
    for reason in ["a", "b", "a", "b", "a"] {
        scene.notifier.notify(&web_ref(), &tf, &failed(reason));
        scene.settled().await;
    }
    assert_eq!(log.lock().len(), 2);
    let mut woken = 0;
    while scene.woken.try_recv().is_ok() {
        woken += 1;
    }
    assert_eq!(woken, 4, "twice that it is due, twice that it arrived");
}

#[tokio::test]
async fn notice_left_by_another_process_is_sent() {
    let mut scene = scene().await;
    let (notifications, log) = receiver(200).await;
    let tf = scene.with(&notifications);
    let mut recorded = Notices::default();
    recorded.due.push(Notice {
        event: NotificationEvent::Succeeded,
        id: "left".to_owned(),
        since: Timestamp::now(),
        message: json!({"id": "left"}),
    });
    scene.notifier.notices(&web_ref(), Some(&recorded));
    scene
        .notifier
        .notify(&web_ref(), &tf, &TerraformStatus::default());
    assert_eq!(scene.settled().await, 1);
    assert_eq!(log.lock()[0].body, recorded.due[0].message);
}

#[tokio::test]
async fn message_goes_to_corrected_address_and_not_to_removed_one() {
    let mut scene = scene().await;
    let ((wrong, refused), (right, accepted)) = (receiver(503).await, receiver(200).await);
    let tf = scene.with(&wrong);
    scene.notifier.notify(&web_ref(), &tf, &failed("a"));
    wait_for_request(&refused).await;
    scene.with(&right);
    assert_eq!(scene.settled().await, 1);
    assert_eq!((refused.lock().len(), accepted.lock().len()), (1, 1));
    assert_eq!(scene.warnings(), 1);

    scene.with(&wrong);
    scene.notifier.notify(&web_ref(), &tf, &failed("b"));
    scene.with(&json!([]));
    assert_eq!(scene.settled().await, 2);
    assert!(refused.lock().len() <= 2);
}

/// Starts a receiver that redirects to `elsewhere`, with a response body. Returns `spec.notifications` for this receiver.
async fn redirect_to(elsewhere: &str) -> Value {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}\r\ncontent-length: 7\r\nconnection: close\r\n\r\ninside!"
    );
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            assert!(caller.read(&mut [0; 4096]).await.unwrap() > 0);
            caller.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    json!([{"url": url}])
}

#[tokio::test]
async fn redirect_is_not_followed_and_its_body_not_reported() {
    let mut scene = scene().await;
    let (elsewhere, log) = receiver(200).await;
    let notifications = redirect_to(elsewhere[0]["url"].as_str().unwrap()).await;
    let tf = scene.with(&notifications);
    scene.notifier.notify(&web_ref(), &tf, &failed("a"));
    let bodies = scene.warned(1).await;
    assert!(log.lock().is_empty(), "redirects are not followed");
    assert!(
        bodies.contains("307") && !bodies.contains("inside!"),
        "{bodies}"
    );
}

#[tokio::test]
async fn warning_hides_path_and_query_of_an_address() {
    let mut scene = scene().await;
    let (refuses, _log) = fake_api::address(|_| (503, json!({}))).await;
    let origins = [&*refuses, "http://127.0.0.1:1"];
    let notifications =
        origins.map(|origin| json!({"url": format!("{origin}/s3cret?token=s3cret")}));
    let tf = scene.with(&json!(notifications));
    scene.notifier.notify(&web_ref(), &tf, &failed("a"));
    let bodies = scene.warned(origins.len()).await;
    for origin in origins {
        assert!(bodies.contains(origin), "{bodies}");
    }
    assert!(!bodies.contains("s3cret"), "{bodies}");
}

#[tokio::test]
async fn message_is_signed_at_the_time_of_delivery() {
    let mut scene = scene().await;
    let (mut notifications, log) = receiver(200).await;
    notifications[0]["secretRef"] = json!({"name": "key"});
    let tf = scene.with(&notifications);
    let permits =
        join_all((0..MAX_CONCURRENT_REQUESTS).map(|_| scene.notifier.queues.take("team"))).await;
    let began = Timestamp::now();
    scene.notifier.notify(&web_ref(), &tf, &failed("a"));
    sleep(Duration::from_millis(1_200)).await;
    assert!(log.lock().is_empty());
    drop(permits);
    scene.settled().await;
    let headers = log.lock()[0].headers.clone();
    let at = headers[standard_webhooks::TIMESTAMP]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(began.as_second() < at, "{at}");
    let header = |name| headers[name].to_str().unwrap();
    let body = &log.lock()[0].body;
    let secret = SharedSecret::parse(b"key").unwrap();
    let (id, body) = (header(standard_webhooks::ID), body.to_string());
    assert!(secret.has_valid_signature(
        header(standard_webhooks::SIGNATURE),
        id,
        at,
        body.as_bytes()
    ));
}

#[tokio::test]
async fn message_contains_the_link_to_the_page() {
    let mut scene = scene().await;
    let (notifications, log) = receiver(200).await;
    let tf = scene.with(&notifications);
    scene.notifier.notify(&web_ref(), &tf, &failed("a"));
    scene.settled().await;
    let url = &log.lock()[0].body["data"]["url"];
    assert_eq!(url, "https://page.test/ns/team/tf/web");
}

#[tokio::test]
async fn slow_receiver_does_not_delay_others() {
    let queues = Queues::default();
    let taken = join_all((0..MAX_CONCURRENT_REQUESTS).map(|_| queues.take("team"))).await;
    let soon = Duration::from_millis(50);
    assert!(timeout(soon, queues.take("team")).await.is_err());
    for other in ["other", "https://events.test/"] {
        assert!(timeout(soon, queues.take(other)).await.is_ok(), "{other}");
    }
    drop(taken);
    assert!(timeout(soon, queues.take("team")).await.is_ok());
    assert!(queues.0.lock().len() <= 3, "who is done is forgotten");
}

#[test]
fn message_with_unusable_secret_is_not_sent_unsigned() {
    let secret = json!({"name": "key"});
    let notification_of = |notification: &Value| {
        serde_json::from_value::<Notification>(notification.clone()).unwrap()
    };
    let with_url = notification_of(&json!({"url": "https://a.test", "secretRef": secret}));
    let without_url = notification_of(&json!({"secretRef": secret}));
    let (url, key) = (("url", "https://b.test\n"), ("secret", "whsec_AAAA"));
    for (notification, data, wanted) in [
        (&with_url, vec![key], Ok(("https://a.test", true))),
        (&with_url, vec![key, url], Ok(("https://b.test", true))),
        (&with_url, vec![], Err("no key secret")),
        (&with_url, vec![url], Err("no key secret")),
        (
            &with_url,
            vec![("secret", " ")],
            Err("secret of Secret key is empty"),
        ),
        (&with_url, vec![("secret", "whsec_?")], Err("not base64")),
        (&without_url, vec![url], Ok(("https://b.test", false))),
        (&without_url, vec![key, url], Ok(("https://b.test", true))),
        (&without_url, vec![key], Err("no key url")),
        (&without_url, vec![url, ("secret", "")], Err("is empty")),
    ] {
        let bytes = |(name, text): &(&str, &str)| {
            ((*name).to_owned(), ByteString(text.as_bytes().to_vec()))
        };
        let result = url_and_secret(notification, "key", &data.iter().map(bytes).collect());
        match (result, wanted) {
            (Ok((url, secret)), Ok(wanted)) => assert_eq!((&*url, secret.is_some()), wanted),
            (Err(error), Err(cause)) => assert!(error.contains(cause), "{error}"),
            (Ok(_), Err(cause)) => panic!("{data:?} is sent, although: {cause}"),
            (Err(error), Ok(_)) => panic!("{data:?}: {error}"),
        }
    }
}
