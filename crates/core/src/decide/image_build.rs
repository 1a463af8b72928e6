//! Lookup of the runner image in the registry, and builds of missing images.

use alustan_api::report::{Failure, RunResult};
use alustan_api::run::{Failures, History};
use alustan_api::{BuilderKind, Reason, State, Terraform, names};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::decide::cache_mount::{self, PodRequest};
use crate::decide::case::ReconcileCase;
use crate::decide::{approval, retry, run_result, start_run};
use crate::digest;
use crate::model::cache_location::CacheMount;
use crate::model::image::{self, ImagePlan};
use crate::model::pod_wait::{self, NO_POD_TIMEOUT, startup_since, startup_timeout};
use crate::model::summary::{
    Summary, format_time, logs_in, query_failure, retries_exhausted, retry_summary,
};
use crate::model::{facts, pod_options, pull_secret};
use crate::objects::build_job::{self, Build};
use crate::objects::secrets;
use crate::observed::{Answer, BuildSeen, BuildState, Seen, SourceSeen, Waiting};
use crate::settings::Settings;
use crate::step::{Object, Step, Swap};

/// Maximum time from the push of an image until the registry returns the digest of the image.
const DIGEST_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// Availability of an image.
#[derive(Clone)]
pub(super) enum ImageAvailability {
    /// In the registry, with this digest.
    Ready(String),
    /// Not in the registry yet.
    Missing(Box<MissingImage>),
}

/// Steps that build a missing image, and the summary for status.
#[derive(Clone)]
pub(super) struct MissingImage {
    /// Writes that are executed at once, without a slot.
    pub(super) steps: Vec<Step>,
    /// Writes that start a build, once a slot is free.
    pub(super) start: Vec<Step>,
    /// Summary for status.
    pub(super) summary: Summary,
    /// The new history, if a failed build or a requested retry changed it.
    pub(super) history: Option<History>,
}

fn missing(steps: Vec<Step>, summary: Summary) -> ImageAvailability {
    ImageAvailability::Missing(Box::new(MissingImage {
        steps,
        start: Vec::new(),
        summary,
        history: None,
    }))
}

/// Returns the reference of the runner image of `tf` with `digest`.
pub(super) fn image_by_digest(tf: &Terraform, digest: &str) -> String {
    format!("{}@{digest}", image::repository(tf))
}

/// Returns the image for `plan`: available, being built, or to be built.
pub(super) fn image(
    case: &ReconcileCase<'_>,
    source: &SourceSeen,
    plan: &ImagePlan,
) -> ImageAvailability {
    match &case.image.digest {
        Answer::Known(Some(digest)) => ImageAvailability::Ready(digest.clone()),
        Answer::Known(None) => build(case, source, plan),
        Answer::Pending => missing(Vec::new(), image_lookup()),
        Answer::Failed {
            failure, retry_at, ..
        } => match &case.image.build {
            Some(build) if failure.reason == Reason::ImageMissing => {
                missing_after_build(case, plan, build, failure, *retry_at)
            }
            _ => missing(Vec::new(), query_failure(failure, *retry_at, case.now)),
        },
    }
}

/// Returns the summary of a pending query for the digest of the runner image.
pub(super) fn image_lookup() -> Summary {
    Summary::busy(
        State::Building,
        Reason::ImageLookup,
        "looking up the runner image in the registry",
    )
}

/// Handles a successful `build` whose image is not in the registry. After [`DIGEST_TIMEOUT`], the build is handled as failed.
fn missing_after_build(
    case: &ReconcileCase<'_>,
    plan: &ImagePlan,
    build: &BuildSeen,
    failure: &Failure,
    retry_at: Timestamp,
) -> ImageAvailability {
    let deadline = match build.state {
        BuildState::Done(at) => at + DIGEST_TIMEOUT,
        BuildState::Active(_) | BuildState::Failed(..) => case.now,
    };
    if case.now >= deadline {
        return failed_build(case, plan, build, failure, case.now);
    }
    let waiting = Summary {
        requeue_at: Some(deadline),
        ..query_failure(failure, retry_at, case.now)
    };
    missing(Vec::new(), waiting)
}

/// Returns the key under which failures of a build are counted. It contains the image tag, the digests of credentials and pod options, and
/// the builder: after a change of one of them, the count starts again.
fn failure_key(case: &ReconcileCase<'_>, plan: &ImagePlan) -> String {
    let inputs = case.seen.inputs.as_ref().ok();
    let docker = inputs.and_then(|inputs| inputs.docker_config.as_ref());
    let tokens = inputs
        .map(|inputs| &inputs.registry_tokens)
        .filter(|tokens| !tokens.is_empty());
    let credentials = match tokens {
        Some(tokens) => digest::keyed(&case.record.key, &(docker, tokens)),
        None => digest::keyed(&case.record.key, &docker),
    };
    let short_digest: String = credentials.chars().take(12).collect();
    let registry = &case.tf.spec.container_registry;
    let image = registry
        .builder
        .as_ref()
        .and_then(|builder| builder.image.as_deref());
    let suffix = match case.settings.builder_of(case.tf) {
        BuilderKind::Append => " by append".to_owned(),
        BuilderKind::Kaniko => image
            .map(|image| format!(" by {image}"))
            .unwrap_or_default(),
    };
    let pod_digest = pod_options::digest(&pod_options::of_build(case.tf, case.settings));
    pod_options::with_digest(
        format!("{} with {short_digest}{suffix}", plan.tag),
        &pod_digest,
    )
}

fn build(case: &ReconcileCase<'_>, source: &SourceSeen, plan: &ImagePlan) -> ImageAvailability {
    let failures = &case.history.build_failures;
    if facts::asked(case.tf, &case.history) && failures.of == failure_key(case, plan) {
        return reset_failures(case);
    }
    let Some(build) = &case.image.build else {
        return start_build(case, source, plan);
    };
    match &build.state {
        BuildState::Active(waiting) => active_build(case, plan, build, waiting.as_ref()),
        BuildState::Done(_) => missing(
            Vec::new(),
            Summary::busy(
                State::Building,
                Reason::ImageLookup,
                "the build has ended; looking up the runner image in the registry",
            ),
        ),
        BuildState::Failed(failure, at) => failed_build(case, plan, build, failure, *at),
    }
}

/// Returns the decision for an active build. A build that cannot start fails after the startup timeout.
fn active_build(
    case: &ReconcileCase<'_>,
    plan: &ImagePlan,
    build: &BuildSeen,
    waiting: Option<&Waiting>,
) -> ImageAvailability {
    let no_pod = (!build.has_pod && case.now >= build.created_at + NO_POD_TIMEOUT)
        .then(|| pod_wait::no_pod(case.settings.build_namespace_of(case.tf), &build.job));
    let logs = logs_of_build(case, &build.job);
    // The build Secret is created after the Job, its owner. If the operator stopped between these two writes, this reconcile creates the
    // Secret.
    let is_own = case.tf.metadata.uid.as_ref() == Some(&build.started_by);
    // The Secret of a build in the own namespace has the token of the resource that started the build.
    let may_create_secret = is_own || case.settings.builds_elsewhere(case.tf);
    let secret_step = (!build.has_build_secret && may_create_secret)
        .then(|| create_build_secret(case, plan))
        .flatten();
    let secret_step = Vec::from_iter(secret_step);
    let Some(obstacle) = waiting.cloned().or(no_pod) else {
        let deadline = build.created_at + NO_POD_TIMEOUT;
        let requeue_at = Some(deadline).filter(|deadline| !build.has_pod && case.now < *deadline);
        let active = Summary {
            requeue_at,
            ..building(&logs)
        };
        return missing(secret_step, active);
    };
    let pod_digest = pod_options::digest(&pod_options::of_build(case.tf, case.settings));
    if is_own && build.pod_digest != pod_digest {
        let delete = Step::DeleteJob {
            namespace: case.settings.build_namespace_of(case.tf).to_owned(),
            name: build.job.clone(),
            uid: build.uid.clone(),
        };
        let message = format!(
            "the build of the runner image cannot start: {obstacle}; its pod options changed, so it \
             is started again"
        );
        return missing(
            vec![delete],
            Summary::busy(State::Building, Reason::Retrying, message),
        );
    }
    let since = startup_since(build.created_at, build.scheduled_at, case.now);
    let deadline = since + startup_timeout(&obstacle, case.settings);
    let message = format!("the build of the runner image cannot start: {obstacle}");
    if case.now >= deadline {
        let failure = Failure::transient(obstacle.reason, message);
        return failed_build(case, plan, build, &failure, case.now);
    }
    let message = format!(
        "{message}; if the pod does not start by {}, the build is retried; logs: {logs}",
        format_time(deadline)
    );
    let blocked = Summary {
        requeue_at: Some(deadline),
        ..Summary::blocked(State::Building, &obstacle.reason, message)
    };
    missing(secret_step, blocked)
}

fn logs_of_build(case: &ReconcileCase<'_>, job: &str) -> String {
    let logs = logs_in(case.settings.build_namespace_of(case.tf), job);
    format!("{logs} --all-containers")
}

/// Returns the step that creates the build Secret: the credentials for a build of `plan` in another namespace, and the token of the GitHub
/// App. `None` if the build needs no credentials, or while the token is unknown.
fn create_build_secret(case: &ReconcileCase<'_>, plan: &ImagePlan) -> Option<Step> {
    let job = names::build_job(&plan.tag);
    let token = case.image.git_token.as_ref().and_then(Answer::value);
    if token.is_none() && case.tf.spec.github_app().is_some() {
        return None;
    }
    let secret = secrets::build_secret(case.tf, &job, case.seen.found(), token, case.settings);
    Some(Step::CreateBuildSecret(Box::new(secret?)))
}

/// Returns the summary while the token of the GitHub App is unknown. `None` if the build can start.
fn token_wait(case: &ReconcileCase<'_>) -> Option<Summary> {
    case.tf.spec.github_app()?;
    match &case.image.git_token {
        Some(Answer::Known(_) | Answer::Failed { last: Some(_), .. }) => None,
        Some(Answer::Failed {
            failure, retry_at, ..
        }) => Some(query_failure(failure, *retry_at, case.now)),
        Some(Answer::Pending) | None => Some(Summary::busy(
            State::Building,
            Reason::Building,
            "requesting a token of the GitHub App of spec.gitRepo.githubApp",
        )),
    }
}

/// Returns the steps that delete the build Secrets of ended builds. Build Secrets are also deleted if the image is no longer needed.
pub(super) fn delete_build_secrets(seen: &Seen) -> impl Iterator<Item = Step> {
    let ended = seen
        .build_secrets
        .iter()
        .filter(|secret| secret.build_ended);
    ended.map(|secret| Step::DeleteBuildSecret(Box::new(secret.clone())))
}

/// Refuses `containerRegistry.serviceAccountName` if images are built in another namespace, because every resource could then use every
/// ServiceAccount of the build namespace.
fn service_account_unsupported(tf: &Terraform, settings: &Settings) -> Option<Summary> {
    let account = tf.spec.container_registry.service_account_name.as_ref()?;
    settings.builds_elsewhere(tf).then(|| {
        let message = format!(
            "spec.containerRegistry.serviceAccountName: builds run in namespace {} \
             (--build-namespace) and cannot use ServiceAccount {account} of namespace {}; set \
             spec.containerRegistry.secretRef instead",
            settings.build_namespace_of(tf),
            tf.metadata.namespace.as_deref().unwrap_or_default()
        );
        Summary::stalled(Reason::BuildServiceAccountUnsupported, message)
    })
}

fn building(logs: &str) -> Summary {
    let message = format!("building the runner image; logs: {logs}");
    Summary::busy(State::Building, Reason::Building, message)
}

/// Handles `failure` of `build`: counts the failure once per Job, and deletes the Job when the retry is due.
fn failed_build(
    case: &ReconcileCase<'_>,
    plan: &ImagePlan,
    build: &BuildSeen,
    failure: &Failure,
    at: Timestamp,
) -> ImageAvailability {
    let history = &case.history;
    let failure_key = failure_key(case, plan);
    let previous = &history.build_failures;
    let counted = previous.job_uid.as_deref() == Some(&build.uid);
    let failures = if counted {
        previous.clone()
    } else {
        let uid = Some(build.uid.clone());
        run_result::count(previous, &failure_key, Some(failure), uid, at.min(case.now))
    };
    let verdict = retry::verdict(&failures, &failure_key, &case.tf.spec.retry, case.now);
    let steps = match verdict {
        retry::Verdict::Go => vec![Step::DeleteJob {
            namespace: case.settings.build_namespace_of(case.tf).to_owned(),
            name: build.job.clone(),
            uid: build.uid.clone(),
        }],
        retry::Verdict::WaitUntil(_) | retry::Verdict::Stalled => Vec::new(),
    };
    let hint = format!("; see {}", logs_of_build(case, &build.job));
    ImageAvailability::Missing(Box::new(MissingImage {
        steps,
        start: Vec::new(),
        summary: build_retry_summary(case.tf, &failures, verdict, &hint),
        history: (!counted).then(|| {
            let mut history = History {
                build_failures: failures,
                ..history.clone()
            };
            let (mount, result) = (cache_mount(case), RunResult::Failed);
            cache_mount::record_usability(&mut history, &mount, Some(failure), result);
            history
        }),
    }))
}

/// Handles a requested retry: resets the failure counters of builds and of runs, because the request also applies to a run that has failed
/// before. Keeps the uid of the build Job whose failure was counted last, so that this failure is not counted again.
fn reset_failures(case: &ReconcileCase<'_>) -> ImageAvailability {
    ImageAvailability::Missing(Box::new(MissingImage {
        steps: Vec::new(),
        start: Vec::new(),
        summary: Summary::busy(
            State::Building,
            Reason::Retrying,
            "retrying the build as requested by annotation alustan.io/reconcile-at",
        ),
        history: Some(History {
            reconcile_at: facts::requested(case.tf),
            failures: Failures::default(),
            pending: approval::pending_after_request(&case.history),
            build_failures: Failures {
                job_uid: case.history.build_failures.job_uid.clone(),
                ..Failures::default()
            },
            ..case.history.clone()
        }),
    }))
}

/// Starts a build. Pushes the context to the registry first, because the build pod pulls the context from the registry.
fn start_build(
    case: &ReconcileCase<'_>,
    source: &SourceSeen,
    plan: &ImagePlan,
) -> ImageAvailability {
    let (tf, seen) = (case.tf, case.seen);
    let failures = &case.history.build_failures;
    let failure_key = failure_key(case, plan);
    match retry::verdict(failures, &failure_key, &tf.spec.retry, case.now) {
        retry::Verdict::Go => {}
        verdict => return missing(Vec::new(), build_retry_summary(tf, failures, verdict, "")),
    }
    if let Some(unsupported) = service_account_unsupported(tf, case.settings) {
        return missing(Vec::new(), unsupported);
    }
    let artifact = match &case.image.artifact {
        Some(Answer::Known(artifact)) => artifact,
        Some(Answer::Failed {
            failure, retry_at, ..
        }) => return missing(Vec::new(), query_failure(failure, *retry_at, case.now)),
        pending @ (None | Some(Answer::Pending)) => {
            let push = pending.is_none().then_some(Step::PushContext);
            let pushing = Summary::busy(
                State::Building,
                Reason::PushingContext,
                "pushing the context to the registry",
            );
            return missing(push.into_iter().collect(), pushing);
        }
    };
    if let Some(waiting) = token_wait(case) {
        return missing(Vec::new(), waiting);
    }
    let (build_secret, docker) = (
        create_build_secret(case, plan),
        pull_secret::docker_secret(tf, seen),
    );
    let job = names::build_job(&plan.tag);
    let is_elsewhere = case.settings.builds_elsewhere(tf);
    let secret_name = build_secret.as_ref().map(|_| job.as_str());
    let mount = cache_mount(case);
    let (docker, pull, mut steps) = if is_elsewhere {
        let docker = seen.found().docker_config.is_some();
        let docker = docker.then_some((job.as_str(), names::DOCKER_CONFIG_KEY));
        (docker, docker.map(|_| job.clone()), Vec::new())
    } else {
        let docker = docker.as_ref().map(|(name, key)| (name.as_str(), *key));
        (
            docker,
            pull_secret::pull_secret(tf, seen),
            build_objects(case, &mount),
        )
    };
    let pod = pod_options::of_build(tf, case.settings);
    let build = Build {
        image: plan,
        artifact,
        path: &source.path,
        created: source.committed_at,
        docker,
        pull_secret: pull.as_deref(),
        build_secret: secret_name.filter(|_| is_elsewhere),
        token_secret: secret_name.filter(|_| !is_elsewhere),
        namespace_uid: &seen.namespace_uid,
        cache: &mount,
        pod: &pod,
        pod_digest: &pod_options::digest(&pod),
    };
    let job = build_job::job(tf, &build, case.settings);
    let name = job.metadata.name.clone().unwrap_or_default();
    // The compare-and-swap of the run record fails if the observed record is stale. The build then does not start: the current record may
    // contain the failure of an earlier build, and the backoff after this failure may not have expired.
    let history = start_run::with_claim(case.history.clone(), &steps);
    let (history, empty_cache) = case.with_mount(history, &mount, case.current.number);
    steps.extend(empty_cache);
    steps.push(Step::SwapRecord(Box::new(Swap {
        history: (history != case.history).then_some(history),
        ..Swap::unchanged(&case.record.record)
    })));
    steps.push(Step::CreateJob(Box::new(job)));
    steps.extend(build_secret);
    ImageAvailability::Missing(Box::new(MissingImage {
        steps: Vec::new(),
        start: steps,
        summary: building(&logs_of_build(case, &name)),
        history: None,
    }))
}

/// Returns the cache volume of the build pod. A pod in another namespace cannot mount a claim of the resource's namespace.
fn cache_mount(case: &ReconcileCase<'_>) -> CacheMount {
    if case.settings.builds_elsewhere(case.tf) {
        return CacheMount::Scratch;
    }
    case.cache_mount(PodRequest {
        waits_for_volume: case.current.number > 0,
        tries_again: false,
    })
}

/// Returns the steps that create the `PersistentVolumeClaim` of the cache volume that a pod with `mount` mounts, and the pull secret. Only for
/// a build in the namespace of its resource.
fn build_objects(case: &ReconcileCase<'_>, mount: &CacheMount) -> Vec<Step> {
    let mut steps = start_run::cache(case, mount);
    let inputs = case.seen.inputs.as_ref().ok();
    let pull_secret = inputs.and_then(|inputs| inputs.pull_config.as_deref());
    let pull_secret = pull_secret.map(|config| Object::Secret(secrets::pull(case.tf, config)));
    steps.extend(pull_secret.map(|object| Step::Ensure(Box::new(object))));
    steps
}

/// Returns the summary of the next attempt after failed builds, as decided by `verdict`.
fn build_retry_summary(
    tf: &Terraform,
    failures: &Failures,
    verdict: retry::Verdict,
    hint: &str,
) -> Summary {
    match verdict {
        retry::Verdict::Go => Summary::busy(
            State::Building,
            Reason::Retrying,
            format!("retrying the build after: {}", failures.message),
        ),
        retry::Verdict::WaitUntil(next) => retry_summary(failures, &tf.spec.retry, next, hint),
        retry::Verdict::Stalled => retries_exhausted(tf, failures, hint),
    }
}
