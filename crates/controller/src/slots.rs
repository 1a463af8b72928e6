//! Run slots of resources. A resource with an active run, Job, pod or build holds a slot.

use alustan_api::labels;
use alustan_api::{ObjectKey, Terraform};
use alustan_core::model::facts::{occupied, open_run};
use alustan_core::observed::{BuildSeen, BuildState, JobSeen, RecordSeen};
use alustan_core::queue::Class;
use kube::{Resource, ResourceExt};

use crate::context::Context;
use crate::observe::observer::Observation;
use crate::observe::{jobs, pods};
use crate::reconciliation::Reconciliation;
use crate::resource::{Ref, to_key};
use crate::watch::keys::{JobKey, PodKey};
use crate::watch::mapping::owner;

/// Updates the slot of a resource that starts no run or build in this reconcile. The resource keeps its slot while its run or build is
/// active.
pub(crate) fn record_active(reconciliation: &Reconciliation<'_>, observation: &Observation) {
    let Reconciliation {
        ctx, tf, resource, ..
    } = *reconciliation;
    let Observation { seen, image, .. } = observation;
    let run = running_class(seen.record.as_ref(), seen.job.as_ref());
    if run.is_some() || has_active_build(ctx, resource, tf, image.seen.build.as_ref()) {
        ctx.dispatcher.record_running(&to_key(resource), run);
    } else {
        release(ctx, resource);
    }
}

/// Releases the slot of `resource` after a failed observation, unless the watch caches have an active Job or pod of the resource.
pub(crate) fn release_without_active_job(ctx: &Context, resource: &Ref) {
    if !has_active_job(ctx, resource) {
        release(ctx, resource);
    }
}

/// Releases the slot of `resource`, and removes its run from the queue.
pub(crate) fn release(ctx: &Context, resource: &Ref) {
    ctx.dispatcher
        .record_idle(&to_key(resource), ctx.clock.now());
}

/// Whether the watch caches have an unfinished Job of `resource`, or a run pod that has not ended.
fn has_active_job(ctx: &Context, resource: &Ref) -> bool {
    has_running_job(ctx, resource)
        || keys_of(ctx, resource, PodKey::Resource)
            .iter()
            .flat_map(|key| ctx.mirrors.pods.with(key))
            .filter(|pod| owner(&ctx.settings, &**pod).as_ref() == Some(resource))
            .any(|pod| pods::is_living_run(&pod))
}

/// Whether the watch caches have an unfinished run or build of `resource`.
fn has_running_job(ctx: &Context, resource: &Ref) -> bool {
    keys_of(ctx, resource, JobKey::Resource)
        .iter()
        .flat_map(|key| ctx.mirrors.jobs.with(key))
        .filter(|job| owner(&ctx.settings, &**job).as_ref() == Some(resource))
        .any(|job| jobs::is_running(ctx, &job))
}

/// Returns the keys of the Jobs or pods of `resource`, from `key` with namespace and uid: those in the namespace of the resource, and those in the
/// build namespace. Empty if the resource does not exist.
fn keys_of<K>(ctx: &Context, resource: &Ref, key: fn(String, String) -> K) -> Vec<K> {
    let Some(uid) = ctx.resources.get(resource).and_then(|tf| tf.uid()) else {
        return Vec::new();
    };
    [&resource.namespace, &ctx.settings.build_namespace]
        .into_iter()
        .flatten()
        .map(|namespace| key(namespace.clone(), uid.clone()))
        .collect()
}

/// Returns the resources with an unfinished run or build, for example after a restart of the operator.
pub(crate) fn resources_with_runs(ctx: &Context) -> Vec<ObjectKey> {
    let jobs = ctx.mirrors.jobs.filter(|job| jobs::is_running(ctx, job));
    let owners = jobs.iter().filter_map(|job| existing_owner(ctx, &**job));
    owners.map(|owner| to_key(&owner)).collect()
}

/// Returns the resource to which `object` belongs by its labels, if the resource exists. Tenants may create Jobs with any labels. A
/// slot of a missing resource would never be released.
fn existing_owner(ctx: &Context, object: &impl Resource) -> Option<Ref> {
    let reference = owner(&ctx.settings, object)?;
    let resource = ctx.resources.get(&reference)?;
    let is_made_for = object.labels().get(labels::UID) == resource.meta().uid.as_ref();
    is_made_for.then_some(reference)
}

/// Returns the priority class of the current run if the run needs a slot. A run needs a slot until it has reported its result, and while its Job or
/// pod is active. A reported run without an active pod needs no slot, even if the operator cannot record the result yet, for example while a quota
/// refuses the outputs Secret.
pub(crate) fn running_class(record: Option<&RecordSeen>, job: Option<&JobSeen>) -> Option<Class> {
    let is_unreported = record.is_some_and(|record_seen| {
        let reported = record_seen.report.as_ref().map(|report| report.number);
        open_run(&record_seen.record).is_some() && reported != Some(record_seen.record.number)
    });
    let run = record.and_then(|record_seen| record_seen.record.run.as_ref());
    let class = run.map_or(Class::Change, |run| Class::of(run.kind, &run.trigger));
    (is_unreported || occupied(job)).then_some(class)
}

/// Whether a build that `resource` started is active. A resource that waits for a build of another resource has no slot.
fn has_active_build(
    ctx: &Context,
    resource: &Ref,
    tf: &Terraform,
    build: Option<&BuildSeen>,
) -> bool {
    if tf.spec.suspend {
        // The image tag of a suspended resource is not known, so its build is found by the labels of the Job.
        let key = to_key(resource);
        return ctx.dispatcher.holds_slot(&key) && has_running_job(ctx, resource);
    }
    let active = build.filter(|build| matches!(build.state, BuildState::Active(_)));
    let namespace = ctx.settings.build_namespace_of(tf);
    let job = active.and_then(|build| ctx.mirrors.jobs.get(namespace, &build.job));
    job.and_then(|job| owner(&ctx.settings, &*job)).as_ref() == Some(resource)
}
