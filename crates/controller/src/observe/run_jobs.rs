//! Run Jobs of a resource in the watch cache, and their pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use alustan_api::labels::{Component, JOB_NAME};
use alustan_api::run::RunKind;
use alustan_api::{Terraform, names};
use alustan_core::job_retention::FinishedJob;
use alustan_core::observed::{JobSeen, OwnJob};
use kube::ResourceExt;
use kube::api::Api;

use crate::call::call;
use crate::context::Context;
use crate::error::Error;
use crate::observe::job_events::{is_late, no_pod};
use crate::observe::jobs::timestamp;
use crate::observe::pods::{
    alive, ended, engine_ended, has_lingering_pod, has_living_pod, is_living_run, own_pods,
    scheduled_at, waiting_cause,
};
use crate::resource::{has_component, is_made_for, to_key};
use crate::watch::cached::CachedJob;
use crate::watch::keys::{JobKey, PodKey};
use crate::watch::mapping::owner;
use crate::watch::trim::CONTROLLER_UID;

/// Returns the Job `name` of the current run, if it belongs to `tf`. If a pod has `claimed` the run, reads the Job, and then its pods, from the
/// API server if the watch caches do not have them: a stale cache must not make the operator report the run as lost.
pub(super) async fn run(
    ctx: &Context,
    tf: &Terraform,
    name: &str,
    claimed: bool,
) -> Result<Option<JobSeen>, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let pods = own_pods(ctx, tf, name);
    let pods_alive = pods.iter().any(|pod| alive(pod));
    let mut job = ctx.mirrors.jobs.get(&namespace, name);
    if job.is_none() && claimed {
        let api: Api<CachedJob> = Api::namespaced(ctx.client.clone(), &namespace);
        job = call(&format!("read Job {name}"), api.get_opt(name))
            .await?
            .map(Arc::new);
    }
    let job = job.filter(|job| is_made_for(tf, &**job));
    let has_engine_ended = !pods_alive && pods.iter().any(|pod| engine_ended(pod));
    let Some(job) = job else {
        let pods_alive = pods_alive || (claimed && has_living_pod(&ctx.client, tf, name).await?);
        return Ok(pods_alive.then(|| JobSeen {
            uid: String::new(),
            finished: true,
            has_pod: true,
            scheduled_at: None,
            pods_alive,
            waiting: None,
            ended: None,
        }));
    };
    let uid = job.uid().unwrap_or_default();
    let mut waiting = pods.iter().find_map(|pod| waiting_cause(pod));
    let created_at = timestamp(job.creation_timestamp().as_ref());
    if pods.is_empty() && job.finished.is_none() && is_late(created_at, ctx.clock.now()) {
        waiting = no_pod(&ctx.client, &namespace, &uid).await;
    }
    Ok(Some(JobSeen {
        uid,
        finished: job.finished.is_some() || has_engine_ended,
        has_pod: !pods.is_empty(),
        scheduled_at: pods.iter().filter_map(|pod| scheduled_at(pod)).max(),
        pods_alive,
        waiting,
        ended: pods.iter().find_map(|pod| ended(pod)),
    }))
}

/// Whether the watch caches have the Job `name` of `tf`, or a pod of this Job whose engine container may still run.
pub(super) fn exists(ctx: &Context, tf: &Terraform, name: &str) -> bool {
    let namespace = tf.namespace().unwrap_or_default();
    let job = ctx.mirrors.jobs.get(&namespace, name);
    job.is_some_and(|job| is_made_for(tf, &*job))
        || own_pods(ctx, tf, name).iter().any(|pod| alive(pod))
}

/// Returns the run Jobs of `tf` by run number, including deleted Jobs with a pod whose engine container may still run.
pub(super) fn own_jobs(ctx: &Context, tf: &Terraform) -> BTreeMap<i64, OwnJob> {
    let namespace = tf.namespace().unwrap_or_default();
    let uid = tf.uid().unwrap_or_default();
    let mut pods = ctx
        .mirrors
        .pods
        .with(&PodKey::Resource(namespace.clone(), uid.clone()));
    pods.retain(|pod| is_living_run(pod));
    let mut jobs = ctx.mirrors.jobs.with(&JobKey::Resource(namespace, uid));
    jobs.retain(|job| has_component(&**job, Component::Run));
    let jobs_of_pods = pods.iter().filter_map(|pod| {
        Some(OwnJob {
            name: pod.labels().get(JOB_NAME)?.clone(),
            uid: pod.labels().get(CONTROLLER_UID)?.clone(),
            finished: false,
            lingers: false,
            is_beyond_limit: false,
        })
    });
    let retention = ctx.job_retention.lock();
    let existing_jobs = jobs.iter().map(|job| {
        let lingers = job.finished.is_none() && has_lingering_pod(ctx, job);
        let uid = job.uid().unwrap_or_default();
        OwnJob {
            name: job.name_any(),
            finished: job.finished.is_some() || lingers,
            lingers,
            is_beyond_limit: retention.is_marked(&uid),
            uid,
        }
    });
    jobs_of_pods
        .chain(existing_jobs)
        .filter_map(|job| Some((run_number(tf, &job.name)?, job)))
        .collect()
}

/// Returns the finished run Jobs of all resources in the watch cache, if they exceed `--keep-jobs`; otherwise none.
/// Locks [`Context::job_retention`].
pub(crate) fn finished_jobs(ctx: &Context) -> Vec<FinishedJob> {
    let summaries = ctx.mirrors.jobs.summaries();
    let finished = summaries.into_iter().filter(|is_finished| *is_finished);
    if !ctx.job_retention.lock().is_exceeded_by(finished.count()) {
        return Vec::new();
    }
    let jobs = ctx.mirrors.jobs.filter(CachedJob::is_finished_run);
    jobs.iter()
        .filter_map(|job| finished_job(ctx, job))
        .collect()
}

/// Returns the finished run Job `job`. `None` if its resource does not exist or has no run with the name of the Job, because users may create
/// Jobs with the labels of the operator.
fn finished_job(ctx: &Context, job: &CachedJob) -> Option<FinishedJob> {
    let resource = owner(&ctx.settings, job)?;
    let stored = ctx.resources.get(&resource)?;
    let tf = stored.0.as_ref().ok()?;
    run_number(tf, &job.name_any()).filter(|_| is_made_for(tf, job))?;
    Some(FinishedJob {
        uid: job.uid()?,
        owner: to_key(&resource),
        created_at: timestamp(job.creation_timestamp().as_ref()),
    })
}

/// Returns the run number of the Job with this name, if the name is that of a run of `tf`.
fn run_number(tf: &Terraform, job: &str) -> Option<i64> {
    let number = job.rsplit_once('-')?.1.parse().ok()?;
    let kinds = [
        RunKind::Plan,
        RunKind::Apply,
        RunKind::Drift,
        RunKind::Destroy,
    ];
    let ours = |kind| names::run_job(&tf.name_any(), kind, number) == job;
    kinds.into_iter().any(ours).then_some(number)
}
