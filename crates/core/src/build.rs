//! From the answers of repository and registry to the runner image, or to what stands in its way.

use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::{Failures, History};
use alustan_api::{State, Terraform};
use k8s_openapi::jiff::Timestamp;

use crate::absorb;
use crate::image::ImagePlan;
use crate::objects::build_job::{self, Build};
use crate::objects::{cache_pvc, secrets};
use crate::retry;
use crate::seen::{Answer, BuildState, Seen, SourceSeen};
use crate::settings::Settings;
use crate::start;
use crate::status::Situation;
use crate::step::{Object, Step};

/// Where the image is.
#[derive(Clone)]
pub enum Image {
    /// In the registry, by this digest.
    Ready(String),
    /// Not yet, or not at all: what is done about it.
    Missing(Box<Missing>),
}

/// What is done about an image that is not there.
#[derive(Clone)]
pub struct Missing {
    /// The writes.
    pub steps: Vec<Step>,
    /// What goes on.
    pub situation: Situation,
    /// The controller's memory, where a failed build changed it.
    pub history: Option<History>,
}

fn missing(steps: Vec<Step>, situation: Situation) -> Image {
    Image::Missing(Box::new(Missing {
        steps,
        situation,
        history: None,
    }))
}

/// The image for `plan`: found, being built, or to be built.
pub fn image(
    tf: &Terraform,
    seen: &Seen,
    source: &SourceSeen,
    plan: &ImagePlan,
    history: &History,
    settings: &Settings,
    now: Timestamp,
) -> Image {
    let pinned = seen.pin.as_ref().filter(|pin| pin.tag == plan.tag);
    if let Some((_, digest)) = pinned.and_then(|pin| pin.image.split_once('@')) {
        return Image::Ready(digest.to_owned());
    }
    match &seen.image {
        Answer::Known(Some(digest)) => Image::Ready(digest.clone()),
        Answer::Known(None) => build(tf, seen, source, plan, history, settings, now),
        Answer::Pending => missing(
            Vec::new(),
            Situation::busy(
                State::Building,
                "ImageLookup",
                "asking the registry for the runner image",
            ),
        ),
        Answer::Failed {
            failure, retry_at, ..
        } => missing(Vec::new(), unanswered(failure, *retry_at)),
    }
}

/// What goes on while a question has only a failure for an answer.
///
/// No time is told: questions are asked again within a minute, and a status that changed with
/// each try would cost every resource of a repository a write.
pub fn unanswered(failure: &Failure, retry_at: Timestamp) -> Situation {
    if failure.class == FailureClass::User {
        let message = format!(
            "{}; once that is mended, this goes on by itself",
            failure.message
        );
        return Situation::stalled(&failure.reason, message);
    }
    let message = format!("{}; asked again within a minute", failure.message);
    Situation {
        look_at: Some(retry_at),
        ..Situation::blocked(State::Failed, &failure.reason, message)
    }
}

fn build(
    tf: &Terraform,
    seen: &Seen,
    source: &SourceSeen,
    plan: &ImagePlan,
    history: &History,
    settings: &Settings,
    now: Timestamp,
) -> Image {
    if start::asked(tf, history) && history.failures.of == plan.tag {
        return again(tf, history);
    }
    let Some(build) = &seen.build else {
        return begin(tf, seen, source, plan, history, settings, now);
    };
    let logs = format!("kubectl logs job/{} --all-containers", build.job);
    match &build.state {
        BuildState::Active(stuck) => {
            let stuck = stuck
                .as_ref()
                .map(|why| format!("; waiting: {why}"))
                .unwrap_or_default();
            let message = format!("building the runner image{stuck}; to follow: {logs}");
            missing(
                Vec::new(),
                Situation::busy(State::Building, "Building", message),
            )
        }
        BuildState::Done => missing(
            Vec::new(),
            Situation::busy(
                State::Building,
                "ImageLookup",
                "built; asking the registry for its digest",
            ),
        ),
        BuildState::Failed(failure, at) => {
            let counted = history.failures.job_uid.as_deref() == Some(&build.uid);
            let failures = if counted {
                history.failures.clone()
            } else {
                let uid = Some(build.uid.clone());
                absorb::count(&history.failures, &plan.tag, Some(failure), uid, *at)
            };
            let verdict = retry::verdict(&failures, &plan.tag, &tf.spec.retry, now);
            let steps = match verdict {
                retry::Verdict::Go => vec![Step::DeleteJob(build.job.clone())],
                retry::Verdict::WaitUntil(_) | retry::Verdict::Stalled => Vec::new(),
            };
            Image::Missing(Box::new(Missing {
                steps,
                situation: failed(tf, &failures, verdict, &logs),
                history: (!counted).then(|| History {
                    failures,
                    ..history.clone()
                }),
            }))
        }
    }
}

/// A person asked for another try: the failures so far are forgotten, but not which Job was
/// counted last.
fn again(tf: &Terraform, history: &History) -> Image {
    Image::Missing(Box::new(Missing {
        steps: Vec::new(),
        situation: Situation::busy(
            State::Building,
            "Retrying",
            "building again, since a person asked for it",
        ),
        history: Some(History {
            reconcile_at: start::requested(tf),
            failures: Failures {
                job_uid: history.failures.job_uid.clone(),
                ..Failures::default()
            },
            ..history.clone()
        }),
    }))
}

/// No build yet: the context goes to the registry first, since the build pod takes it from there.
fn begin(
    tf: &Terraform,
    seen: &Seen,
    source: &SourceSeen,
    plan: &ImagePlan,
    history: &History,
    settings: &Settings,
    now: Timestamp,
) -> Image {
    match retry::verdict(&history.failures, &plan.tag, &tf.spec.retry, now) {
        retry::Verdict::Go => {}
        verdict => return missing(Vec::new(), failed(tf, &history.failures, verdict, "")),
    }
    let artifact = match &seen.artifact {
        None => {
            let pushing = Situation::busy(
                State::Building,
                "PushingContext",
                "pushing the module to the registry",
            );
            return missing(vec![Step::PushContext], pushing);
        }
        Some(Answer::Pending) => {
            let pushing = Situation::busy(
                State::Building,
                "PushingContext",
                "pushing the module to the registry",
            );
            return missing(Vec::new(), pushing);
        }
        Some(Answer::Failed {
            failure, retry_at, ..
        }) => {
            return missing(Vec::new(), unanswered(failure, *retry_at));
        }
        Some(Answer::Known(artifact)) => artifact,
    };
    let pull = start::pull_secret(tf, seen);
    let inputs = seen.inputs.as_ref().ok();
    let build = Build {
        image: plan,
        artifact,
        path: &source.path,
        registry_key: inputs.and_then(|inputs| inputs.registry_key.as_deref()),
        pull_secret: pull.as_deref(),
    };
    let claim = cache_pvc::claim(tf).map(Box::new).map(Object::Claim);
    let derived = inputs.and_then(|inputs| inputs.pull_config.as_deref());
    let objects = claim
        .into_iter()
        .chain(derived.map(|config| Object::Secret(secrets::pull(tf, config))));
    let mut steps: Vec<Step> = objects
        .map(|object| Step::Ensure(Box::new(object)))
        .collect();
    let job = build_job::job(tf, &build, settings);
    let name = job.metadata.name.clone().unwrap_or_default();
    steps.push(Step::CreateJob(Box::new(job)));
    let message =
        format!("building the runner image; to follow: kubectl logs job/{name} --all-containers");
    missing(steps, Situation::busy(State::Building, "Building", message))
}

fn failed(tf: &Terraform, failures: &Failures, verdict: retry::Verdict, logs: &str) -> Situation {
    let see = if logs.is_empty() {
        String::new()
    } else {
        format!("; see {logs}")
    };
    match verdict {
        retry::Verdict::Go => Situation::busy(
            State::Building,
            "Retrying",
            format!("building again after: {}", failures.message),
        ),
        retry::Verdict::WaitUntil(next) => waiting(failures, &tf.spec.retry, next, &see),
        retry::Verdict::Stalled => exhausted(tf, failures, &see),
    }
}

/// A failure that is tried again by itself.
pub fn waiting(
    failures: &Failures,
    retry: &alustan_api::Retry,
    next: Timestamp,
    see: &str,
) -> Situation {
    let budget = if failures.count == 0 {
        "costs no retry".to_owned()
    } else {
        format!("failure {} of {}", failures.count, retry.limit)
    };
    Situation {
        retry_at: Some(next),
        ..Situation::blocked(
            State::Failed,
            &failures.reason,
            format!(
                "{}; {budget}; tried again at {}{see}",
                failures.message,
                clock(next)
            ),
        )
    }
}

/// A failure whose budget is used up.
pub fn exhausted(tf: &Terraform, failures: &Failures, see: &str) -> Situation {
    let name = tf.metadata.name.as_deref().unwrap_or_default();
    let namespace = tf.metadata.namespace.as_deref().unwrap_or_default();
    let tries = if failures.count == u32::MAX {
        "no retry would help".to_owned()
    } else {
        format!("failed {} times in a row", failures.count)
    };
    Situation::stalled(
        &failures.reason,
        format!(
            "{}; {tries}; change the module or the resource, or try again with: kubectl annotate \
             tf {name} -n {namespace} --overwrite {}=\"$(date)\"{see}",
            failures.message,
            alustan_api::RECONCILE_AT,
        ),
    )
}

/// What a person must mend is no retry's business.
pub fn refused(failure: &Failure) -> Situation {
    match failure.class {
        FailureClass::User => Situation::stalled(&failure.reason, &failure.message),
        FailureClass::World | FailureClass::Module => {
            Situation::blocked(State::Failed, &failure.reason, &failure.message)
        }
    }
}

/// A moment as people read it: to the second, in UTC.
pub fn clock(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}
