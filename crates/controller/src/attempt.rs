//! Entry point of a reconcile for the native driver and for metacontroller: records metrics, and handles resources that cannot be read or
//! no longer exist.

use std::time::Instant;

use alustan_api::FINALIZER;
use kube::ResourceExt;
use tracing::field::Empty;
use tracing::{Instrument, debug, info_span};

use crate::context::Context;
use crate::error::Error;
use crate::forget::forget;
use crate::reconcile::reconcile;
use crate::reconciliation::Reconciliation;
use crate::requeue::Outcome;
use crate::resource::{Guarded, Ref, ref_of, to_key};
use crate::slots;
use crate::unreadable;
use crate::write_through_cache::version;

/// Reconciles `object` and records metrics. The first lists of the watches must be complete.
///
/// # Errors
/// [`Error::Conflict`] if the resource or its run record changed; other errors are retried with a backoff.
pub(crate) async fn reconcile_object(object: &Guarded, ctx: &Context) -> Result<Outcome, Error> {
    let resource = ref_of(object);
    ctx.memory.begin(&resource, object.uid());
    let (started_at, _active_reconcile) = (Instant::now(), ctx.health.begin_reconcile(&resource));
    let span = info_span!("reconcile", run = Empty, trace_id = Empty);
    let result = match Box::pin(reconcile_existing(object, &resource, ctx))
        .instrument(span)
        .await
    {
        // The resource no longer exists, but the watch has not reported the deletion yet.
        Err(Error::Gone) => {
            forget(ctx, &resource);
            Ok(Outcome::UNTIL_CHANGED)
        }
        Err(error @ Error::Postponed) => {
            debug!(resource = %resource, error = error.chain(), "requeueing");
            Ok(Outcome::POSTPONED)
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

async fn reconcile_existing(
    object: &Guarded,
    resource: &Ref,
    ctx: &Context,
) -> Result<Outcome, Error> {
    let (mut tf, unreadable) = match &object.0 {
        Ok(tf) => (tf.clone(), None),
        Err(invalid) => {
            let Some(tf) = Box::pin(unreadable::read_deleted(ctx, invalid)).await? else {
                unreadable::report(ctx, resource, invalid).await;
                slots::release(ctx, resource);
                return Ok(Outcome::UNREADABLE);
            };
            (tf, Some(unreadable::failure(&invalid.error)))
        }
    };
    ctx.memory.drop_watched_status(resource, version(&tf));
    if let Some(last_status) = ctx.memory.status(resource) {
        tf.status = Some(last_status);
    }
    ctx.dispatcher
        .begin(ctx.clock.now(), || slots::resources_with_runs(ctx));
    if tf.metadata.deletion_timestamp.is_some() && !tf.finalizers().iter().any(|f| f == FINALIZER) {
        forget(ctx, resource);
        return Ok(Outcome::UNTIL_CHANGED);
    }
    let reconciliation = Reconciliation {
        ctx,
        tf: &tf,
        resource,
        unreadable,
    };
    Box::pin(reconcile(&reconciliation)).await
}
