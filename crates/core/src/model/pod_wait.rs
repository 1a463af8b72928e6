//! How long a pod may take to start, and what is said meanwhile.

use alustan_api::Terraform;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::model::admission;
use crate::observed::{NOT_STARTED, UNSCHEDULABLE, Waiting};
use crate::settings::Settings;

/// How long a Job may be without a pod before people are told.
pub(crate) const NO_POD: SignedDuration = SignedDuration::from_secs(30);

/// How long a pod may be unable to start before it is given up.
pub(crate) const GIVE_UP: SignedDuration = SignedDuration::from_mins(5);

/// How long a Job is waited for whose pod waits for `why`. One that is not admitted leaves its place to
/// others: the namespace may stay full for long. A node for it may have to be made first.
pub(crate) fn patience(why: &Waiting, settings: &Settings) -> SignedDuration {
    if admission::is_refused(&why.reason) {
        NO_POD
    } else if why.reason == UNSCHEDULABLE {
        settings.scheduling_timeout
    } else {
        GIVE_UP
    }
}

/// Start of the startup timeout: when the pod was scheduled, else when the Job was created.
pub(crate) fn waits_since(
    made_at: Timestamp,
    scheduled_at: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    scheduled_at.map_or(made_at, |at| at.min(now).max(made_at))
}

/// Nobody has made a pod for `job`: its namespace does not admit it, or has no room.
pub(crate) fn no_pod(namespace: &str, job: &str) -> Waiting {
    Waiting {
        reason: "PodNotCreated".to_owned(),
        message: format!("Job {job} has no pod yet; see kubectl describe -n {namespace} job/{job}"),
    }
}

/// The pod of `job` is there and does not come to run: a volume, a network, its node.
pub(crate) fn slow_pod(tf: &Terraform, job: &str) -> Waiting {
    Waiting {
        reason: NOT_STARTED.to_owned(),
        message: format!(
            "the pod of Job {job} is there but does not run; see kubectl describe pods -n {} -l \
             job-name={job}",
            tf.namespace().unwrap_or_default()
        ),
    }
}
