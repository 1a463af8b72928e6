//! Approval of plans (`spec.approval`).

use kube_derive::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Approval of plans.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// `Auto`: plans are applied without approval. `rules`, `emptying` and `backend.adopt` can still require the approval of a plan. `Manual`: only
    /// approved plans are applied. Default: Auto.
    #[serde(default)]
    pub mode: ApprovalMode,
    /// Id of the approved plan: the value of `status.plan.id`. An approval is valid once and for this plan only. Every other plan waits for
    /// its own approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub plan: Option<String>,
    /// Name of the user who approves `plan`, as `kubectl auth whoami` prints it. The API server refuses the name of another user (policy
    /// `alustan-approvals`). `status.plan.approvedBy` is a copy of this field. Absent: no user is recorded in status. `kubectl alustan approve`
    /// sets this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub by: Option<String>,
    /// Approval of the destroy plan when the resource is deleted. `Auto`: the plan is applied without approval. `Manual`: the plan waits for
    /// approval. Default: Auto.
    #[serde(default)]
    pub destroy: ApprovalMode,
    /// Rules that make a plan wait for approval (`then: Ask`) or forbid its apply (`then: Deny`), whatever `mode` is. They do not apply to
    /// destroy plans: see `destroy` and `deletionProtection`. At most 20 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<ApprovalRule>,
    /// Handling of a plan that deletes or forgets every managed object of the state, even if it creates other objects. `Ask`: the plan waits for
    /// approval. `Allow`: the plan is handled as any other plan. A module whose files were moved or emptied by mistake causes such a plan. Deletion
    /// of the resource is not affected. `scripts.apply` without `scripts.plan` creates no plan. In that case, `Ask` refuses a run (`NoConfiguration`)
    /// if an earlier run has started to change objects, and the folder of the module has no configuration files and no `*.hcl` files, such as
    /// `terragrunt.hcl`. Default: Ask.
    #[serde(default)]
    pub emptying: EmptyingPolicy,
}

/// Handling of a plan that removes every managed object of the state.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum EmptyingPolicy {
    /// The plan waits for approval.
    #[default]
    Ask,
    /// The plan is handled as any other plan.
    Allow,
}

/// Whether plans need approval.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ApprovalMode {
    /// Plans need no approval.
    #[default]
    Auto,
    /// Each plan with changes needs approval.
    Manual,
}

/// Approval rule: plans that match `when` wait for approval, or are never applied.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRule {
    /// CEL expression over `plan`. The rule applies to a plan for which the expression is true. `plan` has the numbers `add`, `change` and
    /// `destroy`, and the list `resources`. Each resource has `address`, `type`, `name`, `module` and `action` (`create`, `update`, `replace`,
    /// `delete`, `forget` or `import`). Example: `plan.destroy > 0`, or
    /// `plan.resources.exists(r, r.type == 'aws_db_instance' && r.action in ['delete', 'replace'])`. At most 1,000 bytes.
    #[schemars(length(min = 1, max = 1000))]
    pub when: String,
    /// `Ask`: the plan waits for approval. `Deny`: the plan is never applied.
    pub then: RuleAction,
}

/// Effect of a rule on a plan.
#[derive(
    Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema,
)]
pub enum RuleAction {
    /// The plan waits for approval.
    Ask,
    /// The plan is never applied.
    Deny,
}
