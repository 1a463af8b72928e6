//! Conditions and activity of Jobs.

use std::sync::Arc;

use alustan_api::ObjectKey;
use alustan_api::labels::Component;
use k8s_openapi::api::batch::v1::JobCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::context::Context;
use crate::observe::pods::has_lingering_pod;
use crate::resource::has_component;
use crate::watch::cached::CachedJob;
use crate::watch::keys::JobKey;

pub(super) fn transition_time(end: &JobCondition) -> Timestamp {
    timestamp(end.last_transition_time.as_ref())
}

pub(super) fn timestamp(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// Returns the finished Jobs in `namespace` that refer to the `PersistentVolumeClaim` `claim`.
pub(crate) fn finished_users(ctx: &Context, namespace: &str, claim: &str) -> Vec<Arc<CachedJob>> {
    let key = JobKey::Claim(ObjectKey::new(namespace, claim));
    let mut users = ctx.mirrors.jobs.with(&key);
    users.retain(|job| job.finished.is_some());
    users
}

/// Whether `job` is a run or build that has not ended. A Job with a lingering pod counts as ended ([`has_lingering_pod`]).
pub(crate) fn is_running(ctx: &Context, job: &CachedJob) -> bool {
    let kinds = [Component::Run, Component::Build];
    let is_ours = kinds.into_iter().any(|kind| has_component(job, kind));
    is_ours && job.finished.is_none() && !has_lingering_pod(ctx, job)
}
