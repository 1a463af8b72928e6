//! Recognises denials by `ResourceQuota` and `LimitRange` in messages of the API server.
//!
//! Only the owner of the namespace can change its quotas and limit ranges, and the operator does not watch them. So status shows the
//! denial, and the request is retried with a backoff.

use alustan_api::Reason;

use crate::observed::Waiting;

/// Prefixes of the messages of the `ResourceQuota` plugin
/// (<https://github.com/kubernetes/apiserver/blob/v0.34.2/pkg/admission/plugin/resourcequota/controller.go>).
const QUOTA_PREFIXES: [&str; 4] = [
    "exceeded quota: ",
    "failed quota: ",
    "insufficient quota to ",
    "status unknown for quota: ",
];

/// Substrings that all messages of the `LimitRanger` plugin contain
/// (<https://github.com/kubernetes/kubernetes/blob/v1.34.4/plugin/pkg/admission/limitranger/admission.go>).
const LIMIT_RANGE_PARTS: [&str; 2] = [" usage per ", " max limit to request ratio per "];

/// Separates the object name from the cause of the denial. The name may have a random suffix, so messages are compared without the name.
const FORBIDDEN: &str = " is forbidden: ";

/// Returns reason and cause of a denial `message` of the API server. `None` if the cause is neither a `ResourceQuota` nor a `LimitRange`.
pub fn limit_denial(message: &str) -> Option<Waiting> {
    refused_by(message).map(|reason| Waiting {
        reason: reason.into(),
        message: denial_cause(message).to_owned(),
    })
}

/// Returns [`Reason::QuotaRefused`] or [`Reason::LimitRangeRefused`] if the denial `message` is from the `ResourceQuota` or the
/// `LimitRanger` plugin.
pub fn refused_by(message: &str) -> Option<Reason> {
    let cause = denial_cause(message);
    if QUOTA_PREFIXES
        .iter()
        .any(|prefix| cause.starts_with(prefix))
    {
        return Some(Reason::QuotaRefused);
    }
    let limits = LIMIT_RANGE_PARTS
        .iter()
        .any(|substring| cause.contains(substring));
    limits.then_some(Reason::LimitRangeRefused)
}

/// Returns why a Job has no pod, from the last failure `event` of the Job controller.
pub fn no_pod(event: &str) -> Waiting {
    limit_denial(event).unwrap_or_else(|| Waiting {
        reason: Reason::PodNotCreated.into(),
        message: denial_cause(event).to_owned(),
    })
}

/// Whether `reason` is a denial by a `ResourceQuota` or `LimitRange`, which only the owner of the namespace can resolve.
pub(crate) fn is_refused(reason: &str) -> bool {
    matches!(
        Reason::from_stored(reason),
        Some(Reason::QuotaRefused | Reason::LimitRangeRefused)
    )
}

/// Returns the kubectl command that shows the quotas and limit ranges of `namespace`.
pub fn limits_of(namespace: &str) -> String {
    format!("kubectl describe resourcequota,limitrange -n {namespace}")
}

fn denial_cause(message: &str) -> &str {
    message
        .split_once(FORBIDDEN)
        .map_or(message, |(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::jobs(
        r#"jobs.batch "web-apply-1" is forbidden: exceeded quota: small, requested: count/jobs.batch=1, used: count/jobs.batch=2, limited: count/jobs.batch=2"#,
        Some((Reason::QuotaRefused, "exceeded quota: small, requested: count/jobs.batch=1, used: count/jobs.batch=2, limited: count/jobs.batch=2"))
    )]
    #[case::pods(
        r#"Error creating: pods "web-apply-1-x7k2p" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1"#,
        Some((Reason::QuotaRefused, "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1"))
    )]
    #[case::unnamed(
        r#"pods "a" is forbidden: failed quota: cpu: must specify limits.cpu for: terraform"#,
        Some((Reason::QuotaRefused, "failed quota: cpu: must specify limits.cpu for: terraform"))
    )]
    #[case::new_quota(
        r#"jobs.batch "a" is forbidden: status unknown for quota: small, resources: count/jobs.batch"#,
        Some((Reason::QuotaRefused, "status unknown for quota: small, resources: count/jobs.batch"))
    )]
    #[case::storage(
        r#"persistentvolumeclaims "web-cache" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 5Gi"#,
        Some((Reason::LimitRangeRefused, "maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 5Gi"))
    )]
    #[case::several_limits(
        r#"pods "a" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per Container is 1Gi, but limit is 2Gi]"#,
        Some((Reason::LimitRangeRefused, "[maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per Container is 1Gi, but limit is 2Gi]"))
    )]
    #[case::ratio(
        r#"pods "a" is forbidden: cpu max limit to request ratio per Container is 1, but provided ratio is 2.000000"#,
        Some((Reason::LimitRangeRefused, "cpu max limit to request ratio per Container is 1, but provided ratio is 2.000000"))
    )]
    #[case::rights(
        r#"jobs.batch is forbidden: User "x" cannot create resource "jobs" in API group "batch" in the namespace "team""#,
        None
    )]
    #[case::pod_security(
        r#"pods "a" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true"#,
        None
    )]
    fn only_quota_and_limit_range_denials_are_recognised(
        #[case] message: &str,
        #[case] expected: Option<(Reason, &str)>,
    ) {
        let recognised = limit_denial(message);
        let recognised = recognised.map(|waiting| {
            (
                Reason::from_stored(&waiting.reason).unwrap(),
                waiting.message,
            )
        });
        assert_eq!(
            recognised,
            expected.map(|(reason, message)| (reason, message.to_owned()))
        );
    }

    #[test]
    fn other_pod_denials_keep_their_message() {
        let event = r#"Error creating: pods "a-x" is forbidden: violates PodSecurity "restricted""#;
        let waiting = no_pod(event);
        assert_eq!(waiting.reason, "PodNotCreated");
        assert_eq!(waiting.message, r#"violates PodSecurity "restricted""#);
        let other = no_pod("Error creating: Internal error occurred");
        assert_eq!(other.message, "Error creating: Internal error occurred");
    }
}
