//! Logs of runs. A TLS listener simulates the kubelet.

use std::process::Stdio;
use std::sync::Arc;

use alustan_api::labels::{COMPONENT, Component, NAME};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Patch, PatchParams};
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{CommandOutput, apply, apply_as_running, command, create_account, run, status};
use crate::space::{Space, resource};

#[tokio::test]
async fn error_for_missing_logs_names_run_and_failure() {
    let space = Space::new().await;
    let mut stalled = status("Stalled", "False", "PlanFailed");
    apply(&space, &resource("web"), stalled.clone()).await;
    let why = run(&space, "logs web").await.failure();
    assert!(
        why.contains("no run") && why.contains("Stalled (PlanFailed)"),
        "{why}"
    );
    stalled["runs"] = json!([{
        "number": 3, "kind": "plan", "trigger": "spec", "result": "Failed", "seconds": 1,
        "error": "no such variable", "job": "web-plan-3",
    }]);
    apply(&space, &resource("web"), stalled).await;
    for command in ["logs web", "logs web --run 3"] {
        let why = run(&space, command).await.failure();
        assert!(
            why.contains("has no Job") && why.contains("no such variable"),
            "{why}"
        );
    }
}

#[tokio::test]
async fn logs_of_a_failed_run_outlive_its_job() {
    let space = Space::new().await;
    let mut stalled = status("Stalled", "False", "PlanFailed");
    stalled["runs"] = json!([{
        "number": 3, "kind": "plan", "trigger": "spec", "result": "Failed", "seconds": 1,
        "error": "no such variable", "job": "web-plan-3",
    }]);
    apply(&space, &resource("web"), stalled).await;
    // The Job of the previous run still exists.
    create_job(&space, "web-apply-2").await;
    // `Error: no such variable`, gzipped.
    let log = "H4sIAAAAAAACA3MtKsovslLIy1coLk3OUChLLMpMTMpJ5QIADNXB/RgAAAA=";
    space
        .create::<Secret>(json!({"metadata": {"name": "web-report"}, "data": {"log-3": log}}))
        .await;
    for command in ["logs web", "logs web --run 3"] {
        let output = run(&space, command).await.success();
        assert_eq!(output, "Error: no such variable\n", "{command}");
    }
    let why = run(&space, "logs web --run 1").await.failure();
    assert!(
        why.contains("run 1 of ") && why.contains("has no Job"),
        "{why}"
    );
    // Without `--run`, `logs` selects the run that has just started, not the failed run.
    create_job(&space, "web-plan-4").await;
    let why = run(&space, "logs web").await.failure();
    assert!(why.contains("Job web-plan-4 has no pod"), "{why}");
}

#[tokio::test]
async fn logs_follow_the_last_run_once_its_pod_has_started() {
    let space = Space::new().await;
    apply_as_running(&space, "Applying").await;
    for job in ["web-plan-9", "web-apply-10"] {
        create_job(&space, job).await;
    }
    let why = run(&space, "logs web").await.failure();
    assert!(why.contains("Job web-apply-10 has no pod"), "{why}");
    let pod = create_pod(&space, "web-apply-10").await;
    let why = run(&space, "logs web").await.failure();
    assert!(
        why.contains(&format!("pod {pod} has not started: Pending")),
        "{why}"
    );

    let mut following = tokio::process::Command::from(command(&space, "logs web -f"));
    following.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut following = following.spawn().unwrap();
    let mut stderr = BufReader::new(following.stderr.take().unwrap()).lines();
    let waits = stderr.next_line().await.unwrap().unwrap();
    assert_eq!(
        waits,
        format!("pod {pod} has not started: Pending; waiting")
    );
    start_pod(&space, &pod).await;
    let output = CommandOutput::of(following.wait_with_output().await.unwrap()).success();
    let place = format!("{}/{pod}/terraform", space.namespace);
    assert_eq!(
        output,
        format!("GET /containerLogs/{place}?follow=true HTTP/1.1\n")
    );

    let output = run(&space, "logs web --run 10").await.success();
    assert_eq!(output, format!("GET /containerLogs/{place} HTTP/1.1\n"));
    let why = run(&space, "logs web --run 9").await.failure();
    assert!(why.contains("Job web-plan-9 has no pod"), "{why}");
}

fn labels(job: &str) -> Value {
    let run = Component::Run.as_str();
    json!({NAME: "web", COMPONENT: run, "batch.kubernetes.io/job-name": job})
}

fn containers() -> Value {
    json!({
        "restartPolicy": "Never",
        "containers": [{"name": "terraform", "image": "127.0.0.1:1/a"}],
    })
}

async fn create_job(space: &Space, name: &str) {
    space
        .create::<Job>(json!({
            "metadata": {"name": name, "labels": labels(name)},
            "spec": {"template": {"spec": containers()}},
        }))
        .await;
}

/// Creates a node, and a pod of `job` on it. Returns the name of the pod.
async fn create_pod(space: &Space, job: &str) -> String {
    create_account(space).await;
    create_node(space).await;
    let mut spec = containers();
    spec["nodeName"] = json!(space.namespace);
    let name = format!("{job}-x");
    space
        .create::<Pod>(json!({"metadata": {"name": name, "labels": labels(job)}, "spec": spec}))
        .await;
    name
}

/// Sets the pod to running, like the kubelet.
async fn start_pod(space: &Space, name: &str) {
    let started = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "terraform", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}},
    }]}});
    let pods = space.api::<Pod>();
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&started))
        .await
        .unwrap();
}

/// Creates a node whose kubelet returns the requested path as the log.
async fn create_node(space: &Space) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(kubelet(listener));
    crate::fake_kubelet::create_node(space, port).await;
}

async fn kubelet(listener: TcpListener) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(answer(acceptor.clone(), stream));
    }
}

async fn answer(acceptor: TlsAcceptor, stream: TcpStream) {
    let mut stream = BufReader::new(acceptor.accept(stream).await.unwrap());
    let mut request_line = String::new();
    stream.read_line(&mut request_line).await.unwrap();
    let log = format!("{}\n", request_line.trim_end());
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n";
    let stream = stream.get_mut();
    stream
        .write_all(format!("{head}{log}").as_bytes())
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    // Waits until the client closes the connection.
    let _ = stream.read(&mut [0; 1024]).await;
}
