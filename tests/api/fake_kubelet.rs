//! Fake kubelet: serves the logs of containers to kube-apiserver, and starts no containers. Tests write the logs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use alustan_api::labels::{COMPONENT, Component, NAME};
use alustan_tests::{Certificate, TlsListener};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use crate::space::Space;

/// Number of lines in one part of a response.
const PART_LINES: usize = 500;

/// Logs by `NAMESPACE/POD`.
type Logs = Arc<Mutex<BTreeMap<String, watch::Sender<Log>>>>;

/// Log of a container.
#[derive(Default)]
struct Log {
    lines: Vec<(Timestamp, String)>,
    has_ended: bool,
    requests: usize,
}

/// A node of the space, and its kubelet.
pub(crate) struct FakeKubelet {
    node: String,
    logs: Logs,
}

impl FakeKubelet {
    /// Creates the node and starts the kubelet. The node has the name of the namespace of `space`.
    pub(crate) async fn start(space: &Space) -> Self {
        let logs = Logs::default();
        let certificate = Certificate::self_signed("127.0.0.1");
        let listener = TlsListener::bind("127.0.0.1", &certificate).await;
        let (_, port) = listener
            .address()
            .rsplit_once(':')
            .map(|(host, port)| (host.to_owned(), port.parse::<u16>().unwrap()))
            .unwrap();
        let routes = Router::new()
            .route("/containerLogs/{namespace}/{pod}/{container}", get(log))
            .with_state(logs.clone());
        tokio::spawn(async { axum::serve(listener, routes).await });
        create_node(space, port).await;
        space
            .create::<ServiceAccount>(json!({"metadata": {"name": "default"}}))
            .await;
        Self {
            node: space.namespace.clone(),
            logs,
        }
    }

    /// Creates the running pod of `job`, a Job of the resource `name`. Returns the name of the pod.
    pub(crate) async fn start_pod(&self, space: &Space, name: &str, job: &str) -> String {
        let pod = format!("{job}-x");
        self.logs
            .lock()
            .insert(key(&space.namespace, &pod), watch::Sender::default());
        space
            .create::<Pod>(json!({
                "metadata": {"name": pod, "labels": {
                    NAME: name, COMPONENT: Component::Run.as_str(), "batch.kubernetes.io/job-name": job,
                }},
                "spec": {
                    "restartPolicy": "Never", "nodeName": self.node,
                    "containers": [{"name": "terraform", "image": "127.0.0.1:1/a"}],
                },
            }))
            .await;
        self.set_state(space, &pod, "Running", &json!({"running": {}}))
            .await;
        pod
    }

    async fn set_state(&self, space: &Space, pod: &str, phase: &str, state: &serde_json::Value) {
        let status = json!({"status": {"phase": phase, "containerStatuses": [{
            "name": "terraform", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]}});
        space
            .api::<Pod>()
            .patch_status(pod, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }

    /// Appends the lines of `text` to the log of `pod`.
    pub(crate) fn write(&self, space: &Space, pod: &str, text: &str) {
        let now = Timestamp::now();
        self.change(space, pod, |log| {
            log.lines
                .extend(text.lines().map(|line| (now, line.to_owned())));
        });
    }

    /// Ends the log of `pod`.
    pub(crate) fn end_log(&self, space: &Space, pod: &str) {
        self.change(space, pod, |log| log.has_ended = true);
    }

    /// Sets `pod` to succeeded, and ends its log.
    pub(crate) async fn end_pod(&self, space: &Space, pod: &str) {
        let state = json!({"terminated": {"exitCode": 0}});
        self.set_state(space, pod, "Succeeded", &state).await;
        self.end_log(space, pod);
    }

    /// Returns the number of requests for the log of `pod`.
    pub(crate) fn requests(&self, space: &Space, pod: &str) -> usize {
        self.logs.lock()[&key(&space.namespace, pod)]
            .borrow()
            .requests
    }

    /// Deletes `pod`.
    pub(crate) async fn delete_pod(&self, space: &Space, pod: &str) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        space.api::<Pod>().delete(pod, &now).await.unwrap();
    }

    fn change(&self, space: &Space, pod: &str, change: impl FnOnce(&mut Log)) {
        self.logs.lock()[&key(&space.namespace, pod)].send_modify(change);
    }
}

fn key(namespace: &str, pod: &str) -> String {
    format!("{namespace}/{pod}")
}

/// Query of a request for a log, as kube-apiserver sends it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogQuery {
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    timestamps: bool,
    since_time: Option<Timestamp>,
}

/// Returns the log. With `follow`, the response ends with the log.
async fn log(
    State(logs): State<Logs>,
    Path((namespace, pod, _container)): Path<(String, String, String)>,
    Query(query): Query<LogQuery>,
) -> Response {
    let log = logs.lock().get(&key(&namespace, &pod)).map(|log| {
        log.send_modify(|log| log.requests += 1);
        log.subscribe()
    });
    let Some(log) = log else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let parts = stream::unfold((log, 0, query), |(mut log, sent, query)| async move {
        let state = log
            .wait_for(|log| log.lines.len() > sent || log.has_ended || !query.follow)
            .await
            .ok()?;
        let lines = state.lines.iter().skip(sent).take(PART_LINES);
        let count = lines.len();
        let part = lines
            .filter(|(at, _)| query.since_time.is_none_or(|since| *at >= since))
            .fold(String::new(), |mut part, (at, line)| {
                if query.timestamps {
                    write!(part, "{at} ").unwrap();
                }
                part.push_str(line);
                part.push('\n');
                part
            });
        drop(state);
        (count > 0).then(|| {
            let part = Ok::<_, std::io::Error>(Bytes::from(part));
            (part, (log, sent + count, query))
        })
    });
    Body::from_stream(parts).into_response()
}

/// Creates a node, with the name of the namespace, whose kubelet listens on 127.0.0.1 at `port`.
pub(crate) async fn create_node(space: &Space, port: u16) {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": space.namespace},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }))
    .unwrap();
    let nodes: Api<Node> = Api::all(space.client.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
}
