//! Tests with the real metacontroller. The Go module proxy does not have the module of metacontroller, so
//! `ALUSTAN_METACONTROLLER` must contain the path of a checkout with the built program:
//!
//! ```sh
//! git clone --depth 1 --branch v4.17.2 https://github.com/metacontroller/metacontroller && cd metacontroller
//! CGO_ENABLED=0 go build -o metacontroller ./pkg/cmd/metacontroller
//! ALUSTAN_METACONTROLLER=$PWD make api T=metacontroller_program
//! ```
//!
//! With `ALUSTAN_RECORD=FILE` the test also writes the HTTP exchanges to FILE, to update
//! `crates/controller/src/http/sync/recorded.jsonl`, which every test run replays.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use alustan_api::{FINALIZER, Terraform};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use k8s_openapi::api::core::v1::Event;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{Operator, TOKEN, finalizers, is_deleted, is_stalled, stalled, wait};
use crate::server::{free_ports, spawn_guarded, until};
use crate::space::with_all;

/// User name of metacontroller's ServiceAccount, to which `deploy/metacontroller` grants rights.
const METACONTROLLER: &str = "system:serviceaccount:metacontroller:metacontroller";
/// Token of the hook after the rotation of the token.
const NEXT: &str = "the-token-after-it";
const LOG: &str = "metacontroller.log";

/// Proxy that forwards calls to the operator and records them.
#[derive(Clone)]
struct Recorder {
    url: String,
    http: reqwest::Client,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Recorder {
    /// Starts the proxy for the operator at `url`. Also returns the URL of the proxy.
    async fn start(url: &str) -> (Self, String) {
        let recorder = Self {
            url: url.to_owned(),
            http: reqwest::Client::new(),
            lines: Arc::default(),
        };
        let app = Router::new()
            .route("/sync", post(Self::forward))
            .with_state(recorder.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (recorder, url)
    }

    async fn forward(State(recorder): State<Self>, headers: HeaderMap, body: Bytes) -> Response {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let mut sent = recorder.http.post(&recorder.url).body(body);
        for name in ["content-type", "authorization", "if-none-match"] {
            if let Some(value) = headers.get(name) {
                sent = sent.header(name, value);
            }
        }
        let answer = sent.send().await.unwrap();
        let (status, answer_headers) = (answer.status(), answer.headers().clone());
        let body = answer.bytes().await.unwrap();
        recorder.lines.lock().unwrap().push(json!({
            "asked": headers.contains_key("if-none-match"),
            "request": request,
            "code": status.as_u16(),
            "answer": serde_json::from_slice(&body).unwrap_or(Value::Null),
        }));
        let mut response = Response::builder().status(status);
        for name in ["content-type", "etag", "retry-after"] {
            if let Some(value) = answer_headers.get(name) {
                response = response.header(name, value);
            }
        }
        response.body(Body::from(body)).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    /// Returns the calls with status 200 as JSON lines. The first line contains the version of metacontroller.
    fn record(&self, version: &str) -> String {
        let head = json!({"metacontroller": version.trim()});
        let lines = self.lines().into_iter().filter(|line| line["code"] == 200);
        let lines: Vec<String> = std::iter::once(head)
            .chain(lines)
            .map(|line| line.to_string())
            .collect();
        lines.join("\n") + "\n"
    }

    /// Waits for a call that is `wanted`, after the first `from` calls.
    async fn wait(&self, what: &str, from: usize, wanted: impl Fn(&Value) -> bool) {
        until(what, async || {
            let lines = self.lines();
            let is_recorded = lines.iter().skip(from).any(&wanted);
            is_recorded.then_some(()).ok_or_else(|| {
                lines
                    .last()
                    .map_or_else(|| "nobody called".to_owned(), Value::to_string)
            })
        })
        .await;
    }
}

/// Returns the path of the metacontroller checkout with the built program.
fn checkout() -> PathBuf {
    let folder = std::env::var_os("ALUSTAN_METACONTROLLER");
    PathBuf::from(folder.expect("ALUSTAN_METACONTROLLER: see tests/api/sync/program.rs"))
}

fn started(operator: &Operator, folder: &Path) -> Child {
    let server = &operator.server;
    let [metrics, probes] = free_ports();
    let mut program = Command::new(folder.join("metacontroller"));
    program
        .arg("--discovery-interval=1s")
        .arg(format!("--metrics-address=127.0.0.1:{metrics}"))
        .arg(format!("--health-probe-bind-address=127.0.0.1:{probes}"))
        .arg("--client-go-qps=100")
        .arg("--client-go-burst=200")
        .arg("--zap-log-level=4")
        .env("KUBECONFIG", server.kubeconfig_file_of(METACONTROLLER))
        .env("SIGNAL", "TERM");
    spawn_guarded(&mut program, &server.folder().join(LOG))
}

/// Returns the `CompositeController` of `deploy/metacontroller`, with hook `url`.
fn controller(url: &str, version: &str, finalize: bool) -> Value {
    let text = include_str!("../../../deploy/metacontroller/component/compositecontroller.yaml");
    let mut controller: Value = serde_saphyr::from_str(text).unwrap();
    let hook = &mut controller["spec"]["hooks"]["sync"];
    hook["version"] = json!(version);
    let webhook = hook["webhook"].as_object_mut().unwrap();
    webhook.remove("service");
    webhook.remove("path");
    webhook.insert("url".to_owned(), json!(url));
    if finalize {
        controller["spec"]["hooks"]["finalize"] = hook.clone();
    }
    controller
}

fn apply(operator: &Operator, object: &Value) {
    let file = operator.server.folder().join("applied.json");
    std::fs::write(&file, object.to_string()).unwrap();
    let apply = ["apply", "--server-side", "-f", file.to_str().unwrap()];
    operator.server.kubectl(&apply).unwrap();
}

/// Returns the `ClusterRole` of metacontroller and its binding. The `ClusterRole` has the rights for the resources of metacontroller, and
/// the rules `also`.
fn rights(also: &[Value]) -> Vec<Value> {
    let own = json!({"apiGroups": ["metacontroller.k8s.io"], "resources": ["*"], "verbs": ["*"]});
    let (group, version) = ("rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1");
    let (namespace, name) = METACONTROLLER.rsplit_once(':').unwrap();
    let namespace = namespace.rsplit(':').next();
    let rules = [&[own], also].concat();
    vec![
        json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "narrowed"},
            "rules": rules,
        }),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "narrowed"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "narrowed"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }),
    ]
}

/// Returns the Secret with the current and the next token of the hook.
fn secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": TOKEN, "next": NEXT},
        "metadata": {"name": "alustan-sync", "namespace": "alustan-system"},
    })
}

async fn create_and_delete(operator: &'static Operator, recorder: &Recorder, wanted: &[&str]) {
    let (space, from) = (operator.space().await, recorder.lines().len());
    let api = space.api::<Terraform>();
    space.apply(&stalled("web")).await.unwrap();
    let tf = wait(&api, "web", "a status", is_stalled).await;
    let mut held = finalizers(&tf);
    held.sort_unstable();
    assert_eq!(held, wanted);
    let approved = with_all(
        stalled("web"),
        json!({"/approval/mode": "Manual", "/approval/plan": "0123456789ab"}),
    );
    let since = Instant::now();
    space.apply(&approved).await.unwrap();
    let approved =
        |line: &Value| line["request"]["parent"]["spec"]["approval"]["plan"] == "0123456789ab";
    recorder
        .wait("a call with the approval", from, approved)
        .await;
    assert!(
        since.elapsed() < Duration::from_secs(10),
        "{:?}",
        since.elapsed()
    );
    wait(&api, "web", "the next generation", |tf| {
        tf.metadata.generation == Some(2) && is_stalled(tf)
    })
    .await;
    assert_eq!(operator.patch_count(&space.namespace, Some("status")), 0);
    api.delete("web", &DeleteParams::default()).await.unwrap();
    is_deleted(&space, "web").await;
}

/// Sets `resyncPeriodSeconds: 1` and asserts that metacontroller calls the hook ten times within 20 s.
async fn is_called_every_second(
    operator: &'static Operator,
    recorder: &Recorder,
    mut controller: Value,
) {
    let space = operator.space().await;
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "web", "a status", is_stalled).await;
    controller["spec"]["resyncPeriodSeconds"] = json!(1);
    apply(operator, &controller);
    let (since, from) = (Instant::now(), recorder.lines().len());
    until("ten calls", async || {
        let calls = recorder.lines().len() - from;
        (calls >= 10).then_some(()).ok_or_else(|| calls.to_string())
    })
    .await;
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "{:?}",
        since.elapsed()
    );
    let codes: Vec<_> = recorder
        .lines()
        .into_iter()
        .skip(from + 3)
        .map(|line| line["code"].as_u64())
        .collect();
    assert!(codes.contains(&Some(304)), "{codes:?}");
    api.delete("web", &DeleteParams::default()).await.unwrap();
    is_deleted(&space, "web").await;
}

/// Rotates the token as described in `docs/metacontroller.md`. Calls with a token that the operator does not know yet
/// are refused.
async fn changes_the_token(operator: &'static Operator, recorder: &Recorder, controller: &Value) {
    let space = operator.space().await;
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "web", "a status", is_stalled).await;
    let mut next = controller.clone();
    let hook = &mut next["spec"]["hooks"]["sync"]["webhook"];
    hook["authorization"]["secretRef"]["key"] = json!("next");
    let from = recorder.lines().len();
    apply(operator, &next);
    recorder
        .wait("a refusal", from, |line| line["code"] == 401)
        .await;
    until("an event", async || {
        space
            .list::<Event>()
            .await
            .into_iter()
            .find(|event| {
                let note = event.message.as_deref().unwrap_or_default();
                event.reason.as_deref() == Some("SyncError") && note.contains("Unauthorized")
            })
            .map(|_| ())
            .ok_or_else(|| "there is none".to_owned())
    })
    .await;

    let tokens = operator.server.folder().join("tokens");
    std::fs::write(tokens.join("next"), NEXT).unwrap();
    std::fs::remove_file(tokens.join("token")).unwrap();
    let from = recorder.lines().len();
    recorder
        .wait("an answer", from, |line| line["code"] != 401)
        .await;
    api.delete("web", &DeleteParams::default()).await.unwrap();
    is_deleted(&space, "web").await;
    std::fs::write(tokens.join("token"), TOKEN).unwrap();
}

#[tokio::test]
#[ignore = "needs the metacontroller program: see the top of tests/api/sync/program.rs"]
async fn metacontroller_program_drives_both_hook_versions() {
    let folder = checkout();
    // Starts a separate operator with its own API server, because metacontroller calls its hook for every resource of the API server.
    let operator: &Operator = Box::leak(Box::new(Operator::start().await.unwrap()));
    let server = &operator.server;
    let crds = folder.join("manifests/production/metacontroller-crds-v1.yaml");
    for file in [
        crds.to_str().unwrap(),
        "deploy/metacontroller/component/rbac.yaml",
    ] {
        let install = ["apply", "--server-side", "-f", file];
        server.kubectl(&install).unwrap();
    }
    apply(operator, &secret());
    for object in rights(&[]) {
        apply(operator, &object);
    }
    let (recorder, url) = Recorder::start(&operator.url).await;
    let mut program = started(operator, &folder);
    until("the CRD of metacontroller", async || {
        server.kubectl(&["get", "compositecontrollers"])
    })
    .await;

    for version in ["v1", "v2"] {
        apply(operator, &controller(&url, version, false));
        create_and_delete(operator, &recorder, &[FINALIZER]).await;
    }
    is_called_every_second(operator, &recorder, controller(&url, "v2", false)).await;
    changes_the_token(operator, &recorder, &controller(&url, "v2", false)).await;
    // Only a finalize hook needs these rights.
    let finalizer = json!({
        "apiGroups": ["alustan.io"], "resources": ["terraforms"], "verbs": ["update", "patch"],
    });
    for object in rights(&[finalizer]) {
        apply(operator, &object);
    }
    let both = [alustan_tests::metacontroller::FINALIZER, FINALIZER];
    for version in ["v1", "v2"] {
        apply(operator, &controller(&url, version, true));
        create_and_delete(operator, &recorder, &both).await;
    }

    let lines = recorder.lines();
    let code = |code: u16| lines.iter().any(|line| line["code"] == code);
    assert!(code(200) && code(304), "no answer was known");
    for line in &lines {
        let code = line["code"].as_u64().unwrap();
        assert!(matches!(code, 200 | 304 | 401 | 429), "{line}");
    }
    let log = std::fs::read_to_string(server.folder().join(LOG)).unwrap();
    let refused: BTreeSet<&str> = log
        .split(['"', '\\'])
        .filter(|text| text.contains("forbidden"))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");

    let describe = [
        "-C",
        folder.to_str().unwrap(),
        "describe",
        "--tags",
        "--always",
    ];
    let version = Command::new("git").args(describe).output().unwrap();
    let record = recorder.record(&String::from_utf8(version.stdout).unwrap());
    for private in [
        TOKEN,
        NEXT,
        server.folder().to_str().unwrap(),
        folder.to_str().unwrap(),
    ] {
        assert!(!record.contains(private), "{private}");
    }
    if let Some(file) = std::env::var_os("ALUSTAN_RECORD") {
        std::fs::write(file, record).unwrap();
    }
    let remove = ["delete", "compositecontroller", "alustan", "--timeout=60s"];
    server.kubectl(&remove).unwrap();
    // `leash.sh` ends metacontroller when its stdin is closed.
    drop(program.stdin.take());
    program.wait().unwrap();
}
