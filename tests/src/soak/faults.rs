//! Faults of a campaign: processes that end with SIGKILL, and outages of the network.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};

use crate::Scene;
use crate::installed_operator::{NAMESPACE, SELECTOR};

const RUN: &str = "app.kubernetes.io/managed-by=alustan,app.kubernetes.io/component=run";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Operator,
    Runner,
    Kubelet,
    Containerd,
    Registry,
    ApiServer,
    NodeNetwork,
}

impl Fault {
    /// Runners are killed more often, because only these faults end a run in the middle.
    const ALL: [Self; 9] = [
        Self::Operator,
        Self::Runner,
        Self::Runner,
        Self::Runner,
        Self::Kubelet,
        Self::Containerd,
        Self::Registry,
        Self::ApiServer,
        Self::NodeNetwork,
    ];

    pub(super) fn choose(random: &mut fastrand::Rng) -> Self {
        Self::ALL[random.usize(..Self::ALL.len())]
    }

    /// Injects the fault and ends it. Returns whether it had an effect: without a run, no runner can be killed.
    pub(super) async fn inject(self, scene: &Scene, random: &mut fastrand::Rng) -> bool {
        let component = match self {
            Self::Operator => return kill_operator(scene, random).await,
            Self::Runner => {
                return kill_one(scene, &scene.namespace, RUN, random)
                    .await
                    .is_some();
            }
            Self::NodeNetwork => {
                let outage = scene.cluster.disconnect_pods().await;
                tokio::time::sleep(outage_length(random)).await;
                drop(outage);
                return true;
            }
            Self::Kubelet => "kubelet",
            Self::Containerd => "containerd",
            Self::Registry => "registry",
            Self::ApiServer => "apiserver",
        };
        scene.cluster.kill_component(component).await;
        tokio::time::sleep(outage_length(random)).await;
        scene.cluster.start().await;
        true
    }
}

fn outage_length(random: &mut fastrand::Rng) -> Duration {
    Duration::from_secs(random.u64(1..=15))
}

/// Kills one process of the pods that `selector` matches. Returns the name of its pod.
async fn kill_one(
    scene: &Scene,
    namespace: &str,
    selector: &str,
    random: &mut fastrand::Rng,
) -> Option<String> {
    // Draws a number also without a process: later choices depend on the seed only.
    let chosen = random.usize(..);
    let mut processes = scene.cluster.processes(namespace, selector).await;
    if processes.is_empty() {
        return None;
    }
    let (pod, pid) = processes.swap_remove(chosen % processes.len());
    // Ignores an error: the process may have ended.
    let (killed, _) = scene.cluster.output("kill", &["-KILL", &pid], None).await;
    killed.then_some(pod)
}

/// Kills one of the replicas. Deletes its pod, because the kubelet would delay the restart of a container that was killed repeatedly.
async fn kill_operator(scene: &Scene, random: &mut fastrand::Rng) -> bool {
    let Some(pod) = kill_one(scene, NAMESPACE, SELECTOR, random).await else {
        return false;
    };
    let api: Api<Pod> = Api::namespaced(scene.cluster.client.clone(), NAMESPACE);
    let deleted = api.delete(&pod, &DeleteParams::default()).await;
    deleted.expect("delete the pod of the operator");
    true
}
