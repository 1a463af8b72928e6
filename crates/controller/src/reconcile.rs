//! One reconcile of one resource: observe, decide, apply, report.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::ObjectKey;
use alustan_api::{FINALIZER, Reason, State, Terraform, TerraformStatus, labels};
use alustan_core::decide::decide;
use alustan_core::decide::start_run::class;
use alustan_core::metacontroller::{Pace, pace};
use alustan_core::model::admission::limits_of;
use alustan_core::model::facts::{occupied, open_run};
use alustan_core::observed::{BuildState, JobSeen, RecordSeen, Seen};
use alustan_core::queue::Class;
use alustan_core::status::render::with_failure;
use alustan_core::step::{Decision, Start, Step};
use alustan_core::upstream_changes::ReconcileResult;
use k8s_openapi::jiff::SignedDuration;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, error, info, info_span, warn};

use crate::apply::pruning::publish_result;
use crate::apply::step_executor::StepExecutor;
use crate::args::Driver;
use crate::context::Context;
use crate::error::Error;
use crate::events::publish;
use crate::observe::jobs;
use crate::observe::observer::{Observation, Observer};
use crate::queue::Queued;
use crate::reconciliation::Reconciliation;
use crate::resource::{Guarded, Ref};
use crate::status::{publish_events, report};
use crate::unreadable;
use crate::watch::mapping::{LISTS, owner};

/// Minimum requeue delay; events reconcile immediately.
const MIN_REQUEUE_DELAY: Duration = Duration::from_secs(1);
/// Resync interval without events: a watch does not guarantee that every event arrives.
const RESYNC_INTERVAL: Duration = Duration::from_hours(1);
/// Interval of reconciles of a resource that refers to objects without a watch.
const UNWATCHED_INTERVAL: Duration = Duration::from_mins(1);

/// Minimum retry delay after a `ResourceQuota` or `LimitRange` refused an object: a quota usually stays exhausted for a while.
const MIN_QUOTA_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Reconciles `object`. Does nothing if metacontroller triggers reconciles, or if another replica leads. A new leader reconciles all
/// resources.
pub(crate) async fn reconcile(object: Arc<Guarded>, ctx: Arc<Context>) -> Result<Action, Error> {
    match ctx.driver {
        Driver::Native if ctx.leader.leads() => {
            let outcome = Box::pin(reconcile_object(&object, &ctx)).await;
            outcome.map(|outcome| outcome.action())
        }
        Driver::Native | Driver::Metacontroller => Ok(Action::await_change()),
    }
}

/// Delay until the next reconcile.
pub(crate) struct Outcome {
    /// Requeue delay of the native driver. A watch event may requeue the resource earlier. `None`: no requeue before the resource changes.
    pub(crate) requeue_after: Option<Duration>,
    /// How often metacontroller must resync the resource. With metacontroller, no watch event requeues it.
    pub(crate) pace: Pace,
}

impl Outcome {
    const UNTIL_CHANGED: Self = Self {
        requeue_after: None,
        pace: Pace::UntilChanged,
    };

    fn action(&self) -> Action {
        self.requeue_after
            .map_or_else(Action::await_change, Action::requeue)
    }
}

/// Reconciles `object` and records metrics.
///
/// # Errors
/// [`Error::Conflict`] if the resource or its run record changed; other errors are retried with a backoff.
pub(crate) async fn reconcile_object(
    object: &Guarded,
    ctx: &Arc<Context>,
) -> Result<Outcome, Error> {
    // Wait for the first lists: an object that is missing in an incomplete watch cache may exist. The wait fails only after the watches have ended.
    let _ = ctx
        .mirrors
        .listed
        .clone()
        .wait_for(|lists| *lists >= LISTS)
        .await;
    let resource = ObjectRef::from_obj(object);
    ctx.memory.begin(&resource, object.uid());
    let (started_at, _active_reconcile) = (Instant::now(), ctx.health.begin_reconcile(&resource));
    let span = info_span!("reconcile", run = Empty, trace_id = Empty);
    let result = match Box::pin(reconcile_unmeasured(object, resource.clone(), ctx))
        .instrument(span)
        .await
    {
        // The resource no longer exists, but the watch has not reported the deletion yet.
        Err(Error::Gone) => {
            forget(ctx, &resource);
            Ok(Outcome::UNTIL_CHANGED)
        }
        result => result,
    };
    if result.as_ref().is_err_and(|error| !error.is_conflict()) {
        ctx.dispatcher
            .reconcile_failed(&to_key(&resource), ctx.clock.now());
    }
    ctx.metrics
        .record_reconcile(&resource, &result, started_at.elapsed());
    result
}

async fn reconcile_unmeasured(
    object: &Guarded,
    resource: Ref,
    ctx: &Arc<Context>,
) -> Result<Outcome, Error> {
    let (mut tf, unreadable) = match &object.0 {
        Ok(tf) => (tf.clone(), None),
        Err(invalid) => {
            let Some(tf) = deleted(ctx, invalid).await? else {
                error!(resource = %resource, error = invalid.error, "unreadable resource");
                let event = unreadable::event(&invalid.error);
                publish(&ctx.client, &ctx.instance, &object.object_ref(&()), event).await;
                ctx.dispatcher
                    .record_idle(&to_key(&resource), ctx.clock.now());
                return Ok(Outcome {
                    requeue_after: Some(RESYNC_INTERVAL),
                    pace: Pace::UntilChanged,
                });
            };
            (tf, Some(unreadable::failure(&invalid.error)))
        }
    };
    if let Some(last_status) = ctx.memory.status(&resource) {
        tf.status = Some(last_status);
    }
    ctx.dispatcher.begin(|| resources_with_runs(ctx));
    if tf.metadata.deletion_timestamp.is_some() && !tf.finalizers().iter().any(|f| f == FINALIZER) {
        forget(ctx, &resource);
        return Ok(Outcome::UNTIL_CHANGED);
    }
    let reconciliation = Reconciliation {
        ctx,
        tf: &tf,
        resource: &resource,
        unreadable,
    };
    let observer = Observer::new(&reconciliation);
    let mut observation = observe(&reconciliation, &observer).await?;
    record_run_in_span(&observation.seen);
    if let Some(build) = &observation.seen.build {
        ctx.metrics.record_build(build);
    }
    let now = ctx.clock.now();
    let mut decision = decide(&tf, &observation.seen, &ctx.settings, now);
    if decision.start.is_some() && observer.requires_fresh_reads() {
        observation = observe(&reconciliation, &observer).await?;
        decision = decide(&tf, &observation.seen, &ctx.settings, now);
    }
    let seen = &observation.seen;
    let max_wait = if seen.stack.unwatched {
        UNWATCHED_INTERVAL
    } else {
        RESYNC_INTERVAL
    };
    let wait = decision.requeue_at.map_or(max_wait, |at| {
        Duration::try_from(at.duration_since(now))
            .unwrap_or_default()
            .clamp(MIN_REQUEUE_DELAY, max_wait)
    });
    // Metacontroller is not notified when a slot becomes free. It resyncs resources whose runs are next in the queue every two seconds, and resources
    // far back in the queue less often.
    let is_far =
        ctx.driver == Driver::Metacontroller && ctx.dispatcher.is_far_back(&to_key(&resource), now);
    let pace = pace(&tf, seen, &decision, signed(wait), is_far);
    let max_wait = Box::pin(apply_decision(&reconciliation, &observation, decision)).await?;
    ctx.memory.succeeded(&resource);
    Ok(Outcome {
        requeue_after: Some(max_wait.map_or(wait, |max_wait| max_wait.min(wait))),
        pace: if ctx.notifier.has_unsaved_changes(&resource, seen) {
            Pace::AtWork
        } else {
            pace
        },
    })
}

/// Observes the cluster. If that fails, reports the error in the status, and releases the slot of the resource if the resource has no active Job
/// or pod.
async fn observe(
    reconciliation: &Reconciliation<'_>,
    observer: &Observer<'_>,
) -> Result<Observation, Error> {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    match Box::pin(observer.observe()).await {
        Err(error) if !matches!(error, Error::Conflict | Error::Gone) => {
            if !has_active_job(ctx, resource) {
                ctx.dispatcher
                    .record_idle(&to_key(resource), ctx.clock.now());
            }
            let status = tf.status.clone().unwrap_or_default();
            Box::pin(report(
                reconciliation,
                failure_status(ctx, tf, status, &error),
            ))
            .await?;
            Err(error)
        }
        result => result,
    }
}

pub(crate) fn signed(wait: Duration) -> SignedDuration {
    SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)
}

/// Returns number and trace id of the run that `steps` start.
fn number_and_trace(steps: &[Step]) -> (Option<i64>, Option<&str>) {
    let started = steps.iter().find_map(|step| match step {
        Step::SwapReport(progress) => Some((progress.number, progress.trace_id.as_str())),
        _ => None,
    });
    started.unzip()
}

/// Adds number and trace id of the current run to the span, so that all log lines of this reconcile contain them. Does nothing once the result of the
/// run is recorded.
fn record_run_in_span(seen: &Seen) {
    let record = seen.record.as_ref().map(|record| &record.record);
    let Some((record, run)) = record.and_then(|record| Some((record, open_run(record)?))) else {
        return;
    };
    let span = Span::current();
    span.record("run", record.number);
    // Runs started by earlier versions of the operator have no trace id.
    if !run.trace_id.is_empty() {
        span.record("trace_id", &run.trace_id);
    }
}

/// Reads a resource that is being deleted and that this version of the operator cannot parse, see [`unreadable::read`]. Returns `None` for a resource
/// that is not being deleted.
async fn deleted(ctx: &Context, invalid: &InvalidObject) -> Result<Option<Terraform>, Error> {
    match &invalid.metadata.deletion_timestamp {
        Some(_) => Box::pin(unreadable::read(ctx, invalid)).await,
        None => Ok(None),
    }
}

/// Executes the steps of `decision`, and reports the status. Returns the maximum time until the next reconcile, if the status requires one.
async fn apply_decision(
    reconciliation: &Reconciliation<'_>,
    observation: &Observation,
    decision: Decision,
) -> Result<Option<Duration>, Error> {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    let seen = &observation.seen;
    let key = to_key(resource);
    let Decision {
        steps,
        start,
        mut status,
        ..
    } = decision;
    let releases = steps
        .iter()
        .any(|step| matches!(step, Step::RemoveFinalizer));
    let mut executor = StepExecutor::new(reconciliation, observation);
    let mut result = executor.enact(&steps).await;
    let run = running_class(seen.record.as_ref(), seen.job.as_ref());
    match start {
        Some(Start {
            class,
            steps,
            status: started,
        }) if result.is_ok() => match ctx.dispatcher.admit(&key, class, ctx.clock.now()) {
            Ok(waited) => {
                if let Some(waited) = waited {
                    ctx.metrics.record_admission(class, waited);
                }
                result = executor.enact(&steps).await;
                status = started;
                if result.is_ok() {
                    let (run, trace_id) = number_and_trace(&steps);
                    let state = status.state;
                    let started_kind = run.map_or("a build", |_| "a run");
                    info!(resource = %resource, run, trace_id, ?state, "started {started_kind}: {}", status.message);
                } else {
                    ctx.dispatcher.record_idle(&key, ctx.clock.now());
                }
            }
            // Status shows no queue position for drift checks.
            Err(Queued) if class == Class::Drift => {}
            Err(Queued) => {
                let position = ctx.dispatcher.position(&key, ctx.clock.now());
                let position = i32::try_from(position).unwrap_or(i32::MAX);
                status.queue = Some(alustan_api::QueueStatus { position });
            }
        },
        // The steps before the start of the run failed: remove the run from the queue. After a conflict, the run keeps its place in the queue.
        Some(_) if result.as_ref().is_err_and(|error| !error.is_conflict()) => {
            ctx.dispatcher.record_idle(&key, ctx.clock.now());
        }
        Some(_) => {}
        None if run.is_some() || has_active_build(ctx, resource, tf, seen) => {
            ctx.dispatcher.record_running(&key, run);
        }
        None => ctx.dispatcher.record_idle(&key, ctx.clock.now()),
    }
    if releases && result.is_ok() {
        info!(resource = %resource, "released: {}", status.message);
        publish_events(ctx, tf, &status).await;
        forget(ctx, resource);
        return Ok(None);
    }
    match result {
        Ok(()) => {
            ctx.upstream_activity
                .record(&key, ReconcileResult::of(tf, seen, &status));
            if let Some(pruning) = &observation.pruning {
                publish_result(reconciliation, pruning).await;
            }
            report(reconciliation, status).await
        }
        Err(error) if error.is_conflict() || error.is_not_leading() => Err(error),
        Err(error) => {
            report(reconciliation, failure_status(ctx, tf, status, &error)).await?;
            Err(error)
        }
    }
}

/// Drops queries, watches, queue entry and in-memory state of `resource`, which is deleted or kept only by finalizers of other controllers.
pub(crate) fn forget(ctx: &Context, resource: &Ref) {
    ctx.dispatcher
        .record_idle(&to_key(resource), ctx.clock.now());
    ctx.answers.keep(resource, &HashSet::new());
    ctx.objects.keep(resource, &HashSet::new());
    ctx.upstream_activity.forget(&to_key(resource));
    ctx.memory.forget(resource);
    ctx.notifier.forget(resource);
}

fn to_key(resource: &Ref) -> ObjectKey {
    ObjectKey::new(
        resource.namespace.clone().unwrap_or_default(),
        &resource.name,
    )
}

/// Whether the watch caches have an unfinished Job of `resource`, or a run pod that has not ended.
fn has_active_job(ctx: &Context, resource: &Ref) -> bool {
    let jobs = ctx.mirrors.jobs.filter(|job| {
        existing_owner(ctx, job).as_ref() == Some(resource) && jobs::is_running(ctx, job)
    });
    let pods = ctx.mirrors.pods.filter(|pod| {
        existing_owner(ctx, pod).as_ref() == Some(resource) && jobs::is_living_run(pod)
    });
    !(jobs.is_empty() && pods.is_empty())
}

/// Returns the resources with an unfinished run or build, for example after a restart of the operator.
fn resources_with_runs(ctx: &Context) -> Vec<ObjectKey> {
    let jobs = ctx.mirrors.jobs.filter(|job| jobs::is_running(ctx, job));
    let owners = jobs.iter().filter_map(|job| existing_owner(ctx, &**job));
    owners.map(|owner| to_key(&owner)).collect()
}

/// Returns the resource to which `object` belongs by its labels, if the resource exists. Tenants may create Jobs with any labels, and a
/// slot that is held for a missing resource would never be released.
fn existing_owner(ctx: &Context, object: &impl Resource) -> Option<Ref> {
    let reference = owner(&ctx.settings, object)?;
    let resource = ctx.resources.get(&reference)?;
    let is_made_for = object.labels().get(labels::UID) == resource.meta().uid.as_ref();
    is_made_for.then_some(reference)
}

/// Returns the priority class of the current run if the run needs a slot. A run needs a slot until it has reported its result, and while its Job or
/// pod is active. A reported run without an active pod needs no slot, even if the operator cannot record the result yet, for example while a quota
/// refuses the outputs Secret.
fn running_class(record: Option<&RecordSeen>, job: Option<&JobSeen>) -> Option<Class> {
    let is_unreported = record.is_some_and(|record_seen| {
        let reported = record_seen.report.as_ref().map(|report| report.number);
        open_run(&record_seen.record).is_some() && reported != Some(record_seen.record.number)
    });
    let run = record.and_then(|record_seen| record_seen.record.run.as_ref());
    let class = run.map_or(Class::Change, |run| class(run.kind, &run.trigger));
    (is_unreported || occupied(job)).then_some(class)
}

/// Whether a build that `resource` started is active. A resource that waits for a build of another resource has no slot.
fn has_active_build(ctx: &Context, resource: &Ref, tf: &Terraform, seen: &Seen) -> bool {
    if tf.spec.suspend {
        // The image tag of a suspended resource is not known, so its build is found by the labels of the Job.
        let key = to_key(resource);
        return ctx.dispatcher.holds_slot(&key) && resources_with_runs(ctx).contains(&key);
    }
    let active = seen
        .build
        .as_ref()
        .filter(|build| matches!(build.state, BuildState::Active(_)));
    let namespace = ctx.settings.build_namespace_of(tf);
    let job = active.and_then(|build| ctx.mirrors.jobs.get(namespace, &build.job));
    job.and_then(|job| owner(&ctx.settings, &*job)).as_ref() == Some(resource)
}

/// Returns the status after a failed read or write, with the cause. If the API server is unavailable, the status stays unchanged.
fn failure_status(
    ctx: &Context,
    tf: &Terraform,
    status: TerraformStatus,
    error: &Error,
) -> TerraformStatus {
    let is_building = status.state == State::Building;
    let own_namespace = tf.metadata.namespace.as_deref().unwrap_or_default();
    let namespace = if is_building {
        ctx.settings.build_namespace_of(tf)
    } else {
        own_namespace
    };
    let message = match error.reason() {
        Reason::ApiUnavailable => return tf.status.clone().unwrap_or(status),
        Reason::QuotaRefused | Reason::LimitRangeRefused => format!(
            "{}; retried within five minutes; see {}",
            error.chain(),
            limits_of(namespace)
        ),
        _ => error.chain(),
    };
    with_failure(tf, status, error.reason(), &message, ctx.clock.now())
}

/// Requeues a failed reconcile with a growing backoff.
#[expect(clippy::needless_pass_by_value, reason = "required by Controller::run")]
pub(crate) fn retry(object: Arc<Guarded>, error: &Error, ctx: Arc<Context>) -> Action {
    let resource = ObjectRef::from_obj(&*object);
    if error.is_conflict() {
        let wait = ctx.memory.conflicted(&resource);
        debug!(resource = %resource, ?wait, "the resource or its run record changed; requeueing");
        return Action::requeue(wait);
    }
    if error.is_not_leading() && !ctx.leader.leads() {
        info!(resource = %resource, "this replica is not the leader; the next leader reconciles the resource");
        return Action::await_change();
    }
    Action::requeue(record_failure(&ctx, &resource, error))
}

/// Counts and logs a failed reconcile of `resource`. Returns the backoff.
pub(crate) fn record_failure(ctx: &Context, resource: &Ref, error: &Error) -> Duration {
    let mut wait = ctx.memory.failed(resource);
    if error.refusal().is_some() {
        wait = wait.max(MIN_QUOTA_RETRY_DELAY);
    }
    warn!(
        resource = %resource,
        reason = error.reason().as_str(),
        error = error.chain(),
        ?wait,
        "reconcile failed; requeueing"
    );
    wait
}

#[cfg(test)]
mod tests;
