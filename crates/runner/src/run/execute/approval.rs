//! Evaluation of plans by approval rules, publication of plans for approval, and apply of approved plans (rules 5 and 6).

use std::fs;
use std::time::Instant;

use alustan_api::change_set::ChangeSet;
use alustan_api::report::{Failure, PlanAsks, RunResult};
use alustan_api::run::ApprovedPlan;
use alustan_api::{ApprovalRule, Reason, RuleAction};
use alustan_cel::approval::{Matched, judge, unjudged};
use ring::digest;

use super::goal::Goal;
use super::outcome::{Ended, Findings};
use super::ownership::StateOwnership;
use crate::cache_volume::in_time;
use crate::engine::NO_COLOR;
use crate::failure::user;
use crate::file_system::write_private;
use crate::plan;
use crate::plan::changes::PlanSummary;
use crate::plan::id::{PlanIdInputs, plan_id};
use crate::plan::text::TextEntry;
use crate::run::session::{Session, stopped};

/// Reason for which a plan needs approval: the resource adopts the state of the plan.
const TAKEN_OVER: &str = "the plan adopts a state that this resource did not create";

/// Reason for which a plan needs approval: the plan removes every managed object.
const EMPTIES: &str = "the plan removes every managed object of the state (spec.approval.emptying)";

/// Reason for which a plan needs approval: the engine cannot read the plan, so the changes are unknown.
const UNREADABLE: &str = "the plan of scripts.plan cannot be read, so it may remove every managed object of the state \
                          (spec.approval.emptying)";

/// Maximum number of planned changes that the message of a denied plan lists.
const NAMED: usize = 10;

impl Session {
    /// Whether a plan must be evaluated for approval before its apply: because of the approval mode, an existing approval, rules, or the
    /// adoption of a state.
    pub(super) fn needs_approval_check(&self, state: &StateOwnership) -> bool {
        let approval = &self.inputs.approval;
        let requested = approval.manual || approval.approved.is_some();
        requested || !approval.rules.is_empty() || state.is_taken_over()
    }

    /// Creates a plan, and requests its approval if it has changes.
    pub(super) async fn plan_for_approval(
        &self,
        goal: Goal,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        self.check_that_plans_are_applied(goal)?;
        if self.plan(goal, state).await?.is_some() {
            let (summary, id) = self.plan_made(state).await?;
            let because = self.judge(goal, state, summary.as_ref(), findings).await?;
            return Ok(self.request_approval(id, because, findings).await);
        }
        if goal == Goal::Apply {
            findings.outputs = Some(self.outputs().await?);
        }
        Ok(RunResult::NoChanges)
    }

    /// Applies the approved plan, or a new plan that needs no approval. Requests approval of any other plan.
    pub(super) async fn apply_approved(
        &self,
        goal: Goal,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        self.check_that_plans_are_applied(goal)?;
        let approved = self.inputs.approval.approved.as_ref();
        if let Some(approved) = approved
            && let Some(summary) = self.stored_plan(approved, state).await
        {
            self.judge(goal, state, summary.as_ref(), findings).await?;
            return self.carry_out(goal, state, findings).await;
        }
        if self.plan(goal, state).await?.is_none() {
            return self.nothing_to_do(goal, findings).await;
        }
        self.apply_judged(goal, state, findings).await
    }

    /// Applies the new plan if it is approved or needs no approval. Requests approval otherwise.
    pub(super) async fn apply_judged(
        &self,
        goal: Goal,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        let approved = self.inputs.approval.approved.as_ref();
        let (summary, id) = self.plan_made(state).await?;
        let because = self.judge(goal, state, summary.as_ref(), findings).await?;
        let asks = self.inputs.approval.manual || !because.is_empty();
        if !asks || approved.is_some_and(|approved| approved.id == id) {
            let (done, ()) = tokio::join!(self.carry_out(goal, state, findings), self.keep_plan());
            return done;
        }
        if let Some(approved) = approved {
            let ApprovedPlan { id: other, .. } = approved;
            crate::log!(
                "plan {other} was approved, but the current plan is {id}; not applying plan {id}"
            );
        }
        Ok(self.request_approval(id, because, findings).await)
    }

    /// Fails if a script of the user applies or destroys without a plan: approval requires a plan.
    fn check_that_plans_are_applied(&self, goal: Goal) -> Result<(), Failure> {
        let script = match goal {
            Goal::Apply if !self.makes_plans() => "scripts.apply",
            Goal::Destroy if self.scripts.destroy.is_some() => "scripts.destroy",
            Goal::Apply | Goal::Destroy => return Ok(()),
        };
        let text = format!(
            "{script} creates no plan, but approval requires a plan. Nothing was changed. Remove \
             {script}, or change spec.approval"
        );
        Err(user(Reason::NoPlanFile, text))
    }

    /// Restores the approved plan as the current plan file and returns its summary. Returns `None`, and leaves no plan file, if the plan is
    /// lost, or if the inputs of the plan have changed. The inner option is `None` if `scripts.plan` created the plan and the engine cannot
    /// read it.
    async fn stored_plan(
        &self,
        approved: &ApprovedPlan,
        state: &StateOwnership,
    ) -> Option<Option<PlanSummary>> {
        let file = self.paths.plan_file();
        let (cache, key, run) = (self.paths.cache.clone(), self.key.clone(), approved.run);
        let stored = in_time(move || Ok(plan::file::open(&cache, run, &key))).await;
        let why = match stored.flatten() {
            None => "the plan is not on the cache volume".to_owned(),
            Some(plan) => match write_private(&file, &plan, 0o600) {
                Err(error) => format!("the plan cannot be written: {error}"),
                Ok(()) => match self.plan_made(state).await {
                    Ok((summary, id)) if id == approved.id => return Some(summary),
                    Ok(_) => {
                        "the state, the values or the module changed after the plan".to_owned()
                    }
                    Err(failure) => format!("the plan cannot be read: {}", failure.message),
                },
            },
        };
        let ApprovedPlan { id, run } = approved;
        crate::log!("cannot apply the approved plan {id} of run {run}: {why}; planning again");
        let _ = fs::remove_file(file);
        None
    }

    /// Returns summary and id of the current plan. The summary is `None` if `scripts.plan` created the plan and the engine cannot read it.
    async fn plan_made(
        &self,
        state: &StateOwnership,
    ) -> Result<(Option<PlanSummary>, String), Failure> {
        let (summary, head) = tokio::join!(self.readable(), self.head_for_id(state));
        let summary = summary?;
        let digest = if let Some(summary) = &summary {
            summary.set.digest.clone()
        } else {
            let file = fs::read(self.paths.plan_file()).unwrap_or_default();
            hex::encode(digest::digest(&digest::SHA256, &file))
        };
        let run = self.claimed.run.as_ref();
        let managed = self.inputs.backend.managed.is_some();
        let address = if managed { None } else { self.state_address() };
        let plan = PlanIdInputs {
            digest: &digest,
            address: address.as_deref(),
            context: run.and_then(|run| run.context.as_deref()),
            variables: &self.inputs.variables,
            scripts: &self.inputs.scripts,
            state: &head,
            begun: self.last_begun(),
            restored: self.inputs.approval.restored,
            discarded: self.inputs.approval.discarded.as_deref(),
        };
        let id = plan_id(plan, &self.key);
        Ok((summary, id))
    }

    /// Returns the summary of the plan. Returns `None` if `scripts.plan` created a plan that the engine cannot read. Fails on such a plan if
    /// approval is manual or rules are configured, because the approval then depends on the summary.
    async fn readable(&self) -> Result<Option<PlanSummary>, Failure> {
        let approval = &self.inputs.approval;
        let any_form = self.scripts.plan.is_some() && !approval.manual && approval.rules.is_empty();
        let summary = match self.check_plan_file() {
            Ok(()) => self.summary().await,
            Err(failure) => Err(failure),
        };
        match summary {
            Ok(summary) => Ok(Some(summary)),
            Err(_) if any_form => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the reasons for which the plan needs approval, other than `approval.mode: Manual`. Evaluates rules only for [`Goal::Apply`]:
    /// other fields of `spec.approval` determine the approval of a destroy.
    ///
    /// # Errors
    /// Fails if a rule denies the plan.
    async fn judge(
        &self,
        goal: Goal,
        state: &StateOwnership,
        summary: Option<&PlanSummary>,
        findings: &mut Findings,
    ) -> Result<Vec<String>, Failure> {
        let mut because: Vec<String> = Vec::new();
        if state.is_taken_over() {
            because.push(TAKEN_OVER.to_owned());
        }
        let Some(summary) = summary else {
            because.extend((self.last_begun() > 0).then(|| UNREADABLE.to_owned()));
            return Ok(because);
        };
        findings.changes = Some(summary.set.clone());
        if goal == Goal::Apply {
            let matched = self.matched(&summary.plan).await?;
            if let Some(rule) = matched.iter().find(|rule| rule.then == RuleAction::Deny) {
                return Err(denied(rule, &summary.set));
            }
            because.extend(matched.iter().map(ToString::to_string));
            because.extend(
                (self.inputs.approval.emptying && summary.empties).then(|| EMPTIES.to_owned()),
            );
        }
        Ok(because)
    }

    /// Returns the rules that match the plan. No time limit applies to the evaluation of all rules. Therefore, waits for the evaluation at
    /// most until the deadline of `init` and `plan`, and fails on a stop request.
    async fn matched(&self, plan: &alustan_cel::approval::Plan) -> Result<Vec<Matched>, Failure> {
        let rules = self.inputs.approval.rules.clone();
        tokio::select! {
            matched = judged_until(self.plan_deadline(), rules, plan.clone()) => Ok(matched),
            _ = self.commands.stop.requested() => Err(stopped()),
        }
    }

    /// Stores the plan on the cache volume, publishes it for review, and requests its approval.
    async fn request_approval(
        &self,
        id: String,
        because: Vec<String>,
        findings: &mut Findings,
    ) -> RunResult {
        tokio::join!(
            self.keep_plan(),
            self.publish_plan(&plan::text::PENDING, &id)
        );
        crate::log!("plan {id} waits for approval");
        findings.asks = Some(PlanAsks { id, because });
        RunResult::Changes
    }

    /// Writes the text of the plan to the data keys `entry` of a Secret, for review. Errors are only logged, because the log also contains the
    /// text.
    pub(super) async fn publish_plan(&self, entry: &TextEntry, id: &str) {
        let Some(secret) = &self.inputs.plan_secret else {
            return;
        };
        let shown = match self.show(NO_COLOR).await {
            Ok(shown) => shown,
            Err(failure) => {
                crate::log!(
                    "failed to publish the plan in Secret {secret}: {}",
                    failure.message
                );
                return;
            }
        };
        let text = self
            .commands
            .redactor
            .text(&String::from_utf8_lossy(&shown));
        if let Err(error) = plan::text::publish(&*self.secrets, secret, entry, id, &text).await {
            crate::log!("failed to publish the plan in Secret {secret}: {error}");
        }
    }

    async fn carry_out(
        &self,
        goal: Goal,
        state: &mut StateOwnership,
        findings: &mut Findings,
    ) -> Result<RunResult, Ended> {
        self.begin_to_change(state, findings).await?;
        let applied = match goal {
            Goal::Apply => self.apply_plan().await,
            Goal::Destroy => self.apply_destroy_plan().await,
        };
        self.rescue_state(applied, findings).await?;
        if goal == Goal::Apply {
            findings.outputs = Some(self.outputs().await?);
        }
        Ok(RunResult::Done)
    }

    async fn nothing_to_do(&self, goal: Goal, findings: &mut Findings) -> Result<RunResult, Ended> {
        if goal == Goal::Destroy {
            crate::log!("nothing to destroy");
            return Ok(RunResult::Done);
        }
        findings.outputs = Some(self.outputs().await?);
        Ok(RunResult::NoChanges)
    }
}

/// Returns the rules that match `plan`. Returns all rules if the evaluation fails or exceeds `deadline`, so that a plan is not applied
/// without an evaluation of the rules.
async fn judged_until(
    deadline: Instant,
    rules: Vec<ApprovalRule>,
    plan: alustan_cel::approval::Plan,
) -> Vec<Matched> {
    let all = rules.clone();
    let judged = tokio::task::spawn_blocking(move || judge(&rules, &plan));
    let why = match tokio::time::timeout_at(deadline.into(), judged).await {
        Ok(Ok(matched)) => return matched,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the evaluation exceeded spec.timeouts.plan".to_owned(),
    };
    unjudged(&all, &why)
}

/// Returns the failure of a plan that `rule` denies.
fn denied(rule: &Matched, set: &ChangeSet) -> Failure {
    let mut named: Vec<String> = set
        .resources
        .iter()
        .take(NAMED)
        .map(|resource| format!("{} {}", resource.action, resource.address))
        .collect();
    if set.omitted > 0 || set.resources.len() > named.len() {
        named.push("…".to_owned());
    }
    let resources = named.join(", ");
    user(
        Reason::PlanDenied,
        format!(
            "{rule}\nThe rule denies the plan, which would {resources}. Nothing was applied. Change \
             the module, its variables or the rule"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rules_that_exceed_the_time_limit_count_as_matching() {
        let digits = "[0,1,2,3,4,5,6,7,8,9]";
        let rule = |when: &str| ApprovalRule {
            when: when.into(),
            then: RuleAction::Ask,
        };
        let slow = format!(
            "{digits}.all(a, {digits}.all(b, {digits}.all(c, {digits}.all(d, a + b + c + d < 0 || \
             true))))"
        );
        let rules = vec![rule("false"), rule(&slow)];
        let plan = alustan_cel::approval::Plan::default();
        let matched = judged_until(Instant::now(), rules, plan).await;
        let messages: Vec<String> = matched.iter().map(ToString::to_string).collect();
        let wanted = "spec.approval.rules[0] cannot be evaluated (the evaluation exceeded \
                      spec.timeouts.plan) and is handled as matching: false";
        assert_eq!((messages.len(), messages[0].as_str()), (2, wanted));
    }
}
