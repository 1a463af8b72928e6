//! One reconcile of one resource: observe, decide, apply, report.

use std::time::Duration;

use alustan_core::decide::decide;
use alustan_core::decide::prepare::prepare;
use alustan_core::model::facts::open_run;
use alustan_core::observed::Seen;
use alustan_core::step::Decision;
use alustan_core::upstream_changes::ReconcileResult;
use tracing::{Span, info};

use crate::apply::decision::{Executed, apply};
use crate::apply::pruning;
use crate::error::Error;
use crate::forget::forget;
use crate::observe::observer::{Observation, Observer, QueryCredentials};
use crate::reconciliation::Reconciliation;
use crate::requeue::Outcome;
use crate::resource::to_key;
use crate::slots;
use crate::status::failure::failure_status;
use crate::status::{publish_events, report};

/// Reconciles an existing resource. A deleted resource must still have the finalizer of the operator.
///
/// # Errors
/// [`Error::Conflict`] if the resource or its run record changed; other errors are retried with a backoff.
pub(crate) async fn reconcile(reconciliation: &Reconciliation<'_>) -> Result<Outcome, Error> {
    let Reconciliation { ctx, resource, .. } = *reconciliation;
    let observer = Observer::new(reconciliation);
    let (mut observation, mut decision) =
        Box::pin(observe_and_decide(reconciliation, &observer)).await?;
    record_run_in_span(&observation.seen);
    if let Some(build) = &observation.image.seen.build {
        ctx.metrics.record_build(build);
    }
    if decision.start.is_some() && observer.discard_reused_reads() {
        (observation, decision) = Box::pin(observe_and_decide(reconciliation, &observer)).await?;
    }
    let outcome = Outcome::of(reconciliation, &observation, &decision);
    let executed = Box::pin(apply(reconciliation, &observation, decision)).await;
    let max_wait = Box::pin(report_executed(reconciliation, &observation, executed)).await?;
    ctx.memory.succeeded(resource);
    let has_unsaved_notices = ctx
        .notifier
        .has_unsaved_changes(resource, &observation.seen);
    Ok(outcome.reported(max_wait, has_unsaved_notices))
}

/// Observes the cluster, sends the queries that the first phase of the decision determines, and decides.
async fn observe_and_decide(
    reconciliation: &Reconciliation<'_>,
    observer: &Observer<'_>,
) -> Result<(Observation, Decision), Error> {
    let Reconciliation { ctx, tf, .. } = *reconciliation;
    let (seen, credentials) = observe(reconciliation, observer).await?;
    let now = ctx.clock.now();
    let prepared = prepare(tf, &seen, &ctx.settings, now);
    let image = Box::pin(observer.query(&prepared, &credentials)).await;
    let decision = decide(prepared, &image.seen);
    Ok((Observation { now, seen, image }, decision))
}

/// Observes the cluster. If that fails, reports the error in the status, and releases the slot of the resource if the resource has no active Job
/// or pod.
async fn observe(
    reconciliation: &Reconciliation<'_>,
    observer: &Observer<'_>,
) -> Result<(Seen, QueryCredentials), Error> {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    let observation = Box::pin(observer.observe());
    let result = ctx.health.limit_slow(resource, observation).await;
    match result.unwrap_or(Err(Error::Postponed)) {
        Err(error) if !matches!(error, Error::Conflict | Error::Gone | Error::Postponed) => {
            slots::release_without_active_job(ctx, resource);
            let status = tf.status.clone().unwrap_or_default();
            let status = failure_status(ctx, tf, status, &error);
            Box::pin(report(reconciliation, status)).await?;
            Err(error)
        }
        result => result,
    }
}

/// Reports the status after a decision was applied. Returns the maximum time until the next reconcile, if the status requires one.
async fn report_executed(
    reconciliation: &Reconciliation<'_>,
    observation: &Observation,
    executed: Executed,
) -> Result<Option<Duration>, Error> {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    match executed {
        Executed::Done(status) => {
            let result =
                ReconcileResult::of(tf, &observation.seen, &observation.image.seen, &status);
            ctx.upstream_activity.record(&to_key(resource), result);
            if let Some(pruning) = &observation.image.pruning {
                pruning::publish_result(reconciliation, pruning).await;
            }
            report(reconciliation, status).await
        }
        Executed::FinalizerRemoved(status) => {
            info!(resource = %resource, "released: {}", status.message);
            publish_events(ctx, tf, &status).await;
            forget(ctx, resource);
            Ok(None)
        }
        Executed::Failed(_, error) if error.is_conflict() || error.is_not_leading() => Err(error),
        Executed::Failed(status, error) => {
            let status = failure_status(ctx, tf, status, &error);
            report(reconciliation, status).await?;
            Err(error)
        }
    }
}

/// Adds number and trace id of the current run to the span, so that all later log lines of this reconcile contain them. Does nothing once
/// the result of the run is recorded.
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

#[cfg(test)]
mod tests;
