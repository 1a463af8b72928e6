use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::LOCATION;
use tower::ServiceExt as _;

use super::*;
use crate::fake_api;

const SECRET: &[u8] = b"a secret";
const PUSH: &str =
    r#"{"ref":"refs/heads/main","repository":{"clone_url":"https://git.test/a/b.git"}}"#;
const GITLAB: &str =
    r#"{"ref":"refs/heads/main","project":{"git_http_url":"https://git.test/a/b.git"}}"#;
const GENERIC: &str = r#"{"repository":"https://git.test/a/b"}"#;

/// Endpoint of a replica with a fake controller, which reports three affected resources for each push.
struct Endpoint {
    router: Router,
    folder: tempfile::TempDir,
    recorded_pushes: Arc<Mutex<Vec<Push>>>,
}

impl Endpoint {
    fn new() -> Self {
        Self::of(Leader::leading())
    }

    fn of(leader: Leader) -> Self {
        // Ignore the error: another test of this process may have installed the TLS provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("github"), SECRET).unwrap();
        let (pushes, mut receiver) = mpsc::channel::<PushRequest>(1);
        let recorded_pushes = Arc::<Mutex<Vec<Push>>>::default();
        let recorded = recorded_pushes.clone();
        tokio::spawn(async move {
            while let Some((push, reply)) = receiver.recv().await {
                recorded.lock().push(push);
                reply.send(3).unwrap();
            }
        });
        let hooks = WebhookEndpoints::new(Some(folder.path().to_owned()), pushes, leader);
        Self {
            router: router(hooks.unwrap()),
            folder,
            recorded_pushes,
        }
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn github(&self, secret: &[u8], event: &str, body: &str) -> (u16, Value) {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
        let tag = hex::encode(ring::hmac::sign(&key, body.as_bytes()));
        let tag = format!("sha256={tag}");
        let headers = [("x-hub-signature-256", &*tag), ("x-github-event", event)];
        self.post("/hooks/github", &headers, body).await
    }

    async fn signed(&self, path: &str, id: &str, at: i64, body: &str) -> (u16, Value) {
        let secret = SharedSecret::parse(SECRET).unwrap();
        let (signature, at) = (secret.sign(id, at, body.as_bytes()), at.to_string());
        let headers = [
            (standard_webhooks::ID, id),
            (standard_webhooks::TIMESTAMP, &at),
            (standard_webhooks::SIGNATURE, &signature),
        ];
        self.post(path, &headers, body).await
    }

    fn pushes(&self) -> usize {
        self.recorded_pushes.lock().len()
    }
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

#[tokio::test]
async fn push_is_accepted_once_and_counts_affected_resources() {
    let endpoint = Endpoint::new();
    let (status, body) = endpoint.github(SECRET, "push", PUSH).await;
    assert_eq!((status, &body["resources"]), (202, &json!(3)));
    let (status, body) = endpoint.github(SECRET, "push", PUSH).await;
    assert_eq!(status, 200);
    assert!(body["ignored"].as_str().unwrap().contains("duplicate"));
    assert_eq!(endpoint.pushes(), 1);
}

#[tokio::test]
async fn push_without_valid_signature_is_refused() {
    let endpoint = Endpoint::new();
    let unsigned: &[(&str, &str)] = &[];
    for (path, headers) in [
        ("/hooks/github", unsigned),
        ("/hooks/github", &[("x-hub-signature-256", "sha256=00")]),
        ("/hooks/github", &[("x-hub-signature-256", "a secret")]),
        ("/hooks/gitlab", unsigned),
        ("/hooks/gitlab", &[("x-gitlab-token", "guess")]),
        ("/hooks/generic", &[("x-gitlab-token", "a secret")]),
        ("/hooks/generic", &[("webhook-signature", "v1,AAAA")]),
    ] {
        let (status, body) = endpoint.post(path, headers, PUSH).await;
        assert_eq!(
            (status, &body["reason"]),
            (401, &json!("InvalidSignature")),
            "{path} {headers:?}"
        );
    }
    assert_eq!(endpoint.github(b"other", "push", PUSH).await.0, 401);
    assert_eq!(endpoint.pushes(), 0);
}

#[tokio::test]
async fn webhook_secrets_are_reread_without_restart() {
    let endpoint = Endpoint::new();
    assert_eq!(endpoint.github(b"next", "push", PUSH).await.0, 401);
    std::fs::write(endpoint.folder.path().join("next"), "next\n").unwrap();
    assert_eq!(endpoint.github(b"next", "push", PUSH).await.0, 202);
    std::fs::remove_file(endpoint.folder.path().join("github")).unwrap();
    assert_eq!(endpoint.github(SECRET, "push", PUSH).await.0, 401);
    std::fs::remove_file(endpoint.folder.path().join("next")).unwrap();
    let (status, body) = endpoint.github(b"next", "push", PUSH).await;
    assert_eq!((status, &body["reason"]), (503, &json!("HooksOff")));
}

#[tokio::test]
async fn gitlab_push_is_accepted_with_token_or_signature() {
    let body = r#"{"ref":"refs/heads/main","project":{"git_ssh_url":"git@git.test:a/b.git"}}"#;
    let endpoint = Endpoint::new();
    let headers = [
        ("x-gitlab-token", "a secret"),
        ("x-gitlab-event", "Push Hook"),
    ];
    assert_eq!(endpoint.post("/hooks/gitlab", &headers, body).await.0, 202);
    assert_eq!(
        endpoint.signed("/hooks/gitlab", "1", now(), body).await.0,
        202
    );
}

#[tokio::test]
async fn expired_message_is_refused_and_replay_is_ignored() {
    let endpoint = Endpoint::new();
    let at = now();
    assert_eq!(
        endpoint
            .signed("/hooks/generic", "1", at - 400, GENERIC)
            .await
            .0,
        401
    );
    assert_eq!(
        endpoint.signed("/hooks/generic", "1", at, GENERIC).await.0,
        202
    );
    assert_eq!(
        endpoint.signed("/hooks/generic", "1", at, GENERIC).await.0,
        200
    );
    assert_eq!(
        endpoint.signed("/hooks/generic", "2", at, GENERIC).await.0,
        202
    );
    assert_eq!(endpoint.pushes(), 2);
}

#[tokio::test]
async fn other_events_are_ignored_and_invalid_bodies_refused() {
    let endpoint = Endpoint::new();
    let (status, response) = endpoint.github(SECRET, "ping", r#"{"zen":"x"}"#).await;
    let ignored = json!("event ping is not a push");
    assert_eq!((status, &response["ignored"]), (200, &ignored));
    for body in ["", "{", "[]", r#"{"ref":1}"#] {
        let (status, response) = endpoint.github(SECRET, "push", body).await;
        assert_eq!(
            (status, &response["reason"]),
            (422, &json!("InvalidPush")),
            "{body}"
        );
    }
    let long = " ".repeat((5 << 20) + 1);
    let (status, response) = endpoint.github(SECRET, "push", &long).await;
    assert_eq!((status, &response["reason"]), (413, &json!("TooLarge")));
}

/// Returns a body that never ends.
fn endless() -> Body {
    Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>())
}

#[tokio::test(start_paused = true)]
async fn slow_requests_time_out_and_do_not_block_a_push() {
    let endpoint = Endpoint::new();
    let slow = (0..100).map(|_| {
        let request = Request::post("/hooks/github").body(endless()).unwrap();
        endpoint.router.clone().oneshot(request)
    });
    let (slow, fast) = tokio::join!(
        futures::future::join_all(slow),
        endpoint.github(SECRET, "push", PUSH)
    );
    assert!(
        slow.into_iter()
            .all(|result| result.unwrap().status() == 408)
    );
    assert_eq!(fast.0, 202);
}

#[tokio::test]
async fn form_encoded_push_is_refused() {
    let endpoint = Endpoint::new();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET);
    let tag = hex::encode(ring::hmac::sign(&key, b"payload=%7B%7D"));
    let headers = [
        ("x-hub-signature-256", &*format!("sha256={tag}")),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let (status, body) = endpoint
        .post("/hooks/github", &headers, "payload=%7B%7D")
        .await;
    assert_eq!((status, &body["reason"]), (415, &json!("UnsupportedType")));
}

#[tokio::test]
async fn remembered_messages_are_bounded() {
    let hooks = WebhookEndpoints::new(None, mpsc::channel(1).0, Leader::leading()).unwrap();
    for number in 0..=MAX_REMEMBERED {
        hooks.remember(number.to_be_bytes().to_vec());
    }
    assert!(hooks.is_duplicate(&MAX_REMEMBERED.to_be_bytes()));
    assert_eq!(hooks.accepted_at.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_forgotten_after_ten_minutes() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let hooks = WebhookEndpoints::new(None, mpsc::channel(1).0, Leader::leading()).unwrap();
    hooks.remember(b"a".to_vec());
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(hooks.is_duplicate(b"a"));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!hooks.is_duplicate(b"a"));
    assert!(hooks.accepted_at.lock().is_empty());
}

#[tokio::test]
async fn push_is_refused_if_no_secrets_are_configured() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let hooks = WebhookEndpoints::new(None, mpsc::channel(1).0, Leader::leading()).unwrap();
    let request = Request::post("/hooks/github").body(Body::empty()).unwrap();
    let response = router(hooks).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn push_is_not_delivered_before_the_controller_starts() {
    let (pushes, receiver) = mpsc::channel::<PushRequest>(1);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let hooks = WebhookEndpoints::new(None, pushes, Leader::leading()).unwrap();
    let push = payload::parse(Sender::Generic, GENERIC.as_bytes()).unwrap();
    assert_eq!(deliver(&hooks, push.clone()).await, None);
    drop(receiver);
    assert_eq!(deliver(&hooks, push).await, None);
}

/// Returns the endpoints of two replicas: the leader, and a standby replica, which forwards to the leader.
async fn two_replicas() -> (Endpoint, Endpoint) {
    let leads = Endpoint::new();
    let stands_by = standby_of(leads.router.clone()).await;
    (leads, stands_by)
}

/// Returns the endpoint of a standby replica. `leader` responds to the requests that the replica forwards.
async fn standby_of(leader: Router) -> Endpoint {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, leader).await });
    Endpoint::of(Leader::following(Some(address)))
}

#[tokio::test]
async fn standby_replica_forwards_push_to_the_leader() {
    let (leads, stands_by) = two_replicas().await;
    let (status, body) = stands_by.github(SECRET, "push", PUSH).await;
    assert_eq!((status, &body["resources"]), (202, &json!(3)));
    let (status, _) = stands_by.signed("/hooks/gitlab", "1", now(), GITLAB).await;
    assert_eq!(status, 202);
    assert_eq!((leads.pushes(), stands_by.pushes()), (2, 0));
    // The leader recognizes the repeated message even if the standby replica receives and forwards it.
    for endpoint in [&stands_by, &leads] {
        let (status, body) = endpoint.github(SECRET, "push", PUSH).await;
        assert_eq!(status, 200, "{body}");
    }
    let (status, body) = stands_by.github(b"other", "push", PUSH).await;
    assert_eq!((status, &body["reason"]), (401, &json!("InvalidSignature")));
    assert_eq!(leads.pushes(), 2);
}

#[tokio::test]
async fn push_without_reachable_leader_returns_not_leader() {
    let nowhere = "127.0.0.1:1".parse().unwrap();
    for (leader, cause) in [
        (
            Leader::following(None),
            "no replica of the operator is the leader",
        ),
        (
            Leader::following(Some(nowhere)),
            "failed to forward the request",
        ),
    ] {
        let (status, body) = Endpoint::of(leader).github(SECRET, "push", PUSH).await;
        assert_eq!((status, &body["reason"]), (503, &json!(NOT_LEADER)));
        assert!(body["message"].as_str().unwrap().contains(cause), "{body}");
    }
}

#[tokio::test]
async fn forwarded_push_follows_no_redirect() {
    let (elsewhere, requests) = fake_api::address(|_| (202, json!({}))).await;
    let redirect = move || {
        let to = [(LOCATION, elsewhere.clone())];
        async move { (StatusCode::TEMPORARY_REDIRECT, to, "{}") }
    };
    let stands_by = standby_of(Router::new().fallback(redirect)).await;
    let (status, _) = stands_by.github(SECRET, "push", PUSH).await;
    assert_eq!(status, 307);
    assert!(requests.lock().is_empty());
}

#[tokio::test]
async fn endless_response_of_the_leader_is_not_read() {
    let endless = || async {
        let chunk = || Ok::<_, std::io::Error>(vec![b' '; 4096]);
        Body::from_stream(futures::stream::repeat_with(chunk))
    };
    let stands_by = standby_of(Router::new().fallback(endless)).await;
    let (status, body) = stands_by.github(SECRET, "push", PUSH).await;
    assert_eq!((status, &body["reason"]), (503, &json!(NOT_LEADER)));
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("64 KiB"), "{body}");
}

#[tokio::test]
async fn push_is_forwarded_only_once() {
    let (_leads, stands_by) = two_replicas().await;
    let headers = [("x-gitlab-token", "a secret"), (FORWARDED_MARKER, "once")];
    let (status, body) = stands_by.post("/hooks/gitlab", &headers, GITLAB).await;
    assert_eq!((status, &body["reason"]), (503, &json!(NOT_LEADER)));
}
