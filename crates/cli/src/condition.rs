//! Reads conditions and status of a resource.

use alustan_api::Terraform;
use alustan_api::conditions::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Returns the condition with type `kind`, if the operator has set it.
pub(crate) fn condition(tf: &Terraform, kind: Kind) -> Option<&Condition> {
    tf.status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == kind.as_str())
}

/// Returns the reason of condition `Ready`.
pub(crate) fn reason(tf: &Terraform) -> Option<&str> {
    condition(tf, Kind::Ready).map(|ready| ready.reason.as_str())
}

/// Formats state, reason and message of `tf`: `Stalled (PlanFailed): …`.
pub(crate) fn situation(tf: &Terraform) -> String {
    let Some(status) = &tf.status else {
        return "not reconciled by the operator yet".to_owned();
    };
    format!(
        "{:?} ({}): {}",
        status.state,
        reason(tf).unwrap_or("-"),
        status.message
    )
}

/// Whether the condition with type `kind` is true for the current generation of `tf`.
pub(crate) fn holds(tf: &Terraform, kind: Kind) -> bool {
    let condition = condition(tf, kind);
    condition.is_some_and(|condition| {
        condition.status == "True" && condition.observed_generation == tf.metadata.generation
    })
}
