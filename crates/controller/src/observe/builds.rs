//! Builds in the watch cache, and their build Secrets. The state of a build is read from its pod: the Job status follows about a second later
//! (docs/development/rules.md, rule 4).

use std::sync::Arc;

use alustan_api::labels;
use alustan_api::report::Failure;
use alustan_api::{Reason, Terraform};
use alustan_core::objects::build_job::BUILD_CONTAINER;
use alustan_core::objects::prepare::{PREPARE_CONTAINER, PULL_CONTAINER};
use alustan_core::observed::{BuildSecretSeen, BuildSeen, BuildState};
use k8s_openapi::api::batch::v1::JobCondition;
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::context::Context;
use crate::observe::job_events::{is_late, no_pod};
use crate::observe::jobs::{timestamp, transition_time};
use crate::observe::pods::{pods, reported, scheduled_at, terminated, waiting_cause};
use crate::watch::cached::{CachedJob, CachedPod};
use crate::watch::keys::BuildSecretKey;
use crate::watch::mapping::is_build_secret_of;
use crate::watch::trim::CONTROLLER_UID;

/// Reason of the kubelet for a container that exceeded its memory limit.
const OUT_OF_MEMORY: &str = "OOMKilled";

/// A build. If the build failed and the pod status does not have the cause, also the name of the pod whose log has the cause.
pub(super) struct Build {
    pub(super) seen: BuildSeen,
    pub(super) log_of: Option<String>,
}

/// Returns the build Job `name`.
pub(super) fn build(ctx: &Context, namespace: &str, name: &str) -> Option<Build> {
    let job = ctx.mirrors.jobs.get(namespace, name)?;
    let uid = job.uid().unwrap_or_default();
    let mut pods = pods(ctx, namespace, name);
    // A repeated build has the name of the previous one, whose pod may still be terminating.
    pods.retain(|pod| pod.labels().get(CONTROLLER_UID) == Some(&uid));
    let pod = pods.first();
    let (state, log_of) = state_of(&job, pod);
    let seen = BuildSeen {
        job: name.to_owned(),
        created_at: timestamp(job.creation_timestamp().as_ref()),
        started_by: label(&job, labels::UID),
        pod_digest: label(&job, labels::POD_OPTIONS),
        has_pod: pod.is_some(),
        scheduled_at: pod.and_then(|pod| scheduled_at(pod)),
        has_build_secret: ctx
            .mirrors
            .secrets
            .get(namespace, name)
            .is_some_and(|secret| is_build_secret_of(&*secret, &uid)),
        uid,
        state,
    };
    Some(Build { seen, log_of })
}

/// Returns a label of `job`; empty if it is missing.
fn label(job: &CachedJob, key: &str) -> String {
    job.labels().get(key).cloned().unwrap_or_default()
}

/// If `build` is active and has no pod, adds to the state of the build why the Job controller has not created the pod.
pub(super) async fn with_pending_cause(ctx: &Context, namespace: &str, mut build: Build) -> Build {
    let seen = &mut build.seen;
    let has_no_pod = seen.state == BuildState::Active(None) && !seen.has_pod;
    if has_no_pod && is_late(seen.created_at, ctx.clock.now()) {
        seen.state = BuildState::Active(no_pod(&ctx.client, namespace, &seen.uid).await);
    }
    build
}

/// Returns the build Secrets of `tf`, and of earlier resources of the same name: those in the build namespace, and those in the namespace of
/// `tf`, which have a token of a GitHub App.
pub(super) fn build_secrets(ctx: &Context, tf: &Terraform) -> Vec<BuildSecretSeen> {
    let namespace = tf.namespace().unwrap_or_default();
    let key = |in_namespace: &str, resource_namespace: Option<&String>| BuildSecretKey {
        namespace: in_namespace.to_owned(),
        resource_namespace: resource_namespace.cloned(),
        resource: tf.name_any(),
    };
    // Only in the build namespace, the label with the namespace of the resource is trusted.
    let elsewhere = ctx.settings.builds_elsewhere(tf).then(|| {
        let build_namespace = ctx.settings.build_namespace_of(tf);
        key(build_namespace, Some(&namespace))
    });
    let keys = [key(&namespace, None)].into_iter().chain(elsewhere);
    let build_secrets = keys.flat_map(|key| ctx.mirrors.secrets.with(&key));
    let seen = build_secrets.map(|secret| {
        let name = secret.name_any();
        let namespace = secret.namespace().unwrap_or_default();
        let build = build(ctx, &namespace, &name)
            .filter(|build| is_build_secret_of(&*secret, &build.seen.uid));
        let is_active = |build: &Build| matches!(build.seen.state, BuildState::Active(_));
        BuildSecretSeen {
            namespace,
            uid: secret.uid().unwrap_or_default(),
            build_ended: !build.as_ref().is_some_and(is_active),
            name,
        }
    });
    seen.collect()
}

/// Returns the state of the build `job`. If the build failed and the pod status does not have the cause, also returns the name of the pod whose
/// log has the cause.
fn state_of(job: &CachedJob, pod: Option<&Arc<CachedPod>>) -> (BuildState, Option<String>) {
    let built = pod.and_then(|pod| terminated(pod, BUILD_CONTAINER));
    let prepared = pod.and_then(|pod| failed_to_prepare(pod));
    let mut log_of = None;
    let state = match (prepared, built) {
        (_, Some(end)) if end.exit_code == 0 => BuildState::Done(ended_at(end)),
        (Some(end), _) => {
            let failure = interruption(pod, end).unwrap_or_else(|| prepare_failure(end));
            BuildState::Failed(failure, ended_at(end))
        }
        (None, Some(end)) => {
            let known = interruption(pod, end);
            // Use only a termination message of the runner: a tenant may choose the kaniko image, which may write any message.
            let known = known.or_else(|| reported(end).filter(|_| job.builds_by_runner));
            log_of = pod.filter(|_| known.is_none()).map(|pod| pod.name_any());
            let failure = known.unwrap_or_else(|| builder_failure(end));
            BuildState::Failed(failure, ended_at(end))
        }
        (None, None) => match job.finished.as_deref() {
            Some(end) if end.type_ == "Complete" => BuildState::Done(transition_time(end)),
            Some(end) => BuildState::Failed(
                lost_build_failure(&job.name_any(), end),
                transition_time(end),
            ),
            None => BuildState::Active(pod.and_then(|pod| waiting_cause(pod))),
        },
    };
    (state, log_of)
}

/// Returns the termination state of the container that failed before the build container started: `pull` or `prepare`. The runner executes both
/// containers.
fn failed_to_prepare(pod: &CachedPod) -> Option<&ContainerStateTerminated> {
    [PULL_CONTAINER, PREPARE_CONTAINER]
        .into_iter()
        .filter_map(|container| terminated(pod, container))
        .find(|end| end.exit_code != 0)
}

/// Returns the failure of a container that was terminated by a drain, an eviction or the loss of its node.
fn interruption(pod: Option<&Arc<CachedPod>>, end: &ContainerStateTerminated) -> Option<Failure> {
    let pod = pod?;
    let disrupted = pod
        .conditions
        .iter()
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
        .map(|condition| condition.reason.clone().unwrap_or_default());
    let killed = (matches!(end.exit_code, 137 | 143)
        && end.reason.as_deref() != Some(OUT_OF_MEMORY))
    .then(|| format!("terminated by a signal, exit code {}", end.exit_code));
    let cause = pod.reason.clone().or(disrupted).or(killed)?;
    Some(Failure::transient(
        Reason::PodTerminated,
        format!("the build pod was terminated: {cause}"),
    ))
}

fn builder_failure(end: &ContainerStateTerminated) -> Failure {
    let reason = end.reason.as_deref().unwrap_or("Error");
    Failure::module(
        Reason::BuildFailed,
        format!(
            "the builder failed with exit code {} ({reason}){}",
            end.exit_code,
            memory_hint(end)
        ),
    )
}

/// Returns a message suffix if a container of a build exceeded its memory limit.
fn memory_hint(end: &ContainerStateTerminated) -> &'static str {
    if end.reason.as_deref() == Some(OUT_OF_MEMORY) {
        "; increase spec.containerRegistry.builder.pod.resources.limits.memory"
    } else {
        ""
    }
}

fn prepare_failure(end: &ContainerStateTerminated) -> Failure {
    reported(end).unwrap_or_else(|| {
        Failure::module(
            Reason::PrepareFailed,
            format!(
                "failed to prepare the module: exit code {} ({}){}",
                end.exit_code,
                end.reason.as_deref().unwrap_or("Error"),
                memory_hint(end)
            ),
        )
    })
}

/// Returns the failure of a build whose pod has no container status with the cause, for example because the pod was deleted.
fn lost_build_failure(name: &str, end: &JobCondition) -> Failure {
    let (reason, description) = if end.reason.as_deref() == Some("DeadlineExceeded") {
        (
            Reason::BuildTimedOut,
            "exceeded its deadline: the builder hung or is too slow",
        )
    } else {
        (
            Reason::PodTerminated,
            "failed without a container status: its pod was deleted or did not start",
        )
    };
    Failure::transient(reason, format!("build {name} {description}"))
}

fn ended_at(end: &ContainerStateTerminated) -> Timestamp {
    timestamp(end.finished_at.as_ref())
}

#[cfg(test)]
mod tests {
    use alustan_api::labels::Component;
    use serde_json::{Value, json};

    use super::*;
    use crate::context_builder::{ContextParts, context_of_test};
    use crate::fake_api;
    use crate::indexed_store::indexed_store;
    use crate::mirrors::Mirrors;
    use crate::visits;
    use crate::write_through_cache::WriteThroughCache;

    #[tokio::test]
    async fn reconcile_reads_no_build_secrets_of_other_tenants() {
        // Namespace of the Secret, label with the namespace of the resource.
        let secrets = [
            ("team", None),
            ("builds", Some("team")),
            ("team", Some("team")),
            ("builds", None),
            ("builds", Some("other")),
            ("other", Some("team")),
        ];
        let secrets = secrets.into_iter().enumerate().map(|(number, secret)| {
            let mut labels = labels::of("web", "u", Component::BuildSecret);
            let resource_namespace = secret.1.map(str::to_owned);
            labels.extend(resource_namespace.map(|label| (labels::NAMESPACE.to_owned(), label)));
            let name = format!("build-{number}");
            let metadata = json!({"name": name, "namespace": secret.0, "labels": labels});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        });
        let (store, mut writer) = indexed_store();
        writer.list(secrets);
        let mirrors = Mirrors {
            secrets: WriteThroughCache::new(store),
            ..Mirrors::empty()
        };
        let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
        let folder = tempfile::tempdir().unwrap();
        let parts = ContextParts::of_test(client);
        let ctx = context_of_test(parts, folder.path(), mirrors, indexed_store().0);
        let mut ctx = Arc::into_inner(ctx).unwrap();
        ctx.settings.build_namespace = Some("builds".to_owned());
        let tf = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "u"},
            "spec": {
                "gitRepo": {"url": "https://git.test/team/infra"},
                "containerRegistry": {"imageName": "registry.test/web"},
            },
        });
        let visited = visits::so_far();
        let seen = build_secrets(&ctx, &serde_json::from_value(tf).unwrap());
        let names: Vec<_> = seen.iter().map(|secret| &*secret.name).collect();
        assert_eq!(names, ["build-0", "build-1"]);
        assert_eq!(visits::so_far() - visited, 2);
    }

    #[test]
    fn termination_message_has_known_reasons_and_bounded_texts() {
        let failed = |reason: &str, message: &str| {
            let failure = json!({"class": "User", "reason": reason, "message": message});
            let end = ContainerStateTerminated {
                message: Some(json!({"failure": failure}).to_string()),
                ..ContainerStateTerminated::default()
            };
            prepare_failure(&end)
        };
        assert_eq!(failed("ProviderNotFound", "x").reason, "ProviderNotFound");
        let forged = failed("no reason\n", &format!("\u{1b}{}", "x".repeat(20_000)));
        assert_eq!(forged.reason, "Failed");
        assert!(forged.message.starts_with(" xx") && forged.message.len() <= 8_000);
    }

    #[test]
    fn failed_preparation_ends_a_build() {
        let ended = |container: &str, exit_code: i32| {
            let failure = json!({"class": "User", "reason": "PathNotFound", "message": container});
            let message = json!({"failure": failure}).to_string();
            json!({
                "name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": exit_code, "message": message}},
            })
        };
        let failure_message = |statuses: Value| {
            let pod = json!({"metadata": {}, "status": {"initContainerStatuses": statuses}});
            let pod: CachedPod = serde_json::from_value(pod).unwrap();
            failed_to_prepare(&pod).map(|end| prepare_failure(end).message)
        };
        assert_eq!(failure_message(json!([ended("inject", 1)])), None);
        assert_eq!(
            failure_message(json!([ended("pull", 1)])),
            Some("pull".to_owned())
        );
        let second = json!([ended("pull", 0), ended("prepare", 1)]);
        assert_eq!(failure_message(second), Some("prepare".to_owned()));
        let none = json!([ended("pull", 0), ended("prepare", 0)]);
        assert_eq!(failure_message(none), None);
    }

    /// Exit codes and failure reasons of the containers `prepare` and `build`, and the expected reason of the failed build. `None`: the build
    /// succeeds.
    #[test]
    fn outcome_of_a_build_by_append_has_the_cause() {
        for (prepare, build, expected) in [
            ((0, ""), (0, ""), None),
            // The build succeeds although container `prepare` was killed: the image was pushed.
            ((137, ""), (0, ""), None),
            (
                (1, "PathNotFound"),
                (1, "PathNotFound"),
                Some("PathNotFound"),
            ),
            ((2, ""), (1, "RegistryForbidden"), Some("PrepareFailed")),
            ((0, ""), (1, "RegistryForbidden"), Some("RegistryForbidden")),
        ] {
            let ended = |container: &str, (exit_code, reason): (i32, &str)| {
                let failure = json!({"class": "User", "reason": reason, "message": ""});
                let message = json!({"failure": failure}).to_string();
                let message = Some(message).filter(|_| !reason.is_empty());
                json!({
                    "name": container, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": exit_code, "message": message}},
                })
            };
            let statuses = [ended("build", build), ended("prepare", prepare)];
            let pod = json!({"metadata": {}, "status": {"containerStatuses": statuses}});
            let pod = Arc::new(serde_json::from_value(pod).unwrap());
            let container = json!({"name": "build", "args": ["build"]});
            let template = json!({"spec": {"containers": [container]}});
            let job = json!({"metadata": {}, "spec": {"template": template}});
            let job: CachedJob = serde_json::from_value(job).unwrap();
            let reason = match state_of(&job, Some(&pod)) {
                (BuildState::Done(_), None) => None,
                (BuildState::Failed(failure, _), None) => Some(failure.reason),
                other => panic!("{other:?}"),
            };
            assert_eq!(reason.as_deref(), expected);
        }
    }
}
