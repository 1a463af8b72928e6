//! Approval policy of a resource: which plans need approval (rule 5).

use alustan_api::run::{ApprovalInputs, RunKind};
use alustan_api::{ApprovalMode, EmptyingPolicy, Mode, Terraform};
use serde_json::json;

use crate::digest;
use crate::model::orphans;

/// Result of [`policy_digest`] with `spec.mode: PlanOnly`.
const PLAN_ONLY: &str = "plan only";

/// Returns the approval policy of `tf` for the inputs of a run. `destroys`: whether the run is a destroy.
pub(crate) fn inputs(tf: &Terraform, destroys: bool) -> ApprovalInputs {
    ApprovalInputs {
        manual: mode(tf, destroys) == ApprovalMode::Manual,
        destroy: destroys,
        rules: rules(tf, destroys),
        approved: None,
        emptying: tf.spec.approval.emptying == EmptyingPolicy::Ask && !destroys,
        restored: None,
        discarded: None,
    }
}

fn mode(tf: &Terraform, destroys: bool) -> ApprovalMode {
    let approval = &tf.spec.approval;
    if destroys {
        approval.destroy
    } else {
        approval.mode
    }
}

/// Returns `spec.approval.rules`. Empty for a destroy, because only `approval.destroy` decides whether a destroy needs approval.
fn rules(tf: &Terraform, destroys: bool) -> Vec<alustan_api::ApprovalRule> {
    if destroys {
        Vec::new()
    } else {
        tf.spec.approval.rules.clone()
    }
}

/// Whether plans of `tf` may need approval.
pub(crate) fn may_need_approval(tf: &Terraform, destroys: bool) -> bool {
    let is_auto = mode(tf, destroys) == ApprovalMode::Auto;
    !is_auto || !rules(tf, destroys).is_empty() || adopts(tf, destroys)
}

fn adopts(tf: &Terraform, destroys: bool) -> bool {
    orphans::adopts(tf) && !destroys
}

/// Returns the digest of the approval policy: 12 hexadecimal characters, or empty if `spec.approval` has its defaults and the resource does
/// not adopt a state. [`PLAN_ONLY`] with `spec.mode: PlanOnly`: a change of the mode cancels a plan or apply that has not changed objects yet,
/// and starts a new count of failures.
pub(crate) fn policy_digest(tf: &Terraform, destroys: bool) -> String {
    if tf.spec.mode == Mode::PlanOnly && !destroys {
        return PLAN_ONLY.to_owned();
    }
    let allows_emptying = tf.spec.approval.emptying == EmptyingPolicy::Allow && !destroys;
    if !may_need_approval(tf, destroys) && !allows_emptying {
        return String::new();
    }
    let mut parts = vec![
        json!(mode(tf, destroys)),
        json!(rules(tf, destroys)),
        json!(adopts(tf, destroys)),
    ];
    parts.extend(allows_emptying.then(|| json!(EmptyingPolicy::Allow)));
    let digest = digest::plain(&parts);
    digest.chars().take(12).collect()
}

/// Returns the kind of the run that plans changes: a plan if every plan needs approval, otherwise apply or destroy.
pub(crate) fn kind(tf: &Terraform, destroys: bool) -> RunKind {
    match (mode(tf, destroys), destroys) {
        (ApprovalMode::Manual, _) => RunKind::Plan,
        (ApprovalMode::Auto, false) => RunKind::Apply,
        (ApprovalMode::Auto, true) => RunKind::Destroy,
    }
}
