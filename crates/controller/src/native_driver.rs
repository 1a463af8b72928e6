//! Reconciles resources on events of the watches of kube-runtime.

use std::sync::Arc;
use std::time::Duration;

use alustan_core::digest::fraction;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use tracing::{debug, info};

use crate::args::Driver;
use crate::attempt::reconcile_object;
use crate::context::Context;
use crate::error::Error;
use crate::health::{Health, MAX_SLOW_IN_NAMESPACE, SLOW_RECONCILE};
use crate::requeue::record_failure;
use crate::resource::{Ref, ref_of};
use crate::watch::ResourceName;

/// Maximum number of concurrent reconciles. More do not finish earlier: a reconcile mostly waits for the API server, and kube polls the tasks of
/// all concurrent reconciles whenever one of them ends. The others wait in the queue of the controller, which contains each resource at most once.
pub(crate) const MAX_CONCURRENT_RECONCILES: u16 = 64;

/// Time per resource over which the first reconciles of settled resources are spread after a start: about the CPU time of these reconciles.
const SETTLED_RECONCILE: Duration = Duration::from_millis(3);

/// Reconciles the resource `name`. Does nothing if metacontroller triggers reconciles, or if another replica leads. A new leader reconciles all
/// resources.
pub(crate) async fn reconcile(name: Arc<ResourceName>, ctx: Arc<Context>) -> Result<Action, Error> {
    match ctx.driver {
        Driver::Native if ctx.leader.leads() => {
            if let Some(later) = postponed(&ctx.health, &name) {
                return Ok(later);
            }
            ctx.mirrors.until_listed().await;
            let resource = ref_of(&*name);
            if let Some(later) = postponed_at_start(&ctx, &resource) {
                return Ok(later);
            }
            let Some(object) = ctx.resources.get(&resource) else {
                // The event of the deletion requeues the resource.
                return Ok(Action::await_change());
            };
            let outcome = Box::pin(reconcile_object(&object, &ctx)).await;
            outcome.map(|outcome| outcome.action())
        }
        Driver::Native | Driver::Metacontroller => Ok(Action::await_change()),
    }
}

/// Returns when to reconcile `object` instead of now, if its namespace has [`MAX_SLOW_IN_NAMESPACE`] slow reconciles.
fn postponed(health: &Health, object: &ResourceName) -> Option<Action> {
    let namespace = object.namespace().unwrap_or_default();
    let is_slow = health.slow_reconciles(&namespace) >= MAX_SLOW_IN_NAMESPACE;
    is_slow.then(|| Action::requeue(SLOW_RECONCILE))
}

/// Returns when to reconcile `resource` instead of now, if this process has not reconciled it yet and if it is settled: the first reconciles of other
/// resources, for example of those that changed while no operator ran, come before. kube takes due resources in any order.
pub(crate) fn postponed_at_start(ctx: &Context, resource: &Ref) -> Option<Action> {
    let is_settled = ctx.resources.summary(resource)?.state?.is_settled;
    let elapsed = ctx.memory.first_reconcile().elapsed();
    if !is_settled || ctx.memory.is_observed(resource) {
        return None;
    }
    let wait = first_reconcile(resource, ctx.resources.len()).checked_sub(elapsed)?;
    Some(Action::requeue(wait))
}

/// Returns when to reconcile a settled resource, one of `count` resources, for the first time. The result is relative to the first reconcile of all.
fn first_reconcile(resource: &Ref, count: usize) -> Duration {
    let all = SETTLED_RECONCILE * u32::try_from(count).unwrap_or(u32::MAX);
    all.mul_f64(fraction(&resource.to_string()))
}

/// Requeues a failed reconcile with a growing backoff.
#[expect(clippy::needless_pass_by_value, reason = "required by Controller::run")]
pub(crate) fn retry(name: Arc<ResourceName>, error: &Error, ctx: Arc<Context>) -> Action {
    let resource = ref_of(&*name);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::leader::Leader;

    #[tokio::test(start_paused = true)]
    async fn slow_reconciles_postpone_those_of_their_namespace_only() {
        let health = Health::new(Leader::leading());
        let resource = |namespace: &str| -> ResourceName {
            let metadata = json!({"metadata": {"name": "web", "namespace": namespace}});
            serde_json::from_value(metadata).unwrap()
        };
        let slow = Ref::new("slow").within("team");
        let mut active: Vec<_> = (0..MAX_SLOW_IN_NAMESPACE)
            .map(|_| health.begin_reconcile(&slow))
            .collect();
        assert_eq!(postponed(&health, &resource("team")), None);
        tokio::time::advance(SLOW_RECONCILE).await;
        let later = Some(Action::requeue(SLOW_RECONCILE));
        assert_eq!(postponed(&health, &resource("team")), later);
        assert_eq!(postponed(&health, &resource("other")), None);
        active.pop();
        assert_eq!(postponed(&health, &resource("team")), None);
    }

    #[test]
    fn first_reconciles_are_spread_over_the_cpu_time_of_all() {
        let at =
            |number: u32| first_reconcile(&Ref::new(&number.to_string()).within("team"), 1_000);
        let times: Vec<_> = (0..1_000).map(at).collect();
        let early = times.iter().filter(|time| **time < 500 * SETTLED_RECONCILE);
        assert!(early.count().abs_diff(500) < 100);
        assert!(times.iter().all(|time| *time < 1_000 * SETTLED_RECONCILE));
    }
}
