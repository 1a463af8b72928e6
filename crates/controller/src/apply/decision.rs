//! Applies a decision: executes its steps, and starts its run or build if a slot is free.

use alustan_api::{QueueStatus, TerraformStatus};
use alustan_core::queue::Class;
use alustan_core::step::{Decision, Start, Step};
use tracing::info;

use crate::apply::step_executor::StepExecutor;
use crate::error::Error;
use crate::observe::observer::Observation;
use crate::queue::Queued;
use crate::reconciliation::Reconciliation;
use crate::resource::to_key;
use crate::slots;

/// Result of the execution of a decision, with the status to report.
pub(crate) enum Executed {
    /// All steps were executed.
    Done(TerraformStatus),
    /// All steps were executed, and the last one removed the finalizer.
    FinalizerRemoved(TerraformStatus),
    /// A step failed. Later steps were not executed.
    Failed(TerraformStatus, Error),
}

/// Executes the steps of `decision`. Then starts its run or build, if a slot is free; otherwise queues it.
pub(crate) async fn apply(
    reconciliation: &Reconciliation<'_>,
    observation: &Observation,
    decision: Decision,
) -> Executed {
    let Decision {
        steps,
        start,
        mut status,
        ..
    } = decision;
    let mut executor = StepExecutor::new(reconciliation, observation);
    let mut result = executor.enact(&steps).await;
    match start {
        Some(start) if result.is_ok() => {
            (status, result) = admit(reconciliation, &mut executor, start, status).await;
        }
        // The steps before the start of the run failed: remove the run from the queue. After a conflict, the run keeps its place in the queue.
        Some(_) if result.as_ref().is_err_and(|error| !error.is_conflict()) => {
            slots::release(reconciliation.ctx, reconciliation.resource);
        }
        Some(_) => {}
        None => slots::record_active(reconciliation, observation),
    }
    let releases = |step: &Step| matches!(step, Step::RemoveFinalizer);
    match result {
        Ok(()) if steps.iter().any(releases) => Executed::FinalizerRemoved(status),
        Ok(()) => Executed::Done(status),
        Err(error) => Executed::Failed(status, error),
    }
}

/// Executes the steps that start a run or build, if a slot is free. Returns the status to report: that of the start, or `queued` with the position in
/// the queue.
async fn admit(
    reconciliation: &Reconciliation<'_>,
    executor: &mut StepExecutor<'_>,
    start: Start,
    mut queued: TerraformStatus,
) -> (TerraformStatus, Result<(), Error>) {
    let Reconciliation { ctx, resource, .. } = *reconciliation;
    let key = to_key(resource);
    let Start {
        class,
        check,
        steps,
        status,
    } = start;
    match ctx.dispatcher.admit(&key, class, check, ctx.clock.now()) {
        Ok(waited) => {
            if let Some(waited) = waited {
                ctx.metrics.record_admission(class, waited);
            }
            let result = executor.enact(&steps).await;
            if result.is_ok() {
                let (run, trace_id) = number_and_trace(&steps);
                let state = status.state;
                let started_kind = run.map_or("a build", |_| "a run");
                info!(resource = %resource, run, trace_id, ?state, "started {started_kind}: {}", status.message);
            } else {
                slots::release(ctx, resource);
            }
            (status, result)
        }
        // Status shows no queue position for drift checks.
        Err(Queued) if class == Class::Drift => (queued, Ok(())),
        Err(Queued) => {
            let position = ctx.dispatcher.position(&key, ctx.clock.now());
            let position = i32::try_from(position).unwrap_or(i32::MAX);
            queued.queue = Some(QueueStatus { position });
            (queued, Ok(()))
        }
    }
}

/// Returns number and trace id of the run that `steps` start.
fn number_and_trace(steps: &[Step]) -> (Option<i64>, Option<&str>) {
    let started = steps.iter().find_map(|step| match step {
        Step::SwapReport(progress) => Some((progress.number, progress.trace_id.as_str())),
        _ => None,
    });
    started.unzip()
}
