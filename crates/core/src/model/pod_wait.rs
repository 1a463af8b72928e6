//! Startup timeouts of pods, and the messages of pods that do not start.

use alustan_api::{Reason, Terraform};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use crate::model::admission;
use crate::observed::Waiting;
use crate::settings::Settings;

/// Time after which status reports that a Job has no pod. Also the startup timeout of a Job whose pod a quota or limit range denies.
pub(crate) const NO_POD_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);

/// Startup timeout of a pod if no other timeout applies: the pod is schedulable, and no quota or limit range denies it.
pub(crate) const STARTUP_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// Returns the startup timeout of a Job. `waiting`: the reason why its pod waits. The timeout is short if a quota or limit range denies the
/// pod, because the denial may last long and the Job holds a slot. The timeout of an unschedulable pod is a setting, because the pod may
/// require a new node.
pub(crate) fn startup_timeout(waiting: &Waiting, settings: &Settings) -> SignedDuration {
    if admission::is_refused(&waiting.reason) {
        NO_POD_TIMEOUT
    } else if waiting.reason == Reason::Unschedulable {
        settings.scheduling_timeout
    } else {
        STARTUP_TIMEOUT
    }
}

/// Returns the start of the startup timeout: the time at which the pod was scheduled, or, if the pod is not scheduled yet, `started_at`,
/// the start of the run or build.
pub(crate) fn startup_since(
    started_at: Timestamp,
    scheduled_at: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    scheduled_at.map_or(started_at, |at| at.min(now).max(started_at))
}

/// Returns the message of a Job without a pod.
pub(crate) fn no_pod(namespace: &str, job: &str) -> Waiting {
    Waiting {
        reason: Reason::PodNotCreated.into(),
        message: format!("Job {job} has no pod yet; see kubectl describe -n {namespace} job/{job}"),
    }
}

/// Returns the message of a pod that does not start, without a cause from Kubernetes. The scheduler reports no cause while a volume of the
/// pod is being provisioned. A scheduled pod may wait for a volume, its network or its node.
pub(crate) fn slow_pod(tf: &Terraform, job: &str, is_scheduled: bool) -> Waiting {
    let namespace = tf.namespace().unwrap_or_default();
    let message = if is_scheduled {
        format!(
            "the pod of Job {job} is scheduled but has not started; see kubectl describe pods -n \
             {namespace} -l job-name={job}"
        )
    } else {
        format!(
            "the pod of Job {job} has no node yet; its volume may not be provisioned: see kubectl \
             describe pods,persistentvolumeclaims -n {namespace}"
        )
    };
    Waiting {
        reason: Reason::PodNotStarted.into(),
        message,
    }
}
