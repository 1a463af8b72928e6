//! Records all runs and approvals of a simulated cluster, and checks invariants over time.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::report::{Failure, FailureClass, RunResult};
use alustan_api::run::{Pin, RunInputs, RunKind, RunPhase, RunRecord};
use alustan_api::{ABANDON, DeletionPolicy, Mode, Terraform};
use alustan_core::observed::RecordSeen;
use kube_core::ResourceExt;

use super::{Config, Pod, Real};

/// Retry limit (`spec.retry.limit`) of the resource that [`crate::fixtures::terraform`] returns.
const LIMIT: u32 = 2;

/// Situations that generated cases should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Situation {
    Applied,
    Approved,
    BuildFailed,
    BudgetUsedUp,
    Cancelled,
    CancelledByUser,
    Conflict,
    Crash,
    CrashMidStart,
    DeletedWhileRunning,
    Destroyed,
    Lost,
    MissingSecret,
    NoRoom,
    NotConverging,
    OrphanLock,
    Outage,
    PlanRequested,
    Planned,
    Refused,
    RunFailed,
    Stale,
    Suspended,
}

impl Situation {
    /// All situations.
    pub(crate) const ALL: [Self; 23] = [
        Self::Applied,
        Self::Approved,
        Self::BuildFailed,
        Self::BudgetUsedUp,
        Self::Cancelled,
        Self::CancelledByUser,
        Self::Conflict,
        Self::Crash,
        Self::CrashMidStart,
        Self::DeletedWhileRunning,
        Self::Destroyed,
        Self::Lost,
        Self::MissingSecret,
        Self::NoRoom,
        Self::NotConverging,
        Self::OrphanLock,
        Self::Outage,
        Self::PlanRequested,
        Self::Planned,
        Self::Refused,
        Self::RunFailed,
        Self::Stale,
        Self::Suspended,
    ];
}

/// Runs, failures and approvals of a simulated cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) situations: BTreeSet<Situation>,
    decided: BTreeMap<i64, Option<Config>>,
    jobs: BTreeMap<i64, String>,
    /// Digest of the approval settings of each run.
    approval_settings: BTreeMap<i64, String>,
    /// Config hashes of destroy runs by run number. The inputs of a destroy differ from the wanted configuration.
    destroys: BTreeMap<i64, String>,
    /// [`Self::budget_key`] of the last failure, and the retry budget that failures with this key have used since the last success.
    failure_streak: (String, u32),
    /// Retry budget that all failures have used, by [`Self::budget_key`].
    used_budgets: BTreeMap<String, u32>,
    pub(crate) kinds: Vec<(RunKind, RunResult)>,
    /// Configuration of the last successful run if its `spec.mode` was `PlanOnly`.
    pub(crate) planned: Option<Config>,
    /// Numbers of the runs with `spec.mode: PlanOnly`.
    plan_only: BTreeSet<i64>,
    /// Numbers of the runs that annotation `alustan.io/plan-at` requested. They use no retry budget.
    requested_plans: BTreeSet<i64>,
    /// Ids of the plans that waited for approval, each with the configuration of its run.
    pending_plans: BTreeMap<String, Option<Config>>,
    /// Ids of the approved plans.
    approved: BTreeSet<String>,
    /// Ids of the approved plans that were applied.
    applied_plans: BTreeSet<String>,
    /// Ids of the discarded plans.
    discarded_plans: BTreeSet<String>,
}

impl Ledger {
    pub(crate) fn reached(&mut self, class: Situation) {
        self.situations.insert(class);
    }

    /// Records that plan `id` of run `number` waits for approval.
    pub(crate) fn awaits_approval(&mut self, id: &str, number: i64) {
        let config = self.decided(number).cloned();
        self.pending_plans.insert(id.to_owned(), config);
    }

    /// Records the approval of plan `id`.
    pub(crate) fn approve(&mut self, id: &str) {
        self.approved.insert(id.to_owned());
    }

    /// Records that a user discarded plan `id`.
    pub(crate) fn discard(&mut self, id: &str) {
        self.discarded_plans.insert(id.to_owned());
    }

    /// Checks that no run starts to apply a discarded plan.
    pub(crate) fn may_start(&self, inputs: &RunInputs) {
        let approved = inputs.approval.approved.as_ref();
        let is_discarded = approved.is_some_and(|plan| self.discarded_plans.contains(&plan.id));
        assert!(!is_discarded, "a discarded plan is applied: {approved:?}");
    }

    /// Checks that a plan that needs approval is approved before its apply, and that no approval is used twice.
    fn may_apply(&mut self, current: &RecordSeen) {
        let approval = &current.inputs.as_ref().unwrap().approval;
        let Some(plan) = &approval.approved else {
            assert!(!approval.manual && approval.rules.is_empty(), "unapproved");
            return;
        };
        self.reached(Situation::Approved);
        assert!(self.approved.contains(&plan.id), "nobody approved {plan:?}");
        assert!(
            self.applied_plans.insert(plan.id.clone()),
            "{plan:?} is used twice"
        );
        let number = current.record.number;
        assert!(
            self.destroys(number) || self.pending_plans[&plan.id].as_ref() == self.decided(number),
            "another plan"
        );
    }

    /// Returns the configuration for which run `number` was started.
    pub(crate) fn decided(&self, number: i64) -> Option<&Config> {
        self.decided.get(&number)?.as_ref()
    }

    /// Records the start of a run.
    pub(crate) fn decide(&mut self, record: &RunRecord, wanted: Option<&Config>) {
        let last = self.decided.keys().last();
        assert!(
            last.is_none_or(|last| record.number == last + 1),
            "runs are counted one by one"
        );
        let run = record.run.as_ref().unwrap();
        self.decided.insert(record.number, wanted.cloned());
        self.approval_settings
            .insert(record.number, run.judged_by.clone());
        if run.destroys {
            self.destroys.insert(record.number, run.config_hash.clone());
        }
        if run.mode == Mode::PlanOnly {
            self.plan_only.insert(record.number);
        }
        if run.is_requested_plan() {
            self.requested_plans.insert(record.number);
            self.reached(Situation::PlanRequested);
            return;
        }
        let (key, count) = &self.failure_streak;
        assert!(
            *key != self.budget_key(record.number) || *count < LIMIT,
            "{key} is tried again, although its budget is used up"
        );
    }

    /// Records the loss of the run record. Later runs are numbered from 1 again.
    pub(crate) fn forget_runs(&mut self) {
        self.decided.clear();
        self.jobs.clear();
        self.plan_only.clear();
        self.requested_plans.clear();
    }

    /// Records the creation of a Job of run `number`.
    pub(crate) fn job(&mut self, number: i64, name: &str) {
        let first = self.jobs.entry(number).or_insert_with(|| name.to_owned());
        assert_eq!(first, name, "run {number} has two Jobs");
    }

    /// Records that the pod of the current run starts to change real objects.
    pub(crate) fn applying(&mut self, current: &RecordSeen, pin: Option<&Pin>) {
        let run = current.record.run.clone().unwrap();
        let inputs = current.inputs.as_ref().unwrap();
        self.may_apply(current);
        if run.kind == RunKind::Destroy {
            return;
        }
        assert_eq!(run.kind, RunKind::Apply);
        let pin = pin.unwrap_or_else(|| panic!("{} applies without a pin", run.job));
        assert_eq!(
            (&pin.image, &pin.context),
            (&run.image, &run.context),
            "the pin is another"
        );
        assert_eq!(
            pin.inputs.variables, inputs.variables,
            "the pin has other variables"
        );
        let decided = self.decided(current.record.number).unwrap();
        assert_eq!(run.context.as_ref(), Some(&decided.context));
        assert_eq!(inputs.variables.get("size"), Some(&decided.size));
        assert!(
            run.image.starts_with(&decided.image),
            "{} is not decided",
            run.image
        );
    }

    /// Records the report of a run.
    pub(crate) fn reported(
        &mut self,
        number: i64,
        kind: RunKind,
        result: RunResult,
        failure: Option<&Failure>,
    ) {
        self.kinds.push((kind, result));
        let is_plan_only = self.plan_only.contains(&number);
        let is_requested = self.requested_plans.contains(&number);
        match result {
            RunResult::Failed if is_requested => {}
            RunResult::Failed => {
                self.reached(Situation::RunFailed);
                let key = self.budget_key(number);
                self.failed(&key, failure.unwrap().class);
            }
            RunResult::Cancelled => {}
            RunResult::Done | RunResult::NoChanges | RunResult::Changes => {
                if is_requested && !is_plan_only {
                    return;
                }
                // A plan that waits for approval applies nothing, so an earlier one of mode PlanOnly stays current.
                if kind == RunKind::Drift || result != RunResult::Changes {
                    self.planned = None;
                }
                if is_plan_only {
                    self.planned = self.decided(number).cloned();
                    self.reached(Situation::Planned);
                }
                self.new_budget();
                self.reached(match kind {
                    RunKind::Destroy => Situation::Destroyed,
                    RunKind::Apply | RunKind::Drift | RunKind::Plan => Situation::Applied,
                });
            }
        }
    }

    /// Records that a pod of the current run terminated without a report.
    pub(crate) fn lost(&mut self, number: i64) {
        self.reached(Situation::Lost);
        if self.requested_plans.contains(&number) {
            return;
        }
        let key = self.budget_key(number);
        self.failed(&key, FailureClass::Transient);
    }

    /// Records that a user cancelled run `number`. No run with the same budget key may start until a request by annotation. Exception: a
    /// plan that a user requested uses no retry budget (rule 5).
    pub(crate) fn cancelled_by_user(&mut self, number: i64) {
        self.reached(Situation::CancelledByUser);
        if self.requested_plans.contains(&number) {
            return;
        }
        let key = self.budget_key(number);
        self.used_budgets.insert(key.clone(), LIMIT);
        self.failure_streak = (key, LIMIT);
    }

    /// Returns the key under which the failures of run `number` are counted: configuration and approval settings of the run.
    fn budget_key(&self, number: i64) -> String {
        let judged_by = self.approval_settings.get(&number);
        match self.destroys.get(&number) {
            Some(hash) => format!("destroy {hash} judged by {judged_by:?}"),
            None => format!("{:?} judged by {judged_by:?}", self.decided(number)),
        }
    }

    /// Whether run `number` is part of a destroy.
    pub(crate) fn destroys(&self, number: i64) -> bool {
        self.destroys.contains_key(&number)
    }

    /// Records a failure of the run or build with budget key `key`. Panics if the retry budget of `key` was already used up.
    pub(crate) fn failed(&mut self, key: &str, class: FailureClass) {
        if self.failure_streak.0 != key {
            self.failure_streak = (key.to_owned(), 0);
        }
        let cost = match class {
            FailureClass::Transient => return,
            FailureClass::Module => 1,
            FailureClass::User => LIMIT,
        };
        *self.used_budgets.entry(key.to_owned()).or_default() += cost;
        let used_budget = self.failure_streak.1;
        assert!(
            used_budget < LIMIT,
            "{key} was tried again, although its budget is used up"
        );
        self.failure_streak.1 = LIMIT.min(used_budget + cost);
        if self.failure_streak.1 == LIMIT {
            self.reached(Situation::BudgetUsedUp);
        }
    }

    /// Whether the failures with the same budget key have used up the retry budget, or a plan was discarded, so that the resource may be
    /// stalled.
    pub(crate) fn may_be_stalled(&self) -> bool {
        !self.discarded_plans.is_empty() || self.used_budgets.values().any(|cost| *cost >= LIMIT)
    }

    /// Resets the retry budget after a success or a request by annotation.
    pub(crate) fn new_budget(&mut self) {
        self.failure_streak = (String::new(), 0);
    }

    /// Checks a new version of the record, written by the controller.
    pub(crate) fn record(&self, next: &RecordSeen) {
        if next.record.phase == RunPhase::Recorded {
            assert!(
                next.inputs.is_none(),
                "inputs stay in the record after the run"
            );
        }
        let names: BTreeSet<_> = self.jobs.values().collect();
        assert_eq!(names.len(), self.jobs.len(), "two runs share a Job");
    }

    /// Checks that the pods with a claim belong to at most one run.
    pub(crate) fn pods(pods: &[Pod]) {
        let working = pods.iter().filter(|pod| pod.stage.past_claim());
        let numbers: BTreeSet<i64> = working.map(|pod| pod.number).collect();
        assert!(
            numbers.len() < 2,
            "pods of runs {numbers:?} work at the same time"
        );
    }

    /// Checks that the finalizer may be removed: the real objects are destroyed, or the resource is abandoned or orphaned.
    pub(crate) fn released(real: &Real, tf: &Terraform) {
        let abandoned = tf
            .annotations()
            .get(ABANDON)
            .is_some_and(|value| value == "true");
        let spec = &tf.spec;
        let orphaned = spec.deletion_policy == DeletionPolicy::Orphan && !spec.deletion_protection;
        assert!(tf.metadata.deletion_timestamp.is_some());
        assert!(
            real.is_empty() || abandoned || orphaned,
            "let go, and {real:?} stays behind"
        );
    }
}
