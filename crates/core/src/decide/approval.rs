//! Approval of plans (rules 5 and 6).

use alustan_api::change_set::ChangeSet;
use alustan_api::names::{self, plan_key};
use alustan_api::report::PlanAsks;
use alustan_api::run::{
    ApprovalGiven, ApprovalInputs, ApprovedPlan, History, PendingPlan, RunSpec, Trigger,
};
use alustan_api::{DISCARD_PLAN, Reason, State, Terraform};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;
use serde_json::json;

use crate::decide::case::ReconcileCase;
use crate::decide::restore;
use crate::model::approval_policy::{may_need_approval, policy_digest};
use crate::model::facts::sets_approval;
use crate::model::summary::{self, Summary, differences, logs, patch};
use crate::model::{pod_options, user_request};

/// Returns the key under which failures of a run are counted. It contains the config hash and the digest of the approval policy: after a
/// change of one of them, the count starts again.
pub(super) fn failure_key(config_hash: &str, policy_digest: &str) -> String {
    if policy_digest.is_empty() {
        config_hash.to_owned()
    } else {
        format!("{config_hash} judged by {policy_digest}")
    }
}

/// Returns the key under which failures of `run` are counted.
pub(super) fn run_failure_key(run: &RunSpec) -> String {
    pod_options::with_digest(failure_key(&run.config_hash, &run.judged_by), &run.pod)
}

/// Returns the pending plan of run `number`, which reported that its plan needs approval.
pub(super) fn new_pending_plan(
    run: &RunSpec,
    number: i64,
    asks: PlanAsks,
    now: Timestamp,
) -> PendingPlan {
    PendingPlan {
        id: asks.id,
        run: number,
        config_hash: run.config_hash.clone(),
        judged_by: run.judged_by.clone(),
        because: asks.because,
        since: now,
    }
}

/// Returns the pending plan. `None` if the plan has another config hash than `config_hash`, or was made with another approval policy.
pub(super) fn pending<'a>(
    tf: &Terraform,
    history: &'a History,
    config_hash: &str,
    destroys: bool,
) -> Option<&'a PendingPlan> {
    let policy_digest = policy_digest(tf, destroys);
    history
        .pending
        .as_ref()
        .filter(|plan| plan.config_hash == config_hash && plan.judged_by == policy_digest)
}

/// Returns the pending plan after a request of a new plan: `None` if a user discarded the plan. If the requested run or its build fails, the
/// retry then makes the new plan.
pub(super) fn pending_after_request(history: &History) -> Option<PendingPlan> {
    let pending = history.pending.clone();
    pending.filter(|plan| !history.has_discarded(&plan.id))
}

/// Whether `spec.approval.plan` approves `plan`. An approval of a discarded plan has no effect.
pub(super) fn is_approved(tf: &Terraform, history: &History, plan: &PendingPlan) -> bool {
    tf.spec.approval.plan.as_ref() == Some(&plan.id) && !history.has_discarded(&plan.id)
}

/// Adds the approval of `plan` to the `inputs` of the run that applies it.
pub(super) fn approve(inputs: &mut ApprovalInputs, plan: &PendingPlan) {
    inputs.approved = Some(ApprovedPlan {
        id: plan.id.clone(),
        run: plan.run,
    });
}

/// Returns the trigger of the run that applies `plan`.
pub(super) fn trigger(plan: &PendingPlan) -> Trigger {
    Trigger::Approval {
        plan: plan.id.clone(),
    }
}

/// Returns the approval of `plan` in `tf`, for the history. Includes user, field manager and time if the API server has recorded them.
pub(super) fn approval_given(tf: &Terraform, plan: &PendingPlan, run: i64) -> ApprovalGiven {
    let entry = tf
        .managed_fields()
        .iter()
        .find(|entry| sets_approval(entry));
    ApprovalGiven {
        plan: plan.id.clone(),
        user: tf.spec.approval.by.clone(),
        manager: entry.and_then(|entry| entry.manager.clone()),
        at: entry.and_then(|entry| Some(entry.time.as_ref()?.0)),
        run,
    }
}

/// Returns the command that prints the text of a plan. `key`: data key of the text in the plan Secret.
pub(super) fn plan_text(tf: &Terraform, key: &str) -> String {
    format!(
        "kubectl get secret -n {} {} -o go-template='{{{{index .data \"{key}\" | base64decode}}}}'",
        tf.namespace().unwrap_or_default(),
        names::plan(&tf.name_any()),
    )
}

impl ReconcileCase<'_> {
    /// Discards the pending plan that annotation `alustan.io/discard-plan` names, unless a run has begun to apply it.
    pub(super) fn discard_plan(&mut self) {
        let named = user_request::value(self.tf, DISCARD_PLAN);
        let pending = self.history.pending.as_ref();
        let is_new = pending.is_some_and(|plan| {
            named.as_ref() == Some(&plan.id) && !self.history.has_discarded(&plan.id)
        });
        if is_new && self.current.phase.is_harmless() {
            self.history.discarded = named;
            self.steps.push(self.store_history());
        }
    }

    /// Returns the summary of a pending plan of a configuration that is not applied.
    pub(super) fn pending_summary(&self, plan: &PendingPlan) -> Summary {
        if self.history.has_discarded(&plan.id) {
            return Summary::stalled(Reason::PlanDiscarded, self.discard_message(plan));
        }
        let message = self.approval_message(plan);
        Summary::busy(State::AwaitingApproval, Reason::AwaitingApproval, message)
    }

    /// Returns the message of a discarded plan: changes, and how to make a new plan.
    pub(super) fn discard_message(&self, plan: &PendingPlan) -> String {
        let PendingPlan { id, run, .. } = plan;
        let approved = self.tf.spec.approval.plan.as_ref() == Some(id);
        let approved = if approved {
            "; spec.approval.plan names this plan and has no effect"
        } else {
            ""
        };
        format!(
            "plan {id} of run {run} was discarded by a user: {}; it cannot be approved{approved}; \
             for a new plan, change the module or the resource, or: {}",
            self.planned_changes(plan),
            summary::retry_command(self.tf),
        )
    }

    /// Returns the changes of `plan` for a message.
    fn planned_changes(&self, plan: &PendingPlan) -> String {
        let report = self.history.report(plan.run);
        let changes = report.and_then(|report| report.changes.as_ref());
        changes.map_or_else(|| "changes".to_owned(), describe_changes)
    }

    /// Returns the message of a pending plan: changes, reasons for the approval, and the command to approve.
    pub(super) fn approval_message(&self, plan: &PendingPlan) -> String {
        let report = self.history.report(plan.run);
        let change_text = self.planned_changes(plan);
        let reasons = plan.because.iter().cloned();
        let reasons: Vec<_> = reasons
            .chain(restore::first_plan_reason(&self.history))
            .collect();
        let reasons = match reasons.as_slice() {
            [] => String::new(),
            reasons => format!(" ({})", reasons.join("; ")),
        };
        let hint = report.map_or_else(String::new, |report| {
            let logs = logs(self.tf, &report.job);
            if !may_need_approval(self.tf, false) && !may_need_approval(self.tf, true) {
                return format!("; see {logs}");
            }
            format!("; see {logs} or {}", plan_text(self.tf, plan_key::TEXT))
        });
        // The command also clears `spec.approval.by`, the user of an earlier approval.
        let approval = match self.tf.spec.approval.by {
            Some(_) => json!({ "plan": plan.id, "by": null }),
            None => json!({ "plan": plan.id }),
        };
        let approve = patch(self.tf, &json!({ "approval": approval }));
        format!(
            "plan {} waits for approval{reasons}: {change_text}; to approve: {approve}{hint}{}",
            plan.id,
            self.wrong_approval(plan),
        )
    }

    /// Returns the id of the last approved plan for which a run was started.
    pub(super) fn used_plan(&self) -> Option<&String> {
        let approval = self.history.approved.as_ref()?;
        Some(&approval.plan)
    }

    /// Returns a message suffix if `spec.approval.plan` is the id of another plan than `plan`.
    fn wrong_approval(&self, plan: &PendingPlan) -> String {
        let used_plan = self.used_plan();
        match &self.tf.spec.approval.plan {
            Some(id) if *id != plan.id && self.history.has_discarded(id) => {
                format!("; plan {id} was discarded, and its approval has no effect")
            }
            Some(id) if *id != plan.id && Some(id) == used_plan => {
                format!("; plan {id} was approved before; an approval is valid once")
            }
            Some(id) if *id != plan.id => {
                format!("; spec.approval.plan is {id:?}, which is not this plan and has no effect")
            }
            Some(_) | None => String::new(),
        }
    }
}

/// Formats a change set for a message. The number of destroyed objects comes first.
fn describe_changes(changes: &ChangeSet) -> String {
    let destroys = match changes.destroy {
        0 => String::new(),
        1 => "1 object to destroy, ".to_owned(),
        many => format!("{many} objects to destroy, "),
    };
    format!("{destroys}{}", differences(changes))
}
