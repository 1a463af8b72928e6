//! Reconciles resources on events of the watches of kube-runtime.

use std::sync::Arc;

use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tracing::{debug, info};

use crate::args::Driver;
use crate::attempt::reconcile_object;
use crate::context::Context;
use crate::error::Error;
use crate::requeue::record_failure;
use crate::resource::Guarded;

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
