//! Pods in the watch cache, and their state according to container statuses.

use std::sync::Arc;

use alustan_api::labels::{Component, JOB_NAME};
use alustan_api::report::{Failure, PrepareReport};
use alustan_api::{ObjectKey, Reason, Terraform};
use alustan_core::model::progress;
use alustan_core::objects::build_job::BUILD_CONTAINER;
use alustan_core::objects::run_job::ENGINE_CONTAINER;
use alustan_core::observed::Waiting;
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::resource::{has_component, is_made_for};
use crate::watch::cached::{CachedContainer, CachedJob, CachedPod};
use crate::watch::keys::PodKey;

/// Returns the pods of Job `job` that belong to `tf`.
pub(super) fn own_pods(ctx: &Context, tf: &Terraform, job: &str) -> Vec<Arc<CachedPod>> {
    let mut pods = pods(ctx, &tf.namespace().unwrap_or_default(), job);
    pods.retain(|pod| is_made_for(tf, &**pod));
    pods
}

pub(super) fn pods(ctx: &Context, namespace: &str, job: &str) -> Vec<Arc<CachedPod>> {
    let key = PodKey::Job(ObjectKey::new(namespace, job));
    ctx.mirrors.pods.with(&key)
}

/// Returns the names of the run pods of the resource with this uid, in the namespace of `tf`, that have not ended.
pub(super) fn living_pods(ctx: &Context, tf: &Terraform, uid: &str) -> Vec<String> {
    let key = PodKey::Resource(tf.namespace().unwrap_or_default(), uid.to_owned());
    let pods = ctx.mirrors.pods.with(&key);
    let living = pods.iter().filter(|pod| is_living_run(pod));
    living.map(|pod| pod.name_any()).collect()
}

/// Whether `pod` is the pod of a run, and its engine container may still run.
pub(crate) fn is_living_run(pod: &CachedPod) -> bool {
    has_component(pod, Component::Run) && alive(pod)
}

/// Whether a pod of the Job `job` of `tf` may still run and hold the state lock.
pub(super) async fn has_living_pod(
    client: &Client,
    tf: &Terraform,
    job: &str,
) -> Result<bool, Error> {
    let api: Api<CachedPod> = Api::namespaced(client.clone(), &tf.namespace().unwrap_or_default());
    let parameters = ListParams::default().labels(&format!("{JOB_NAME}={job}"));
    let pods = call(
        &format!("list the pods of Job {job}"),
        api.list(&parameters),
    )
    .await?;
    Ok(pods
        .items
        .iter()
        .any(|pod| is_made_for(tf, pod) && alive(pod)))
}

/// Whether a pod of `job` [`lingers`].
pub(super) fn has_lingering_pod(ctx: &Context, job: &CachedJob) -> bool {
    let pods = pods(ctx, &job.namespace().unwrap_or_default(), &job.name_any());
    pods.iter().any(|pod| lingers(pod))
}

/// Whether the container of a run or a build has terminated, but another container of its pod still runs. Ignores native sidecars: they are init
/// containers, and the kubelet terminates them.
fn lingers(pod: &CachedPod) -> bool {
    let has_work_ended = engine_ended(pod) || terminated(pod, BUILD_CONTAINER).is_some();
    let mut states = pod
        .containers
        .iter()
        .filter_map(|container| container.state.as_ref());
    is_pending_or_running(pod) && has_work_ended && states.any(|state| state.terminated.is_none())
}

/// Whether the engine container of a run pod may still run.
pub(super) fn alive(pod: &CachedPod) -> bool {
    is_pending_or_running(pod) && !engine_ended(pod)
}

pub(super) fn engine_ended(pod: &CachedPod) -> bool {
    terminated(pod, ENGINE_CONTAINER).is_some()
}

fn is_pending_or_running(pod: &CachedPod) -> bool {
    !matches!(pod.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Returns the init containers and the containers of `pod`.
fn containers(pod: &CachedPod) -> impl Iterator<Item = &CachedContainer> {
    pod.init_containers.iter().chain(&pod.containers)
}

pub(super) fn terminated<'a>(
    pod: &'a CachedPod,
    container: &str,
) -> Option<&'a ContainerStateTerminated> {
    containers(pod)
        .find(|candidate| candidate.name == container)?
        .state
        .as_ref()?
        .terminated
        .as_ref()
}

/// Returns why a pod does not start. `ContainerCreating` is not a cause. The kubelet alternates between `ErrImagePull` and
/// `ImagePullBackOff` for an image that it cannot pull; both become `ImagePullBackOff`.
pub(super) fn waiting_cause(pod: &CachedPod) -> Option<Waiting> {
    let waiting = containers(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = match waiting.reason.as_deref()? {
            "ContainerCreating" | "PodInitializing" => return None,
            reason if reason == Reason::ErrImagePull.as_str() => Reason::ImagePullBackOff.as_str(),
            reason => reason,
        };
        Some(Waiting {
            reason: reason.to_owned(),
            message: waiting.message.clone().unwrap_or_default(),
        })
    });
    waiting.or_else(|| {
        let unscheduled = pod
            .conditions
            .iter()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
        let reason = unscheduled
            .reason
            .as_deref()
            .unwrap_or(Reason::Unschedulable.as_str());
        Some(Waiting {
            reason: reason.to_owned(),
            message: unscheduled.message.clone().unwrap_or_default(),
        })
    })
}

/// Returns the time at which `pod` was assigned to a node.
pub(super) fn scheduled_at(pod: &CachedPod) -> Option<Timestamp> {
    let scheduled = pod
        .conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")?;
    scheduled.last_transition_time.as_ref().map(|at| at.0)
}

/// Returns how a pod failed: its status reason, or the exit code of its first failed container.
pub(super) fn ended(pod: &CachedPod) -> Option<String> {
    if let Some(reason) = &pod.reason {
        return Some(format!(
            "{reason}: {}",
            pod.message.as_deref().unwrap_or_default()
        ));
    }
    containers(pod).find_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref()?;
        let reason = end.reason.as_deref().unwrap_or("Error");
        let report =
            reported(end).map(|failure| format!(": {}: {}", failure.reason, failure.message));
        let report = report.unwrap_or_default();
        (end.exit_code != 0).then(|| format!("{reason}, exit code {}{report}", end.exit_code))
    })
}

/// Parses the failure report in the termination message of a runner container. Module code may have written it.
pub(super) fn reported(end: &ContainerStateTerminated) -> Option<Failure> {
    let report: PrepareReport = serde_json::from_str(end.message.as_deref()?).ok()?;
    Some(progress::failure(report.failure))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api;
    use alustan_api::labels;

    /// Returns a pod with phase `Running`. `containers` and `init_containers` have the states of its containers, by name.
    fn pod(containers: Value, init_containers: Value) -> CachedPod {
        let statuses = |states: Value| -> Vec<Value> {
            let named = states.as_object().unwrap().clone().into_iter();
            let status = |(name, state): (String, Value)| {
                let state = match state.as_str().unwrap() {
                    "terminated" => json!({"terminated": {"exitCode": 0}}),
                    state => json!({state: {}}),
                };
                json!({
                    "name": name, "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                })
            };
            named.map(status).collect()
        };
        let status = json!({
            "phase": "Running", "containerStatuses": statuses(containers),
            "initContainerStatuses": statuses(init_containers),
        });
        serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
    }

    #[test]
    fn a_run_is_over_when_its_engine_container_has_terminated() {
        let none = json!({});
        let cases = [
            (json!({"terraform": "running"}), none.clone(), (true, false)),
            (
                json!({"terraform": "terminated"}),
                none.clone(),
                (false, false),
            ),
            (
                json!({"terraform": "waiting"}),
                json!({"prepare": "running"}),
                (true, false),
            ),
            (
                json!({"terraform": "running", "proxy": "running"}),
                none.clone(),
                (true, false),
            ),
            (
                json!({"terraform": "running", "proxy": "terminated"}),
                none.clone(),
                (true, false),
            ),
            (
                json!({"terraform": "terminated", "proxy": "running"}),
                none.clone(),
                (false, true),
            ),
            (
                json!({"terraform": "terminated", "proxy": "waiting"}),
                none.clone(),
                (false, true),
            ),
            (
                json!({"terraform": "terminated"}),
                json!({"proxy": "running"}),
                (false, false),
            ),
            (
                json!({"build": "terminated", "proxy": "running"}),
                none,
                (true, true),
            ),
        ];
        for (containers, init_containers, wanted) in cases {
            let pod = pod(containers.clone(), init_containers);
            assert_eq!((alive(&pod), lingers(&pod)), wanted, "{containers}");
        }
    }

    #[test]
    fn pod_has_a_node_once_it_is_scheduled() {
        let at: Timestamp = "2026-01-01T00:25:00Z".parse().unwrap();
        for (is_scheduled, wanted) in [("False", None), ("True", Some(at))] {
            let condition =
                json!({"type": "PodScheduled", "status": is_scheduled, "lastTransitionTime": at});
            let pod = json!({"metadata": {}, "status": {"conditions": [condition]}});
            let pod: CachedPod = serde_json::from_value(pod).unwrap();
            assert_eq!(scheduled_at(&pod), wanted);
        }
    }

    async fn observe_pods(pods: &'static [(&'static str, &'static str)]) -> (bool, String) {
        let (client, requests) = fake_api::serve(move |_| {
            let pod = |(uid, phase): &(&str, &str)| {
                json!({
                    "metadata": {"name": phase, "namespace": "team", "labels": {labels::UID: uid}},
                    "status": {"phase": phase},
                })
            };
            let pods: Vec<_> = pods.iter().map(pod).collect();
            fake_api::list(&pods)
        })
        .await;
        let tf = json!({
            "apiVersion": "alustan.io/v1alpha1",
            "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "uid-of-web"},
            "spec": {"gitRepo": {"url": "https://git.test/web"}, "containerRegistry": {"imageName": "registry.test/web"}},
        });
        let tf: Terraform = serde_json::from_value(tf).unwrap();
        let has_living_pod = has_living_pod(&client, &tf, "web-apply-1").await.unwrap();
        let uri = requests.lock()[0].uri.clone();
        (has_living_pod, uri)
    }

    #[tokio::test]
    async fn run_of_a_deleted_job_is_alive_while_its_pod_runs() {
        let living = &[("uid-of-web", "Failed"), ("uid-of-web", "Running")];
        let (has_living_pod, uri) = observe_pods(living).await;
        assert!(has_living_pod);
        assert!(uri.starts_with("/api/v1/namespaces/team/pods?"), "{uri}");
        assert!(uri.contains("job-name%3Dweb-apply-1"), "{uri}");
        let ended = &[("uid-of-web", "Failed"), ("uid-of-web", "Succeeded")];
        assert!(!observe_pods(ended).await.0);
        let of_another = &[("uid-of-another", "Running")];
        assert!(!observe_pods(of_another).await.0);
        assert!(!observe_pods(&[]).await.0);
    }
}
