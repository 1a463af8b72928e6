//! Object and Lease of the fake node.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::Cluster;

/// Name of the node.
pub(super) const NAME: &str = "fake";
/// Key of the taint and of the label of the node.
const KEY: &str = "alustan.test/fake";
/// Interval of renewals of the Lease, as in the kubelet.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Returns the taint of the fake node.
pub(crate) fn taint() -> Value {
    json!({"key": KEY, "effect": "NoSchedule"})
}

/// Returns the node selector of pods for the fake node.
pub(crate) fn node_selector() -> Value {
    json!({KEY: "true"})
}

/// Returns the toleration of pods for the fake node.
pub(crate) fn toleration() -> Value {
    json!({"key": KEY, "operator": "Exists", "effect": "NoSchedule"})
}

pub(super) async fn create(cluster: &Cluster) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NAME, "labels": {
            KEY: "true", "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": NAME,
        }},
        "spec": {"taints": [taint()]},
    });
    let parameters = PatchParams::apply("fake-kubelet").force();
    nodes
        .patch(NAME, &parameters, &Patch::Apply(&node))
        .await
        .expect("create the node");
    let now = Timestamp::now().to_string();
    let resources = json!({"cpu": "100000", "memory": "1000Ti", "ephemeral-storage": "1000Ti", "pods": "100000"});
    let status = json!({"status": {
        "capacity": resources, "allocatable": resources,
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "FakeKubelet", "message": "fake kubelet", "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }],
    }});
    nodes
        .patch_status(NAME, &PatchParams::default(), &Patch::Strategic(&status))
        .await
        .expect("set the status of the node");
}

/// Renews the Lease of the node until the task is aborted.
pub(super) async fn renew(cluster: Cluster) {
    let leases: Api<Lease> = Api::namespaced(cluster.client, "kube-node-lease");
    let mut tick = tokio::time::interval(HEARTBEAT);
    loop {
        tick.tick().await;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME},
            "spec": {
                "holderIdentity": NAME, "leaseDurationSeconds": 40,
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        let parameters = PatchParams::apply("fake-kubelet").force();
        // Ignores an error: the next renewal follows before the Lease expires.
        let _ = leases.patch(NAME, &parameters, &Patch::Apply(&lease)).await;
    }
}

pub(super) async fn delete(cluster: &Cluster) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    // Ignores an error: another process may have removed the node.
    let _ = nodes.delete(NAME, &DeleteParams::default()).await;
}
