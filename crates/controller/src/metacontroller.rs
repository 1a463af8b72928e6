//! Reconciles a resource on request of metacontroller. The request only identifies the resource. Decisions depend on the object in
//! the API server.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alustan_api::{FINALIZER, Reason, TerraformStatus};
use alustan_core::decide::approval::sets_approval;
use alustan_core::metacontroller::{Answer, Asked, Pace, Refusal};
use kube::api::Api;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tracing::{debug, warn};

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::reconcile::{forget, look, pause, signed};
use crate::resource::{Guarded, Ref};
use crate::watch::mapping::{LISTS, is_watched};

/// Maximum time that a request waits for its reconcile. Metacontroller times out after 10 s
/// (<https://metacontroller.github.io/metacontroller/api/hook.html#webhook>). A reconcile takes milliseconds; a delayed one
/// continues in the background.
const LONGEST: Duration = Duration::from_secs(6);

/// Reconciles resources on requests of metacontroller.
#[derive(Default)]
pub(crate) struct Syncs {
    /// Watched namespaces. Empty: all namespaces.
    namespaces: Vec<String>,
    context: OnceLock<Arc<Context>>,
    /// Resources with an active reconcile. Each has at most one.
    busy: Mutex<HashSet<Ref>>,
}

impl Syncs {
    /// Creates the handler for resources in `namespaces`, or in all namespaces if that is empty. Reconciles start after
    /// [`Self::begin`].
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

    /// Reconciles the resource in `asked`. The reconcile continues if the caller disconnects.
    ///
    /// # Errors
    /// Status 422 if the namespace is not watched, 429 if the caller must retry, 500 if the reconcile panics, 502 if the resource
    /// cannot be read.
    pub(crate) async fn sync(self: Arc<Self>, asked: Asked) -> Result<Answer, Refusal> {
        if !is_watched(&self.namespaces, &asked.namespace) {
            let message = format!(
                "the operator does not watch namespace {} (--watch-namespaces {}). Restrict \
                 spec.parentResource.labelSelector of the CompositeController to resources in \
                 watched namespaces",
                asked.namespace,
                self.namespaces.join(",")
            );
            return Err(Refusal::new(422, "NamespaceNotWatched", message));
        }
        let Some(ctx) = self.context.get().filter(|ctx| has_listed(ctx)).cloned() else {
            return Err(again("NotReady", "the operator is starting"));
        };
        if !ctx.leader.leads() {
            return Err(again(
                Reason::NotLeader.as_str(),
                "another replica of the operator is the leader",
            ));
        }
        let resource = Ref::new(&asked.name).within(&asked.namespace);
        let Some(turn) = Turn::take(self, resource) else {
            return Err(again("Busy", "another reconcile of the resource is active"));
        };
        let looked = tokio::spawn(async move { looked(&ctx, &turn.resource, asked).await });
        match tokio::time::timeout(LONGEST, looked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let message = format!("the reconcile of the resource was aborted: {error}");
                Err(Refusal::new(500, "LookFailed", message))
            }
            Err(_) => Err(again(
                "Busy",
                "the reconcile of the resource has not finished",
            )),
        }
    }
}

fn has_listed(ctx: &Context) -> bool {
    *ctx.mirrors.listed.borrow() >= LISTS
}

/// Returns a refusal that metacontroller retries after a delay, without an event.
fn again(reason: &'static str, why: &str) -> Refusal {
    Refusal::new(429, reason, format!("{why}; retry"))
}

/// Exclusive right to reconcile a resource.
struct Turn {
    of: Arc<Syncs>,
    resource: Ref,
}

impl Turn {
    /// Returns `None` while another request reconciles `resource`.
    fn take(of: Arc<Syncs>, resource: Ref) -> Option<Self> {
        let mut busy = of.busy.lock();
        let free = busy.insert(resource.clone());
        drop(busy);
        free.then_some(Self { of, resource })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut busy = self.of.busy.lock();
        busy.remove(&self.resource);
    }
}

async fn looked(ctx: &Arc<Context>, resource: &Ref, asked: Asked) -> Result<Answer, Refusal> {
    let api: Api<Guarded> = Api::namespaced(ctx.client.clone(), &asked.namespace);
    let found = call("read the resource", api.get_opt(&asked.name)).await;
    let found = found.map_err(|error| unread(&error))?;
    let unchanged = Answer::unchanged(&asked);
    let same = |it: &Guarded| it.uid().as_deref() == Some(&*asked.uid);
    let Some(mut object) = found.filter(same) else {
        // A newer resource with the same name has another uid and gets its own requests.
        debug!(resource = %resource, "the resource no longer exists");
        return Ok(Answer {
            finalized: asked.finalizing,
            ..unchanged
        });
    };
    if asked.finalizing && object.meta().deletion_timestamp.is_none() {
        // The resource no longer matches the selector of the CompositeController: another controller owns it.
        forget(ctx, resource);
        return Ok(Answer {
            finalized: true,
            ..saying(unchanged, object.0.ok().and_then(|tf| tf.status))
        });
    }
    let released = !object.finalizers().iter().any(|name| name == FINALIZER);
    object.managed_fields_mut().retain(sets_approval);
    let pace = match Box::pin(look(&object, ctx)).await {
        // With the native driver, a later answer requeues the resource. Metacontroller gets no such notification, so it must poll soon.
        Ok(_) if ctx.answers.has_open_query(resource) => Pace::AtWork,
        Ok(looked) => looked.pace,
        Err(error) => failed(ctx, resource, &error),
    };
    let answer = Answer {
        resync_after_seconds: pace.seconds(),
        finalized: asked.finalizing && released,
        ..unchanged
    };
    // The API server accepts no status for a resource that cannot be read.
    Ok(match object.0 {
        Ok(tf) => saying(answer, ctx.memory.status(resource).or(tf.status)),
        Err(_) => answer,
    })
}

/// Returns the refusal of a resource that cannot be read. For permanent errors metacontroller writes an event.
fn unread(error: &Error) -> Refusal {
    match error.reason() {
        reason @ Reason::ApiUnavailable => again(reason.as_str(), &error.chain()),
        reason => Refusal::new(502, reason.as_str(), error.chain()),
    }
}

fn saying(answer: Answer, status: Option<TerraformStatus>) -> Answer {
    match status {
        Some(status) => answer.saying(&status),
        None => answer,
    }
}

/// Returns the pace after a failed reconcile. The status of the resource has the cause.
fn failed(ctx: &Context, resource: &Ref, error: &Error) -> Pace {
    if error.is_conflict() {
        debug!(resource = %resource, "the run record changed; requeueing");
        return Pace::AtWork;
    }
    let wait = pause(ctx, resource, error);
    warn!(
        resource = %resource,
        reason = error.reason().as_str(),
        error = error.chain(),
        ?wait,
        "reconcile failed; requeueing"
    );
    Pace::AtRest(signed(wait))
}
