//! Requeue delay after a successful reconcile, and backoff after a failed one.

use std::time::Duration;

use alustan_core::metacontroller::{Pace, pace};
use alustan_core::step::Decision;
use k8s_openapi::jiff::SignedDuration;
use kube::runtime::controller::Action;
use tracing::warn;

use crate::args::Driver;
use crate::context::Context;
use crate::error::Error;
use crate::health::SLOW_RECONCILE;
use crate::observe::observer::Observation;
use crate::reconciliation::Reconciliation;
use crate::resource::{Ref, to_key};

/// Minimum requeue delay; events reconcile immediately.
const MIN_REQUEUE_DELAY: Duration = Duration::from_secs(1);
/// Resync interval without events: a watch does not guarantee that every event arrives.
const RESYNC_INTERVAL: Duration = Duration::from_hours(1);
/// Requeue interval of a resource that refers to objects without a watch.
const UNWATCHED_INTERVAL: Duration = Duration::from_mins(1);

/// Minimum retry delay after a `ResourceQuota` or `LimitRange` refused an object: a quota usually stays exhausted for a while.
const MIN_QUOTA_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Time of the next reconcile after a successful reconcile, for each driver.
pub(crate) struct Outcome {
    /// Requeue delay of the native driver. A watch event may requeue the resource earlier. `None`: no requeue before the resource changes.
    pub(crate) requeue_after: Option<Duration>,
    /// How often metacontroller must resync the resource. With metacontroller, no watch event requeues it.
    pub(crate) pace: Pace,
}

impl Outcome {
    /// Outcome for a resource that is deleted, or kept only by finalizers of other controllers.
    pub(crate) const UNTIL_CHANGED: Self = Self {
        requeue_after: None,
        pace: Pace::UntilChanged,
    };

    /// Outcome for an unreadable resource.
    pub(crate) const UNREADABLE: Self = Self {
        requeue_after: Some(RESYNC_INTERVAL),
        pace: Pace::UntilChanged,
    };

    /// Outcome of a slow reconcile that ended because too many reconciles are slow.
    pub(crate) const POSTPONED: Self = Self {
        requeue_after: Some(SLOW_RECONCILE),
        pace: Pace::AtWork,
    };

    /// Returns the outcome of `decision`, based on `observation`. Must be called before the decision is applied, because the pace of a queued run depends on
    /// its place in the queue.
    pub(crate) fn of(
        reconciliation: &Reconciliation<'_>,
        observation: &Observation,
        decision: &Decision,
    ) -> Self {
        let Reconciliation {
            ctx, tf, resource, ..
        } = *reconciliation;
        let Observation { now, seen, image } = observation;
        let max_wait = if seen.stack.unwatched {
            UNWATCHED_INTERVAL
        } else {
            RESYNC_INTERVAL
        };
        let wait = decision.requeue_at.map_or(max_wait, |at| {
            Duration::try_from(at.duration_since(*now))
                .unwrap_or_default()
                .clamp(MIN_REQUEUE_DELAY, max_wait)
        });
        // Metacontroller is not notified when a slot becomes free. It resyncs resources whose runs are next in the queue every two seconds, and
        // resources far back in the queue less often.
        let is_far = ctx.driver == Driver::Metacontroller
            && ctx.dispatcher.is_far_back(&to_key(resource), *now);
        Self {
            requeue_after: Some(wait),
            pace: pace(tf, seen, &image.seen, decision, signed(wait), is_far),
        }
    }

    /// Returns the outcome after the status was reported. `max_wait`: maximum time until the next reconcile. `has_unsaved_notices`: whether the
    /// run record does not contain the latest notifications yet.
    pub(crate) fn reported(self, max_wait: Option<Duration>, has_unsaved_notices: bool) -> Self {
        Self {
            requeue_after: self.requeue_after.into_iter().chain(max_wait).min(),
            pace: if has_unsaved_notices {
                Pace::AtWork
            } else {
                self.pace
            },
        }
    }

    /// Returns the requeue action of the native driver.
    pub(crate) fn action(&self) -> Action {
        self.requeue_after
            .map_or_else(Action::await_change, Action::requeue)
    }
}

pub(crate) fn signed(wait: Duration) -> SignedDuration {
    SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)
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
