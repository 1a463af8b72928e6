//! Reconciles a resource on request of metacontroller. The request only identifies the resource. Decisions depend on the object in
//! the API server.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alustan_api::{FINALIZER, Reason, TerraformStatus};
use alustan_core::metacontroller::{HookRequest, HookResponse, Pace, Refusal};
use alustan_core::model::facts::sets_approval;
use kube::api::Api;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tracing::debug;

use crate::attempt::reconcile_object;
use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::forget::forget;
use crate::requeue::{record_failure, signed};
use crate::resource::{Guarded, Ref};
use crate::watch::mapping::{LISTS, is_watched};

/// Maximum time that a request waits for its reconcile. Metacontroller times out after 10 s
/// (<https://metacontroller.github.io/metacontroller/api/hook.html#webhook>). A reconcile takes milliseconds; a delayed one
/// continues in the background.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// Reconciles resources on requests of metacontroller.
#[derive(Default)]
pub(crate) struct SyncHandler {
    /// Watched namespaces. Empty: all namespaces.
    namespaces: Vec<String>,
    context: OnceLock<Arc<Context>>,
    /// Resources with an active reconcile. A resource has at most one active reconcile.
    active: Mutex<HashSet<Ref>>,
}

impl SyncHandler {
    /// Creates the handler for resources in `namespaces`, or in all namespaces if `namespaces` is empty. Reconciles start after [`Self::begin`].
    pub(crate) fn new(namespaces: Vec<String>) -> Self {
        Self {
            namespaces,
            ..Self::default()
        }
    }

    /// Enables reconciles: until this call, [`Self::sync`] refuses all requests.
    pub(crate) fn begin(&self, ctx: Arc<Context>) {
        // `set` fails only on a second call. The operator calls `begin` once.
        let _ = self.context.set(ctx);
    }

    /// Reconciles the resource in `request`. The reconcile continues if the caller disconnects.
    ///
    /// # Errors
    /// Status 422 if the namespace is not watched, 429 if the caller must retry, 500 if the reconcile panics, 502 if the resource
    /// cannot be read.
    pub(crate) async fn sync(
        self: Arc<Self>,
        request: HookRequest,
    ) -> Result<HookResponse, Refusal> {
        if !is_watched(&self.namespaces, &request.namespace) {
            let message = format!(
                "the operator does not watch namespace {} (--watch-namespaces {}). Restrict \
                 spec.parentResource.labelSelector of the CompositeController to resources in \
                 watched namespaces",
                request.namespace,
                self.namespaces.join(",")
            );
            return Err(Refusal::new(422, "NamespaceNotWatched", message));
        }
        let Some(ctx) = self.context.get().filter(|ctx| has_listed(ctx)).cloned() else {
            return Err(retry_later("NotReady", "the operator is starting"));
        };
        if !ctx.leader.leads() {
            return Err(retry_later(
                Reason::NotLeader.as_str(),
                "another replica of the operator is the leader",
            ));
        }
        let resource = Ref::new(&request.name).within(&request.namespace);
        let Some(active_sync) = ActiveSync::take(self, resource) else {
            return Err(retry_later(
                "Busy",
                "another reconcile of the resource is active",
            ));
        };
        let reconciliation = tokio::spawn(async move {
            reconcile_and_answer(&ctx, &active_sync.resource, request).await
        });
        match tokio::time::timeout(REQUEST_TIMEOUT, reconciliation).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let message = format!("the reconcile of the resource was aborted: {error}");
                Err(Refusal::new(500, "LookFailed", message))
            }
            Err(_) => Err(retry_later(
                "Busy",
                "the reconcile of the resource has not finished",
            )),
        }
    }
}

fn has_listed(ctx: &Context) -> bool {
    *ctx.mirrors.listed.borrow() >= LISTS
}

/// Returns a refusal after which metacontroller retries the request with a delay, and creates no event.
fn retry_later(reason: &'static str, message: &str) -> Refusal {
    Refusal::new(429, reason, format!("{message}; retry"))
}

/// Exclusive right to reconcile a resource. Dropping the value releases the right.
struct ActiveSync {
    handler: Arc<SyncHandler>,
    resource: Ref,
}

impl ActiveSync {
    /// Returns the right to reconcile `resource`. `None` while another request reconciles `resource`.
    fn take(handler: Arc<SyncHandler>, resource: Ref) -> Option<Self> {
        let mut active = handler.active.lock();
        let free = active.insert(resource.clone());
        drop(active);
        free.then_some(Self { handler, resource })
    }
}

impl Drop for ActiveSync {
    fn drop(&mut self) {
        let mut active = self.handler.active.lock();
        active.remove(&self.resource);
    }
}

async fn reconcile_and_answer(
    ctx: &Arc<Context>,
    resource: &Ref,
    request: HookRequest,
) -> Result<HookResponse, Refusal> {
    let api: Api<Guarded> = Api::namespaced(ctx.client.clone(), &request.namespace);
    let object = call("read the resource", api.get_opt(&request.name)).await;
    let object = object.map_err(|error| read_refusal(&error))?;
    let unchanged = HookResponse::unchanged(&request);
    let has_requested_uid = |object: &Guarded| object.uid().as_deref() == Some(&*request.uid);
    let Some(mut object) = object.filter(has_requested_uid) else {
        // The resource with the uid in the request does not exist. A newer resource may have the same name and another uid: metacontroller sends
        // separate requests for the newer resource.
        debug!(resource = %resource, "the resource no longer exists");
        return Ok(HookResponse {
            finalized: request.finalizing,
            ..unchanged
        });
    };
    if request.finalizing && object.meta().deletion_timestamp.is_none() {
        // The resource no longer matches the selector of the CompositeController: another controller owns it.
        forget(ctx, resource);
        return Ok(HookResponse {
            finalized: true,
            ..with_status(unchanged, object.0.ok().and_then(|tf| tf.status))
        });
    }
    let has_no_finalizer = !object.finalizers().iter().any(|name| name == FINALIZER);
    object.managed_fields_mut().retain(sets_approval);
    let pace = match Box::pin(reconcile_object(&object, ctx)).await {
        // A query has no answer yet. With the native driver, the answer requeues the resource. Metacontroller is not notified of the answer, so
        // metacontroller must send the next request soon.
        Ok(_) if ctx.answers.has_open_query(resource) => Pace::AtWork,
        Ok(outcome) => outcome.pace,
        Err(error) => pace_after_failure(ctx, resource, &error),
    };
    let answer = HookResponse {
        resync_after_seconds: pace.seconds(),
        finalized: request.finalizing && has_no_finalizer,
        ..unchanged
    };
    // Omit the status of a resource whose stored spec or status is invalid: the API server would refuse the status.
    Ok(match object.0 {
        Ok(tf) => with_status(answer, ctx.memory.status(resource).or(tf.status)),
        Err(_) => answer,
    })
}

/// Returns the refusal of a resource that cannot be read. Metacontroller creates an event for permanent errors.
fn read_refusal(error: &Error) -> Refusal {
    match error.reason() {
        reason @ Reason::ApiUnavailable => retry_later(reason.as_str(), &error.chain()),
        reason => Refusal::new(502, reason.as_str(), error.chain()),
    }
}

fn with_status(answer: HookResponse, status: Option<TerraformStatus>) -> HookResponse {
    match status {
        Some(status) => answer.with_status(&status),
        None => answer,
    }
}

/// Returns how often metacontroller must resync the resource after a failed reconcile. The status of the resource has the cause.
fn pace_after_failure(ctx: &Context, resource: &Ref, error: &Error) -> Pace {
    if error.is_conflict() {
        debug!(resource = %resource, "the resource or its run record changed; requeueing");
        return Pace::AtWork;
    }
    Pace::AtRest(signed(record_failure(ctx, resource, error)))
}
