//! HTTP responses of `kubectl alustan ui`: limits, refused requests and JSON.

use reqwest::header::{ACCEPT, COOKIE, HOST, ORIGIN, REFERER};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use alustan_api::Terraform;

use crate::as_operator::{AsOperator, applying, awaiting, planned};
use crate::fake_kubelet::FakeKubelet;
use crate::policies::{bind, install};
use crate::server::{DEADLINE, until};
use crate::space::{Space, resource};
use crate::ui::{Ui, Visitor};

/// Maximum number of open streams of one user.
const STREAMS: usize = 20;

/// A namespace with the resource `network`, whose plan `0123` waits for approval, and the page of its approver `bob`.
struct Approver {
    space: Space,
    ui: Ui,
}

impl Approver {
    async fn new() -> Self {
        let space = Space::new().await;
        install(
            &space,
            &[bind(&space, "bob", "ClusterRole", "alustan-approver")],
        );
        space.apply(&resource("network")).await.unwrap();
        let operator = AsOperator::new(&space.server, &space.namespace).await;
        operator.record("network", 1, planned("0123")).await;
        operator.set_status("network", awaiting("0123")).await;
        let ui = Ui::start(&space.server, "bob", &space.namespace).await;
        let approver = Self { space, ui };
        let visitor = approver.ui.visitor().await;
        until("the permissions of bob", async || {
            let (status, body) = visitor.read(&approver.path("")).await;
            (status == StatusCode::OK).then_some(()).ok_or(body)
        })
        .await;
        approver
    }

    /// Returns the path of the page of the resource, with `rest` at the end.
    fn path(&self, rest: &str) -> String {
        format!("/ns/{}/tf/network{rest}", self.space.namespace)
    }

    /// Returns the CSRF token, from the form that approves the plan.
    async fn csrf(&self, visitor: &Visitor<'_>) -> String {
        let (_, page) = visitor.read(&self.path("")).await;
        let field = page
            .split("<input")
            .find(|input| input.contains("name=\"csrf\""));
        let field = field.unwrap_or_else(|| panic!("no field csrf in {page}"));
        let (_, value) = field.split_once("value=\"").unwrap();
        value.split('"').next().unwrap().to_owned()
    }

    /// Allows the approver to read logs of pods, and starts the pod of run 2.
    async fn start_run(&self) -> (FakeKubelet, String) {
        let space = &self.space;
        let log_reader = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "log-reader", "namespace": space.namespace},
            "rules": [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}],
        });
        install(
            space,
            &[log_reader, bind(space, "bob", "Role", "log-reader")],
        );
        let operator = AsOperator::new(&space.server, &space.namespace).await;
        operator.set_status("network", applying("network", 2)).await;
        let kubelet = FakeKubelet::start(space).await;
        let pod = kubelet.start_pod(space, "network", "network-apply-2").await;
        (kubelet, pod)
    }

    async fn approved_plan(&self) -> Option<String> {
        let network = self.space.api::<Terraform>().get("network").await;
        network.unwrap().spec.approval.plan
    }
}

async fn status_of(request: RequestBuilder) -> StatusCode {
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn stream_above_the_limit_of_a_user_is_refused() {
    let approver = Approver::new().await;
    let visitor = approver.ui.visitor().await;
    let mut streams = Vec::new();
    for number in 1..=STREAMS {
        let stream = visitor.get("/live").await;
        assert_eq!(stream.status(), StatusCode::OK, "stream {number}");
        streams.push(stream);
    }
    for path in ["/live".to_owned(), approver.path("/live")] {
        let refused = visitor.get(&path).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    // Pages are not streams.
    assert_eq!(visitor.read("/").await.0, StatusCode::OK);
    drop(streams.pop());
    until("a free stream", async || {
        let stream = visitor.get("/live").await;
        (stream.status() == StatusCode::OK)
            .then_some(())
            .ok_or_else(|| stream.status().to_string())
    })
    .await;
}

#[tokio::test]
async fn requests_of_other_hosts_and_sites_are_refused() {
    let approver = Approver::new().await;
    let visitor = approver.ui.visitor().await;
    for host in ["evil.test", "127.0.0.1:1"] {
        let rebound = visitor.request(Method::GET, "/").header(HOST, host);
        assert_eq!(status_of(rebound).await, StatusCode::BAD_REQUEST, "{host}");
    }

    let csrf = approver.csrf(&visitor).await;
    let approve = |csrf: &str| {
        visitor
            .request(Method::POST, &approver.path("/approve"))
            .form(&[("plan", "0123"), ("csrf", csrf)])
    };
    let without_token = visitor
        .request(Method::POST, &approver.path("/approve"))
        .form(&[("plan", "0123")]);
    for (what, request) in [
        ("no token", without_token),
        ("another token", approve("AAAA")),
        (
            "cross-site",
            approve(&csrf).header("Sec-Fetch-Site", "cross-site"),
        ),
        (
            "same-site",
            approve(&csrf).header("Sec-Fetch-Site", "same-site"),
        ),
        (
            "another origin",
            approve(&csrf).header(ORIGIN, "https://evil.test"),
        ),
        ("opaque origin", approve(&csrf).header(ORIGIN, "null")),
    ] {
        assert_eq!(status_of(request).await, StatusCode::FORBIDDEN, "{what}");
    }
    for cookie in ["", "alustan-ui-1=AAAA"] {
        let request = reqwest::Client::new()
            .get(approver.ui.url("/"))
            .header(COOKIE, cookie)
            .header(REFERER, "https://evil.test/");
        assert_eq!(status_of(request).await, StatusCode::UNAUTHORIZED);
    }
    let wrong_token = approver.ui.url("/open?token=AAAA");
    let opened = reqwest::get(wrong_token).await.unwrap();
    assert_eq!(opened.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(approver.approved_plan().await, None);

    // A plan that no longer waits for approval is not approved.
    let stale = visitor
        .request(Method::POST, &approver.path("/approve"))
        .form(&[("plan", "4567"), ("csrf", &csrf)]);
    assert_eq!(status_of(stale).await, StatusCode::CONFLICT);
    assert_eq!(approver.approved_plan().await, None);
    let response = approve(&csrf).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    assert_eq!(Visitor::target(&response), approver.path("?done=approve"));
    assert_eq!(approver.approved_plan().await.as_deref(), Some("0123"));
}

#[tokio::test]
async fn path_with_invalid_name_is_not_found() {
    let approver = Approver::new().await;
    let visitor = approver.ui.visitor().await;
    let own = &approver.space.namespace;
    for path in [
        format!("/ns/{own}/tf/missing"),
        format!("/ns/{own}/tf/Network"),
        format!("/ns/{own}/tf/..%2f..%2fsecrets%2fnetwork"),
        format!("/ns/{own}/tf/network%00"),
        format!("/ns/{own}%2fx/tf/network"),
        format!("/ns/{own}/tf/{}", "a".repeat(254)),
        format!("/ns/{own}/tf/network/runs/99"),
        format!("/ns/{own}/tf/network/unknown/path"),
        "/ns/..%2f/graph".to_owned(),
        "/assets/..%2fpage.rs".to_owned(),
        "/unknown".to_owned(),
    ] {
        let (status, body) = visitor.read(&path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {body}");
    }
    for path in ["/runs/abc", "/runs/-1"] {
        let (status, _) = visitor.read(&approver.path(path)).await;
        assert!(status.is_client_error(), "{path}: {status}");
    }
}

#[tokio::test]
async fn each_page_responds_with_json_and_security_headers() {
    let approver = Approver::new().await;
    let visitor = approver.ui.visitor().await;
    let own = &approver.space.namespace;
    let network = format!("\"{own}\"");
    for path in [
        "/".to_owned(),
        "/approvals".to_owned(),
        "/drift".to_owned(),
        format!("/ns/{own}/graph"),
        approver.path(""),
        approver.path("/runs/1"),
    ] {
        let request = visitor
            .request(Method::GET, &path)
            .header(ACCEPT, "application/json");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers().clone();
        assert_eq!(headers["content-type"], "application/json", "{path}");
        let body = response.text().await.unwrap();
        let json: Value = serde_json::from_str(&body).unwrap();
        let names_resource = body.contains(&network) && body.contains("network");
        assert!(names_resource || path == "/drift", "{path}: {json:#}");

        let html = visitor.get(&path).await;
        assert_eq!(html.status(), StatusCode::OK, "{path}");
        let kind = html.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/html"), "{path}: {kind}");
        for headers in [&headers, html.headers()] {
            assert_eq!(headers["cache-control"], "no-store", "{path}");
            assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
            assert_eq!(headers["x-accel-buffering"], "no", "{path}");
            let policy = headers["content-security-policy"].to_str().unwrap();
            for part in [
                "default-src 'self'",
                "base-uri 'none'",
                "form-action 'self'",
                "frame-ancestors 'none'",
            ] {
                assert!(policy.contains(part), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{path}: {policy}");
        }
    }
    let error = visitor
        .request(Method::GET, "/unknown")
        .header(ACCEPT, "application/json");
    let error = error.send().await.unwrap();
    assert_eq!(error.status(), StatusCode::NOT_FOUND);
    let error: Value = serde_json::from_str(&error.text().await.unwrap()).unwrap();
    assert_eq!(error["status"], json!(404));
}

/// Reads the events of `stream` until `text` appears.
async fn read_until(stream: &mut Response, text: &str) -> String {
    let mut events = String::new();
    let read = async {
        while !events.contains(text) {
            let chunk = stream.chunk().await.unwrap();
            events.push_str(&String::from_utf8_lossy(&chunk.expect("an event")));
        }
    };
    let read = tokio::time::timeout(DEADLINE, read).await;
    assert!(read.is_ok(), "no {text:?} in {events}");
    events
}

#[tokio::test]
async fn change_before_the_stream_is_announced_at_its_start() {
    let approver = Approver::new().await;
    let visitor = approver.ui.visitor().await;
    for path in [
        "/".to_owned(),
        approver.path(""),
        approver.path("/../../graph"),
    ] {
        let path = path.replace("/tf/network/../../", "/");
        let (_, page) = visitor.read(&path).await;
        let (_, rest) = page.split_once("sse-connect=\"").unwrap();
        let url = rest.split('"').next().unwrap();
        assert!(url.contains("seen="), "{url}");
        let operator = AsOperator::new(&approver.space.server, &approver.space.namespace).await;
        let mut status = awaiting("0123");
        status["message"] = json!(format!("changed after {path} was read"));
        operator.set_status("network", status).await;
        let mut stream = visitor.get(url).await;
        let events = read_until(&mut stream, "event: change").await;
        // A browser that reconnects sends the id of the last event.
        let id = events
            .split("id: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .to_owned();
        drop(stream);
        let again = visitor
            .request(Method::GET, url)
            .header("last-event-id", id);
        let mut again = again.send().await.unwrap();
        operator.set_status("network", awaiting("0123")).await;
        let events = read_until(&mut again, "event: change").await;
        assert_eq!(events.matches("event: change").count(), 1, "{events}");
    }
}

/// Opens the stream of a log, and waits for its first event. Returns the stream and the event.
async fn first_lines(visitor: &Visitor<'_>, path: &str) -> (Response, String) {
    until("the log", async || {
        let mut log = visitor.get(path).await;
        match log.chunk().await {
            Ok(Some(part)) if part.starts_with(b"event: log") => {
                Ok((log, String::from_utf8_lossy(&part).into_owned()))
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn streams_end_when_the_user_loses_permission() {
    let approver = Approver::new().await;
    let space = &approver.space;
    let (kubelet, pod) = approver.start_run().await;
    kubelet.write(space, &pod, "first line\n");
    let visitor = approver.ui.visitor().await;
    let path = approver.path("/runs/2/live");
    let (mut log, _) = first_lines(&visitor, &path).await;
    let mut changes = visitor.get(&approver.path("/live")).await;
    read_until(&mut changes, "event: change").await;
    let delete = ["delete", "rolebinding", "--all", "-n", &space.namespace];
    space.server.kubectl(&delete).unwrap();
    for stream in [&mut log, &mut changes] {
        let ends = async { while stream.chunk().await.is_ok_and(|part| part.is_some()) {} };
        assert!(tokio::time::timeout(DEADLINE, ends).await.is_ok());
    }
}

#[tokio::test]
async fn log_continues_after_the_last_event() {
    let approver = Approver::new().await;
    let space = &approver.space;
    let (kubelet, pod) = approver.start_run().await;
    kubelet.write(space, &pod, "first line\nsecond line\n");
    let visitor = approver.ui.visitor().await;
    let path = approver.path("/runs/2/live");
    let (_, events) = first_lines(&visitor, &path).await;
    assert!(events.contains("second line"), "{events}");
    let id = events.split("id: ").nth(1).unwrap().lines().next().unwrap();
    kubelet.write(space, &pod, "third line\n");
    for request in [
        visitor
            .request(Method::GET, &path)
            .header("last-event-id", id),
        visitor.request(
            Method::GET,
            &format!("{path}?after={}", id.replace(':', "%3A")),
        ),
    ] {
        let mut log = request.send().await.unwrap();
        let events = read_until(&mut log, "third line").await;
        assert!(!events.contains("second line"), "{events}");
        assert!(!events.contains("missing"), "{events}");
    }
}

#[tokio::test]
async fn page_of_a_deleted_resource_links_its_runs() {
    let approver = Approver::new().await;
    let visitor = approver.ui.visitor().await;
    approver
        .space
        .server
        .kubectl(&["delete", "tf", "network", "-n", &approver.space.namespace])
        .unwrap();
    let path = approver.path("");
    let run = approver.path("/runs/1");
    let page = until("the deleted resource", async || {
        let (status, page) = visitor.read(&path).await;
        let is_deleted = status == StatusCode::OK && page.contains("Runs before the deletion");
        is_deleted.then(|| page.clone()).ok_or(page)
    })
    .await;
    assert!(page.contains(&run), "{page}");
    let (status, page) = visitor.read(&run).await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("aws_subnet.private[0]"), "{page}");
    let missing = approver.path("").replace("network", "missing");
    assert_eq!(visitor.read(&missing).await.0, StatusCode::NOT_FOUND);
}
