use std::collections::BTreeSet;

use axum::body::to_bytes;
use axum::http::Request as HttpRequest;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;

/// Requests of both versions of the hook, as metacontroller serializes them.
const V1: &str = include_str!("v1.json");
const V2: &str = include_str!("v2.json");

/// Requests that reached the reconciler.
type HookRequestLog = Arc<Mutex<Vec<HookRequest>>>;

/// Returns a [`SyncEndpoint`] whose reconciler returns `answer`, and the requests that reach this reconciler.
fn endpoint(answer: Result<HookResponse, Refusal>) -> (SyncEndpoint, HookRequestLog) {
    let requests = HookRequestLog::default();
    let recorded = requests.clone();
    let reconcile = move |request: HookRequest| -> ReconcileFuture {
        recorded.lock().push(request);
        let answer = answer.clone();
        Box::pin(async move { answer })
    };
    let endpoint = SyncEndpoint {
        budget: BodyBudget::default(),
        driver: Driver::Metacontroller,
        tokens: None,
        reconcile: Arc::new(reconcile),
    };
    (endpoint, requests)
}

fn ready() -> HookResponse {
    HookResponse {
        status: json!({"state": "Success", "observedGeneration": 3}),
        resync_after_seconds: 30,
        finalized: false,
    }
}

fn post_of(body: impl Into<Body>) -> HttpRequest<Body> {
    let request = HttpRequest::post("/sync").header(CONTENT_TYPE, "application/json");
    request.body(body.into()).unwrap()
}

fn with(mut request: HttpRequest<Body>, name: HeaderName, value: &str) -> HttpRequest<Body> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

async fn call(
    endpoint: &SyncEndpoint,
    request: HttpRequest<Body>,
) -> (StatusCode, HeaderMap, String) {
    let response = router(endpoint.clone()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (parts.status, parts.headers, body)
}

/// Returns status and reason of a refusal.
async fn refusal(endpoint: &SyncEndpoint, request: HttpRequest<Body>) -> (u16, String) {
    let (status, headers, body) = call(endpoint, request).await;
    assert_eq!(headers[CONTENT_TYPE], "application/json");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert!(!body["message"].as_str().unwrap().contains("  "), "{body}");
    (status.as_u16(), body["reason"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn both_versions_of_the_hook_get_the_same_answer() {
    let (endpoint, requests) = endpoint(Ok(ready()));
    for body in [V1, V2] {
        let (status, _, body) = call(&endpoint, post_of(body)).await;
        assert_eq!(status, StatusCode::OK);
        let body: Value = serde_json::from_str(&body).unwrap();
        let answer = json!({
            "status": {"state": "Success", "observedGeneration": 3},
            "children": [], "resyncAfterSeconds": 30, "finalized": false,
        });
        assert_eq!(body, answer);
    }
    let requests = requests.lock();
    let names: Vec<_> = requests
        .iter()
        .map(|request| (&*request.namespace, &*request.name))
        .collect();
    assert_eq!(names, [("team", "web"), ("team", "web")]);
}

#[tokio::test]
async fn unchanged_response_returns_not_modified() {
    let (endpoint, requests) = endpoint(Ok(ready()));
    let (_, headers, _) = call(&endpoint, post_of(V2)).await;
    let tag = headers[ETAG].to_str().unwrap().to_owned();
    let (status, headers, body) = call(&endpoint, with(post_of(V2), IF_NONE_MATCH, &tag)).await;
    assert_eq!((status, &*body), (StatusCode::NOT_MODIFIED, ""));
    assert_eq!(headers[ETAG], tag);
    let (status, ..) = call(&endpoint, with(post_of(V2), IF_NONE_MATCH, "\"other\"")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(requests.lock().len(), 3, "each call is a look");
}

#[tokio::test]
async fn sync_without_valid_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let (endpoint, requests) = endpoint(Ok(ready()));
    let without_tokens = SyncEndpoint {
        tokens: Some(folder.path().join("nowhere")),
        ..endpoint.clone()
    };
    let unread = refusal(&without_tokens, post_of(V2)).await;
    assert_eq!(unread, (503, "NoTokens".to_owned()));

    let endpoint = SyncEndpoint {
        tokens: Some(folder.path().to_owned()),
        ..endpoint
    };
    write("token", "old-token\n");
    write("next", "new-token");
    write("..data", "not-a-token");
    // Dangling symbolic link, as the kubelet leaves it for a moment when a key is removed.
    std::os::unix::fs::symlink("..gone/removed", folder.path().join("removed")).unwrap();
    for right in ["Bearer old-token", "bearer new-token", "Bearer  new-token"] {
        let (status, ..) = call(&endpoint, with(post_of(V2), AUTHORIZATION, right)).await;
        assert_eq!(status, StatusCode::OK, "{right}");
    }
    let request_count = requests.lock().len();
    for wrong in [
        "Bearer ",
        "Bearer old",
        "Bearer old-token2",
        "Bearer not-a-token",
        "Basic old-token",
        "old-token",
        "",
    ] {
        let request = with(post_of("no JSON at all"), AUTHORIZATION, wrong);
        let refused = refusal(&endpoint, request).await;
        assert_eq!(refused, (401, "Unauthorized".to_owned()), "{wrong:?}");
    }
    let (_, headers, _) = call(&endpoint, post_of(V2)).await;
    assert_eq!(headers[WWW_AUTHENTICATE], "Bearer");

    std::fs::remove_file(folder.path().join("token")).unwrap();
    let late = with(post_of(V2), AUTHORIZATION, "Bearer old-token");
    let late = refusal(&endpoint, late).await.0;
    assert_eq!(late, 401, "a token that was taken away counts");
    write("next", " \n");
    let nothing = with(post_of(V2), AUTHORIZATION, "Bearer ");
    let nothing = refusal(&endpoint, nothing).await.0;
    assert_eq!(nothing, 401, "an empty file lets everybody in");
    assert_eq!(requests.lock().len(), request_count);
}

#[tokio::test]
async fn invalid_sync_request_is_refused_with_a_reason() {
    let (endpoint, requests) = endpoint(Ok(ready()));
    let text = with(post_of(V2), CONTENT_TYPE, "text/plain");
    assert_eq!(
        refusal(&endpoint, text).await,
        (415, "UnsupportedType".to_owned())
    );
    let mut no_type = post_of(V2);
    no_type.headers_mut().clear();
    assert_eq!(refusal(&endpoint, no_type).await.0, 415);
    let garbage = refusal(&endpoint, post_of("{\"parent\": ")).await;
    assert_eq!(garbage, (400, "InvalidRequest".to_owned()));
    let get = HttpRequest::get("/sync").body(Body::empty()).unwrap();
    assert_eq!(
        refusal(&endpoint, get).await,
        (405, "WrongMethod".to_owned())
    );
    let huge = vec![b' '; MAX_REQUEST_BYTES + 1];
    assert_eq!(
        refusal(&endpoint, post_of(huge)).await,
        (413, "TooLarge".to_owned())
    );
    let large = format!("{V2}{}", " ".repeat(MAX_REQUEST_BYTES - V2.len()));
    assert!(requests.lock().is_empty());
    assert_eq!(call(&endpoint, post_of(large)).await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn incomplete_sync_request_times_out() {
    let (endpoint, _) = endpoint(Ok(ready()));
    let stuck = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    assert_eq!(
        refusal(&endpoint, post_of(stuck)).await,
        (408, "TooSlow".to_owned())
    );
}

#[tokio::test]
async fn native_driver_refuses_sync_requests() {
    let (endpoint, requests) = endpoint(Ok(ready()));
    let endpoint = SyncEndpoint {
        driver: Driver::Native,
        ..endpoint
    };
    assert_eq!(
        refusal(&endpoint, post_of(V2)).await,
        (409, "WrongDriver".to_owned())
    );
    assert!(requests.lock().is_empty());
}

#[tokio::test]
async fn response_429_has_retry_after_in_seconds() {
    let (endpoint, _) = endpoint(Err(Refusal::new(
        429,
        "NotReady",
        "the operator is starting",
    )));
    let (status, headers, _) = call(&endpoint, post_of(V2)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    // Metacontroller accepts whole seconds only.
    assert!(
        headers[RETRY_AFTER]
            .to_str()
            .unwrap()
            .parse::<u32>()
            .is_ok()
    );
}

#[tokio::test]
async fn sync_is_refused_before_listing_and_in_other_namespaces() {
    let syncs = Arc::new(SyncHandler::new(Vec::new()));
    let endpoint = SyncEndpoint::new(Driver::Metacontroller, None, syncs);
    assert_eq!(
        refusal(&endpoint, post_of(V2)).await,
        (429, "NotReady".to_owned())
    );
    let endpoint = SyncEndpoint::new(
        Driver::Metacontroller,
        None,
        Arc::new(SyncHandler::new(vec!["other".to_owned()])),
    );
    assert_eq!(
        refusal(&endpoint, post_of(V2)).await,
        (422, "NamespaceNotWatched".to_owned())
    );
}

/// Requests of metacontroller and their responses, as recorded with `ALUSTAN_RECORD`. The first line has the version of
/// metacontroller.
const RECORDED: &str = include_str!("recorded.jsonl");

#[tokio::test]
async fn recorded_metacontroller_requests_get_recorded_responses() {
    let mut lines = RECORDED.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line
    });
    let version = lines.next().expect("a recording")["metacontroller"].clone();
    assert!(
        version
            .as_str()
            .is_some_and(|number| number.starts_with("v4.")),
        "{version}"
    );
    let mut hooks = BTreeSet::new();
    for exchange in lines {
        let (request, answer) = (&exchange["request"], &exchange["answer"]);
        let resync = answer["resyncAfterSeconds"].as_u64().unwrap();
        let recorded_answer = HookResponse {
            status: answer["status"].clone(),
            resync_after_seconds: u32::try_from(resync).unwrap(),
            finalized: answer["finalized"] == true,
        };
        let (endpoint, requests) = endpoint(Ok(recorded_answer));
        let (status, _, body) = call(&endpoint, post_of(request.to_string())).await;
        assert_eq!(status, StatusCode::OK, "{exchange}");
        assert_eq!(&serde_json::from_str::<Value>(&body).unwrap(), answer);
        let received = requests.lock().pop().unwrap();
        assert_eq!(request["parent"]["metadata"]["name"], received.name);
        assert_eq!(request["finalizing"], received.finalizing);
        let status = answer["status"].clone();
        let status = serde_json::from_value::<alustan_api::TerraformStatus>(status);
        assert!(status.is_ok(), "{exchange}");
        let version = &request["controller"]["spec"]["hooks"]["sync"]["version"];
        hooks.insert((version.as_str().unwrap().to_owned(), received.finalizing));
    }
    let all = ["v1", "v2"]
        .map(|version| [false, true].map(|finalizing| (version.to_owned(), finalizing)));
    assert_eq!(hooks, BTreeSet::from_iter(all.concat()));
}

proptest! {
    #[test]
    fn random_body_is_refused_with_json(body in prop::collection::vec(any::<u8>(), 0..256)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (endpoint, _) = endpoint(Ok(ready()));
        let (status, _, body) = runtime.block_on(call(&endpoint, post_of(body)));
        prop_assert_eq!(status, StatusCode::BAD_REQUEST);
        prop_assert!(serde_json::from_str::<Value>(&body).is_ok());
    }

    #[test]
    fn random_authorization_header_is_refused(value in "(Bearer |bearer )?[ -~]{0,40}") {
        let tokens = [SharedSecret::parse(b"a-token-that-nobody-guesses\n").unwrap()];
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        prop_assert!(!has_token(&tokens, &headers));
    }
}

#[tokio::test]
async fn standby_replica_closes_the_connection_of_the_caller() {
    let refusal = |reason| Refusal::new(429, reason, "retry");
    for (reason, closes) in [("NotLeader", true), ("Busy", false)] {
        let (endpoint, _) = endpoint(Err(refusal(reason)));
        let (status, headers, _) = call(&endpoint, post_of(V2)).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(headers[RETRY_AFTER], RETRY_AFTER_SECONDS);
        assert_eq!(headers.contains_key(CONNECTION), closes, "{reason}");
    }
}
