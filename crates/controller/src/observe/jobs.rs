//! Jobs and pods in the watch cache. The state of a build is read from its pod: the Job status follows about a second later
//! (docs/development/rules.md, rule 4).

use std::collections::BTreeMap;
use std::sync::Arc;

use alustan_api::labels::{self, Component};
use alustan_api::report::{Failure, PrepareReport};
use alustan_api::run::RunKind;
use alustan_api::{Reason, Terraform, names};
use alustan_core::model::{admission, progress};
use alustan_core::objects::build_job::BUILD_CONTAINER;
use alustan_core::objects::prepare::{PREPARE_CONTAINER, PULL_CONTAINER};
use alustan_core::objects::run_job::ENGINE_CONTAINER;
use alustan_core::observed::{BuildSecretSeen, BuildSeen, BuildState, JobSeen, OwnJob, Waiting};
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{
    Container, ContainerStateTerminated, ContainerStatus, Pod, Secret,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tracing::debug;

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::resource::is_made_for;
use crate::watch::mapping::{is_build_secret, is_build_secret_of};
use crate::watch::trim::{CONTROLLER_UID, JOB_NAME};

/// Age of a Job without a pod after which its events are read. Shorter than the delay until status reports a missing pod.
const POD_CREATION_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);

/// Maximum number of events of a Job that are read.
const MAX_EVENTS: u32 = 100;

/// Returns the Job `name` of the current run, if it belongs to `tf`. If a pod has `claimed` the run, reads the Job, and then its pods, from the
/// API server if the watch caches do not have them: a stale cache must not make the operator report the run as lost.
pub(super) async fn run(
    ctx: &Context,
    tf: &Terraform,
    name: &str,
    claimed: bool,
) -> Result<Option<JobSeen>, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let pods = own_pods(ctx, tf, name);
    let pods_alive = pods.iter().any(|pod| alive(pod));
    let mut job = ctx.mirrors.jobs.get(&namespace, name);
    if job.is_none() && claimed {
        let api: Api<Job> = Api::namespaced(ctx.client.clone(), &namespace);
        job = call(&format!("read Job {name}"), api.get_opt(name))
            .await?
            .map(Arc::new);
    }
    let job = job.filter(|job| is_made_for(tf, &**job));
    let has_engine_ended = !pods_alive && pods.iter().any(|pod| engine_ended(pod));
    let Some(job) = job else {
        let pods_alive = pods_alive || (claimed && has_living_pod(&ctx.client, tf, name).await?);
        return Ok(pods_alive.then(|| JobSeen {
            uid: String::new(),
            finished: true,
            has_pod: true,
            scheduled_at: None,
            pods_alive,
            waiting: None,
            ended: None,
        }));
    };
    let uid = job.uid().unwrap_or_default();
    let mut waiting = pods.iter().find_map(|pod| waiting_cause(pod));
    let created_at = timestamp(job.creation_timestamp().as_ref());
    if pods.is_empty() && !finished(&job) && is_late(created_at, ctx.clock.now()) {
        waiting = no_pod(&ctx.client, &namespace, &uid).await;
    }
    Ok(Some(JobSeen {
        uid,
        finished: finished(&job) || has_engine_ended,
        has_pod: !pods.is_empty(),
        scheduled_at: pods.iter().filter_map(|pod| scheduled_at(pod)).max(),
        pods_alive,
        waiting,
        ended: pods.iter().find_map(|pod| ended(pod)),
    }))
}

/// Whether the watch caches have the Job `name` of `tf`, or a pod of this Job whose engine container may still run.
pub(super) fn exists(ctx: &Context, tf: &Terraform, name: &str) -> bool {
    let namespace = tf.namespace().unwrap_or_default();
    let job = ctx.mirrors.jobs.get(&namespace, name);
    job.is_some_and(|job| is_made_for(tf, &*job))
        || own_pods(ctx, tf, name).iter().any(|pod| alive(pod))
}

/// Whether the Job controller should have created a pod by now.
fn is_late(created_at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(created_at) >= POD_CREATION_TIMEOUT
}

/// Returns why the Job controller failed to create a pod for the Job `uid`, from its latest event. `None` if no such event exists, or if the operator
/// may not list events. Without a cause, the status refers to `kubectl describe`.
async fn no_pod(client: &Client, namespace: &str, uid: &str) -> Option<Waiting> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = format!("regarding.uid={uid},reason=FailedCreate");
    let parameters = ListParams::default().fields(&selector).limit(MAX_EVENTS);
    let events = call("list the events of a Job", api.list(&parameters)).await;
    let events = events.inspect_err(|error| {
        debug!(
            error = error.chain(),
            "cannot determine why the Job has no pod"
        );
    });
    let latest = events.ok()?.items.into_iter().max_by_key(|event| {
        let at = event.deprecated_last_timestamp.as_ref().map(|at| at.0);
        at.max(event.event_time.as_ref().map(|at| at.0))
    });
    Some(admission::no_pod(&latest?.note?))
}

/// Whether a pod of the Job `job` of `tf` may still run and hold the state lock.
async fn has_living_pod(client: &Client, tf: &Terraform, job: &str) -> Result<bool, Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &tf.namespace().unwrap_or_default());
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

/// Returns the run Jobs of `tf` by run number, including deleted Jobs with a pod whose engine container may still run.
pub(super) fn own_jobs(ctx: &Context, tf: &Terraform) -> BTreeMap<i64, OwnJob> {
    let pods = ctx.mirrors.pods.filter(|pod| {
        is_made_for(tf, pod) && has_component(pod.labels(), Component::Run) && alive(pod)
    });
    let jobs = ctx
        .mirrors
        .jobs
        .filter(|job| is_made_for(tf, job) && has_component(job.labels(), Component::Run));
    let jobs_of_pods = pods.iter().filter_map(|pod| {
        Some(OwnJob {
            name: pod.labels().get(JOB_NAME)?.clone(),
            uid: pod.labels().get(CONTROLLER_UID)?.clone(),
            finished: false,
            lingers: false,
        })
    });
    let existing_jobs = jobs.iter().map(|job| {
        let lingers = !finished(job) && has_lingering_pod(ctx, job);
        OwnJob {
            name: job.name_any(),
            uid: job.uid().unwrap_or_default(),
            finished: finished(job) || lingers,
            lingers,
        }
    });
    jobs_of_pods
        .chain(existing_jobs)
        .filter_map(|job| Some((run_number(tf, &job.name)?, job)))
        .collect()
}

/// Returns the names of the run pods of the resource with this uid, in the namespace of `tf`, that have not ended.
pub(super) fn living_pods(ctx: &Context, tf: &Terraform, uid: &str) -> Vec<String> {
    let pods = ctx.mirrors.pods.filter(|pod| {
        let is_theirs = pod
            .labels()
            .get(labels::UID)
            .is_some_and(|value| value == uid);
        is_theirs
            && pod.namespace() == tf.namespace()
            && has_component(pod.labels(), Component::Run)
            && alive(pod)
    });
    pods.iter().map(|pod| pod.name_any()).collect()
}

/// Returns the run number of the Job with this name, if the name is that of a run of `tf`.
fn run_number(tf: &Terraform, job: &str) -> Option<i64> {
    let number = job.rsplit_once('-')?.1.parse().ok()?;
    let kinds = [
        RunKind::Plan,
        RunKind::Apply,
        RunKind::Drift,
        RunKind::Destroy,
    ];
    let ours = |kind| names::run_job(&tf.name_any(), kind, number) == job;
    kinds.into_iter().any(ours).then_some(number)
}

/// Whether `job` is a run or build that has not ended. A Job with a pod that [`lingers`] counts as ended.
pub(crate) fn is_running(ctx: &Context, job: &Job) -> bool {
    let kinds = [Component::Run, Component::Build];
    let is_ours = kinds
        .into_iter()
        .any(|kind| has_component(job.labels(), kind));
    is_ours && !finished(job) && !has_lingering_pod(ctx, job)
}

/// Whether `pod` is the pod of a run, and its engine container may still run.
pub(crate) fn is_living_run(pod: &Pod) -> bool {
    has_component(pod.labels(), Component::Run) && alive(pod)
}

fn has_lingering_pod(ctx: &Context, job: &Job) -> bool {
    let pods = pods(ctx, &job.namespace().unwrap_or_default(), &job.name_any());
    pods.iter().any(|pod| lingers(pod))
}

/// Whether the container of a run or a build has terminated, but another container of its pod still runs. Ignores native sidecars: they are init
/// containers, and the kubelet terminates them.
fn lingers(pod: &Pod) -> bool {
    let has_work_ended = engine_ended(pod) || terminated(pod, BUILD_CONTAINER).is_some();
    let containers = pod
        .status
        .iter()
        .flat_map(|status| &status.container_statuses);
    let mut states = containers
        .flatten()
        .filter_map(|container| container.state.as_ref());
    is_pending_or_running(pod) && has_work_ended && states.any(|state| state.terminated.is_none())
}

fn has_component(labels: &BTreeMap<String, String>, component: Component) -> bool {
    let label = labels.get(labels::COMPONENT);
    label.is_some_and(|value| value == component.as_str())
}

/// A build. If the build failed and the pod status does not have the cause, also the name of the pod whose log has the cause.
pub(super) struct Build {
    pub(super) seen: BuildSeen,
    pub(super) log_of: Option<String>,
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

/// Returns the state of the build `job`. If the build failed and the pod status does not have the cause, also returns the name of the pod whose
/// log has the cause.
fn state_of(job: &Job, pod: Option<&Arc<Pod>>) -> (BuildState, Option<String>) {
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
            let known = known.or_else(|| reported(end).filter(|_| builds_by_runner(job)));
            log_of = pod.filter(|_| known.is_none()).map(|pod| pod.name_any());
            let failure = known.unwrap_or_else(|| builder_failure(end));
            BuildState::Failed(failure, ended_at(end))
        }
        (None, None) => match finished_condition(job) {
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

/// Whether the builder is the runner (`builder.kind: Append`).
fn builds_by_runner(job: &Job) -> bool {
    let pod = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let by_runner =
        |container: &Container| container.args.as_deref() == Some(&["build".to_owned()]);
    containers.any(by_runner)
}

/// Returns the build Secrets of `tf`, and of earlier resources of the same name.
pub(super) fn build_secrets(ctx: &Context, tf: &Terraform) -> Vec<BuildSecretSeen> {
    let namespace = ctx.settings.build_namespace_of(tf);
    let belongs_to_tf = |secret: &Secret| {
        let labels = secret.labels();
        is_build_secret(secret)
            && secret.metadata.namespace.as_deref() == Some(namespace)
            && labels.get(labels::NAMESPACE) == tf.metadata.namespace.as_ref()
            && labels.get(labels::NAME) == tf.metadata.name.as_ref()
    };
    let build_secrets = ctx.mirrors.secrets.filter(belongs_to_tf);
    let seen = build_secrets.iter().map(|secret| {
        let name = secret.name_any();
        let build = build(ctx, namespace, &name)
            .filter(|build| is_build_secret_of(&**secret, &build.seen.uid));
        let is_active = |build: &Build| matches!(build.seen.state, BuildState::Active(_));
        BuildSecretSeen {
            namespace: namespace.to_owned(),
            uid: secret.uid().unwrap_or_default(),
            build_ended: !build.as_ref().is_some_and(is_active),
            name,
        }
    });
    seen.collect()
}

/// Returns the failure of a container that was terminated by a drain, an eviction or the loss of its node.
fn interruption(pod: Option<&Arc<Pod>>, end: &ContainerStateTerminated) -> Option<Failure> {
    let status = pod?.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let disrupted = conditions
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
        .map(|condition| condition.reason.clone().unwrap_or_default());
    let killed = (matches!(end.exit_code, 137 | 143) && end.reason.as_deref() != Some("OOMKilled"))
        .then(|| format!("terminated by a signal, exit code {}", end.exit_code));
    let cause = status.reason.clone().or(disrupted).or(killed)?;
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
            "the builder failed with exit code {} ({reason})",
            end.exit_code
        ),
    )
}

fn prepare_failure(end: &ContainerStateTerminated) -> Failure {
    reported(end).unwrap_or_else(|| {
        Failure::module(
            Reason::PrepareFailed,
            format!(
                "failed to prepare the module: exit code {} ({})",
                end.exit_code,
                end.reason.as_deref().unwrap_or("Error")
            ),
        )
    })
}

/// Parses the failure report in the termination message of a runner container. Module code may have written it.
fn reported(end: &ContainerStateTerminated) -> Option<Failure> {
    let report: PrepareReport = serde_json::from_str(end.message.as_deref()?).ok()?;
    Some(progress::failure(report.failure))
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

fn timestamp(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

fn ended_at(end: &ContainerStateTerminated) -> Timestamp {
    timestamp(end.finished_at.as_ref())
}

fn transition_time(end: &JobCondition) -> Timestamp {
    timestamp(end.last_transition_time.as_ref())
}

/// Returns the condition `Complete` or `Failed` of a finished Job.
fn finished_condition(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    })
}

/// Whether `job` has condition `Complete` or `Failed`.
pub(crate) fn finished(job: &Job) -> bool {
    finished_condition(job).is_some()
}

/// Returns the pods of Job `job` that belong to `tf`.
fn own_pods(ctx: &Context, tf: &Terraform, job: &str) -> Vec<Arc<Pod>> {
    let mut pods = pods(ctx, &tf.namespace().unwrap_or_default(), job);
    pods.retain(|pod| is_made_for(tf, &**pod));
    pods
}

fn pods(ctx: &Context, namespace: &str, job: &str) -> Vec<Arc<Pod>> {
    ctx.mirrors.pods.filter(|pod| {
        pod.metadata.namespace.as_deref() == Some(namespace)
            && pod.labels().get(JOB_NAME).is_some_and(|name| name == job)
    })
}

/// Whether the engine container of a run pod may still run.
fn alive(pod: &Pod) -> bool {
    is_pending_or_running(pod) && !engine_ended(pod)
}

fn engine_ended(pod: &Pod) -> bool {
    terminated(pod, ENGINE_CONTAINER).is_some()
}

fn is_pending_or_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    })
}

fn terminated<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStateTerminated> {
    statuses(pod)
        .find(|status| status.name == container)?
        .state
        .as_ref()?
        .terminated
        .as_ref()
}

/// Returns the termination state of the container that failed before the build container started: `pull` or `prepare`. The runner executes both
/// containers.
fn failed_to_prepare(pod: &Pod) -> Option<&ContainerStateTerminated> {
    [PULL_CONTAINER, PREPARE_CONTAINER]
        .into_iter()
        .filter_map(|container| terminated(pod, container))
        .find(|end| end.exit_code != 0)
}

/// Returns why a pod does not start. `ContainerCreating` is not a cause. The kubelet alternates between `ErrImagePull` and
/// `ImagePullBackOff` for an image that it cannot pull; both become `ImagePullBackOff`.
fn waiting_cause(pod: &Pod) -> Option<Waiting> {
    let waiting = statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
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
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let unscheduled = conditions
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
fn scheduled_at(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")?;
    scheduled.last_transition_time.as_ref().map(|at| at.0)
}

/// Returns how a pod failed: its status reason, or the exit code of its first failed container.
fn ended(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if let Some(reason) = &status.reason {
        return Some(format!(
            "{reason}: {}",
            status.message.as_deref().unwrap_or_default()
        ));
    }
    statuses(pod).find_map(|status| {
        let end = status.state.as_ref()?.terminated.as_ref()?;
        let reason = end.reason.as_deref().unwrap_or("Error");
        let report =
            reported(end).map(|failure| format!(": {}: {}", failure.reason, failure.message));
        let report = report.unwrap_or_default();
        (end.exit_code != 0).then(|| format!("{reason}, exit code {}{report}", end.exit_code))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api;

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

    /// Returns a pod with phase `Running`. `containers` and `init_containers` have the states of its containers, by name.
    fn pod(containers: Value, init_containers: Value) -> Pod {
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
            let pod: Pod = serde_json::from_value(pod).unwrap();
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
            let job: Job = serde_json::from_value(job).unwrap();
            let reason = match state_of(&job, Some(&pod)) {
                (BuildState::Done(_), None) => None,
                (BuildState::Failed(failure, _), None) => Some(failure.reason),
                other => panic!("{other:?}"),
            };
            assert_eq!(reason.as_deref(), expected);
        }
    }

    #[test]
    fn pod_has_a_node_once_it_is_scheduled() {
        let at: Timestamp = "2026-01-01T00:25:00Z".parse().unwrap();
        for (is_scheduled, wanted) in [("False", None), ("True", Some(at))] {
            let condition =
                json!({"type": "PodScheduled", "status": is_scheduled, "lastTransitionTime": at});
            let pod = json!({"metadata": {}, "status": {"conditions": [condition]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
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

    #[tokio::test]
    async fn at_most_100_events_of_a_job_are_read() {
        let (client, requests) = fake_api::serve(|_| fake_api::list(&[])).await;
        assert_eq!(no_pod(&client, "team", "uid-of-job").await, None);
        let uri = requests.lock()[0].uri.clone();
        assert!(uri.contains("limit=100"), "{uri}");
    }
}
