//! Reconciles resources on events of the watches of kube-runtime.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use tracing::{debug, info};

use crate::args::Driver;
use crate::attempt::reconcile_object;
use crate::context::Context;
use crate::error::Error;
use crate::health::{Health, SLOW_RECONCILE};
use crate::requeue::record_failure;
use crate::resource::ref_of;
use crate::watch::ResourceName;

/// Maximum number of concurrent reconciles. More do not finish earlier: a reconcile mostly waits for the API server, and kube polls the tasks of
/// all concurrent reconciles whenever one of them ends. The others wait in the queue of the controller, which contains each resource at most once.
pub(crate) const MAX_CONCURRENT_RECONCILES: u16 = 64;

/// Maximum number of slow reconciles ([`SLOW_RECONCILE`]) in one namespace. While a namespace has this number, its other resources are requeued,
/// so that slow expressions of one namespace do not delay the reconciles of other namespaces.
const MAX_SLOW_RECONCILES: usize = 8;

/// Reconciles the resource `name`. Does nothing if metacontroller triggers reconciles, or if another replica leads. A new leader reconciles all
/// resources.
pub(crate) async fn reconcile(name: Arc<ResourceName>, ctx: Arc<Context>) -> Result<Action, Error> {
    match ctx.driver {
        Driver::Native if ctx.leader.leads() => {
            if let Some(later) = postponed(&ctx.health, &name) {
                return Ok(later);
            }
            let Some(object) = ctx.resources.get(&ref_of(&*name)) else {
                // The event of the deletion requeues the resource.
                return Ok(Action::await_change());
            };
            let outcome = Box::pin(reconcile_object(&object, &ctx)).await;
            outcome.map(|outcome| outcome.action())
        }
        Driver::Native | Driver::Metacontroller => Ok(Action::await_change()),
    }
}

/// Returns when to reconcile `object` instead of now, if its namespace has [`MAX_SLOW_RECONCILES`].
fn postponed(health: &Health, object: &ResourceName) -> Option<Action> {
    let namespace = object.namespace().unwrap_or_default();
    let is_slow = health.slow_reconciles(&namespace) >= MAX_SLOW_RECONCILES;
    is_slow.then(|| Action::requeue(SLOW_RECONCILE))
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
    use crate::resource::Ref;

    #[tokio::test(start_paused = true)]
    async fn slow_reconciles_postpone_those_of_their_namespace_only() {
        let health = Health::new(Leader::leading());
        let resource = |namespace: &str| -> ResourceName {
            let metadata = json!({"metadata": {"name": "web", "namespace": namespace}});
            serde_json::from_value(metadata).unwrap()
        };
        let slow = Ref::new("slow").within("team");
        let mut active: Vec<_> = (0..MAX_SLOW_RECONCILES)
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
}
