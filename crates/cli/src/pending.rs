//! The plan of a resource that waits for approval, as reported in its status.

use alustan_api::ObjectKey;
use alustan_api::{Terraform, TerraformStatus};

use crate::cluster::Cluster;
use crate::condition::situation;
use crate::error::Error;
use crate::print;

/// Plan that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Plan id.
    pub(crate) id: String,
    /// Summary of the changes: add, change, destroy. Example: `+2 ~1 -0`.
    pub(crate) summary: String,
}

/// Returns the plan of `tf` that waits for approval.
///
/// # Errors
/// If no plan waits for approval. The error contains state, reason and message of the resource.
pub(crate) fn pending(tf: &Terraform) -> Result<Pending, Error> {
    let status = tf.status.as_ref();
    status
        .and_then(TerraformStatus::pending_plan)
        .map(|(plan, id)| Pending {
            id: id.to_owned(),
            summary: plan.summary.clone(),
        })
        .ok_or_else(|| {
            Error::Refused(format!(
                "no plan of {} waits for approval; current state: {}",
                ObjectKey::of(tf),
                situation(tf)
            ))
        })
}

/// Checks that `given`, the plan id in the command line, is the id of `pending`. Succeeds if the command line has no plan id.
///
/// # Errors
/// If the plan ids differ. The error contains the id of the pending plan.
pub(crate) fn check(tf: &Terraform, pending: &Pending, given: Option<&str>) -> Result<(), Error> {
    let Some(given) = given.filter(|given| *given != pending.id) else {
        return Ok(());
    };
    let ObjectKey { namespace, name } = ObjectKey::of(tf);
    Err(Error::Refused(format!(
        "plan {given} of {namespace}/{name} does not wait for approval; the pending plan is {} \
         ({}). To show it: kubectl alustan plan {name} -n {namespace}",
        pending.id, pending.summary
    )))
}

/// Reads the resource `name`, and prints its plan that waits for approval. `given`: plan id in the command line.
///
/// # Errors
/// If no plan waits for approval, or another one than `given`.
pub(crate) async fn announce(
    cluster: &Cluster,
    name: &str,
    given: Option<&str>,
) -> Result<(Terraform, Pending), Error> {
    let tf = cluster.resource(name).await?;
    let pending = pending(&tf)?;
    check(&tf, &pending, given)?;
    let Pending { id, summary } = &pending;
    print::line(&format!("plan {id} of {}: {summary}", ObjectKey::of(&tf)))?;
    Ok((tf, pending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn with_plan(plan: &serde_json::Value) -> Terraform {
        serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team"},
            "spec": {
                "gitRepo": {"url": "https://127.0.0.1:1/a/b"},
                "containerRegistry": {"imageName": "127.0.0.1:1/a/b"},
            },
            "status": {
                "state": "Success", "message": "applied", "plan": plan,
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Applied", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .unwrap()
    }

    fn plan(pending: bool) -> serde_json::Value {
        json!({
            "summary": "+1 ~0 -0", "id": "0123", "pendingApproval": pending,
            "add": 1, "change": 0, "destroy": 0,
        })
    }

    #[rstest]
    #[case::applied(plan(false))]
    #[case::without_plan(json!(null))]
    fn missing_pending_plan_is_reported_with_the_state(#[case] plan: serde_json::Value) {
        let error = pending(&with_plan(&plan)).unwrap_err().to_string();
        assert_eq!(
            error,
            "no plan of team/web waits for approval; current state: Success (Applied): applied"
        );
    }

    #[rstest]
    #[case(None, true)]
    #[case(Some("0123"), true)]
    #[case(Some("4567"), false)]
    fn only_the_pending_plan_is_approved(#[case] given: Option<&str>, #[case] good: bool) {
        let tf = with_plan(&plan(true));
        let pending = pending(&tf).unwrap();
        assert_eq!(check(&tf, &pending, given).is_ok(), good);
    }
}
