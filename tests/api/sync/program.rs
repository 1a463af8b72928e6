//! The metacontroller program itself. It is no module that the Go proxy has, so whoever has it built says
//! where it is:
//!
//! ```sh
//! git clone --depth 1 --branch v4.17.2 https://github.com/metacontroller/metacontroller && cd metacontroller
//! CGO_ENABLED=0 go build -o metacontroller ./pkg/cmd/metacontroller
//! ALUSTAN_METACONTROLLER=$PWD make api T=the_program_itself
//! ```
//!
//! With `ALUSTAN_RECORD=FILE` it writes what was said, for `crates/controller/src/http/sync/recorded.jsonl`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use alustan_api::{FINALIZER, Terraform};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{Operator, TOKEN, finalizers, goes, is_stalled, stalled, wait};
use crate::server::{free_ports, leashed, until};
use crate::space::{Space, with};

/// Hands calls on to the operator, and writes them down.
#[derive(Clone)]
struct Recorder {
    url: String,
    http: reqwest::Client,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Recorder {
    /// Before the operator at `url`; where to call instead.
    async fn start(url: &str) -> (Self, String) {
        let recorder = Self {
            url: url.to_owned(),
            http: reqwest::Client::new(),
            lines: Arc::default(),
        };
        let app = Router::new().route("/sync", post(Self::hand_on));
        let app = app.with_state(recorder.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = format!("http://{}/sync", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (recorder, here)
    }

    async fn hand_on(State(recorder): State<Self>, headers: HeaderMap, body: Bytes) -> Response {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let mut sent = recorder.http.post(&recorder.url).body(body);
        for name in ["content-type", "authorization", "if-none-match"] {
            if let Some(value) = headers.get(name) {
                sent = sent.header(name, value);
            }
        }
        let answer = sent.send().await.unwrap();
        let (status, told) = (answer.status(), answer.headers().clone());
        let body = answer.bytes().await.unwrap();
        recorder.lines.lock().unwrap().push(json!({
            "asked": headers.contains_key("if-none-match"),
            "request": request,
            "code": status.as_u16(),
            "answer": serde_json::from_slice(&body).unwrap_or(Value::Null),
        }));
        let mut response = Response::builder().status(status);
        for name in ["content-type", "etag", "retry-after"] {
            if let Some(value) = told.get(name) {
                response = response.header(name, value);
            }
        }
        response.body(Body::from(body)).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    /// Writes the calls that were answered in full, where somebody wants them.
    fn write(&self, version: &str) {
        let Some(file) = std::env::var_os("ALUSTAN_RECORD") else {
            return;
        };
        let head = json!({"metacontroller": version.trim()});
        let lines = self.lines().into_iter().filter(|it| it["code"] == 200);
        let lines = std::iter::once(head).chain(lines);
        let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
        std::fs::write(file, lines.join("\n") + "\n").unwrap();
    }
}

/// The checkout that has the program.
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
        .env("KUBECONFIG", server.kubeconfig_file())
        .env("SIGNAL", "TERM");
    leashed(&mut program, &server.folder().join("metacontroller.log"))
}

/// The `CompositeController` of `deploy/metacontroller`, which calls `url`.
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

async fn lives_and_goes(operator: &'static Operator, wanted: &[&str]) {
    let space: Space = operator.space().await;
    let api = space.api::<Terraform>();
    space.apply(&stalled("web")).await.unwrap();
    let tf = wait(&api, "web", "a status", is_stalled).await;
    let mut held = finalizers(&tf);
    held.sort_unstable();
    assert_eq!(held, wanted);
    let edited = with(stalled("web"), "/retry/limit", Some(json!(3)));
    space.apply(&edited).await.unwrap();
    wait(&api, "web", "the next generation", |tf| {
        tf.metadata.generation == Some(2) && is_stalled(tf)
    })
    .await;
    assert_eq!(operator.wrote(&space.namespace, Some("status")), 0);
    api.delete("web", &DeleteParams::default()).await.unwrap();
    goes(&space, "web").await;
}

#[tokio::test]
#[ignore = "needs the metacontroller program: see the top of this file"]
async fn the_program_itself_drives_the_operator_by_both_versions_with_and_without_finalize() {
    let (operator, folder) = (Operator::shared().await, checkout());
    let crds = folder.join("manifests/production/metacontroller-crds-v1.yaml");
    let install = ["apply", "--server-side", "-f", crds.to_str().unwrap()];
    operator.server.kubectl(&install).unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": TOKEN},
        "metadata": {"name": "alustan-sync", "namespace": "alustan-system"},
    });
    apply(operator, &secret);
    let (recorder, here) = Recorder::start(&operator.url).await;
    let mut program = started(operator, &folder);
    until("the CRD of metacontroller", async || {
        operator.server.kubectl(&["get", "compositecontrollers"])
    })
    .await;

    for version in ["v1", "v2"] {
        apply(operator, &controller(&here, version, false));
        lives_and_goes(operator, &[FINALIZER]).await;
    }
    apply(operator, &controller(&here, "v2", true));
    let both = [alustan_tests::metacontroller::FINALIZER, FINALIZER];
    lives_and_goes(operator, &both).await;
    let lines = recorder.lines();
    let code = |code: u16| lines.iter().any(|it| it["code"] == code);
    assert!(code(200) && code(304), "no answer was known");
    for line in &lines {
        let code = line["code"].as_u64().unwrap();
        assert!(matches!(code, 200 | 304 | 429), "{line}");
    }
    let describe = [
        "-C",
        folder.to_str().unwrap(),
        "describe",
        "--tags",
        "--always",
    ];
    let version = Command::new("git").args(describe).output().unwrap();
    recorder.write(&String::from_utf8(version.stdout).unwrap());
    let remove = ["delete", "compositecontroller", "alustan", "--timeout=60s"];
    operator.server.kubectl(&remove).unwrap();
    // The leash follows its input.
    drop(program.stdin.take());
    program.wait().unwrap();
}
