//! Actions, and the states that follow from them.

use alustan_api::{CANCEL_RUN, TerraformStatus};
use alustan_core::model::facts::open_run;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;

use crate::controller::{Decisions, Stale};
use crate::objects::{Objects, Resource, Secrets, Versioned, Workload};
use crate::resource;
use crate::runner::PodWorld;
use crate::scenario::{Budget, Scenario};
use crate::shared::Shared;
use crate::state::{Earlier, Real, State};

/// Duration of [`Action::AdvanceClock`], in seconds. Longer than each startup timeout and each backoff.
const HOUR: i64 = 3600;

/// One transition. Controllers and pods are named by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A controller observes and decides.
    Observe(usize, Stale),
    /// A controller executes its next write.
    Write(usize),
    /// As [`Self::Write`], but the response is lost, and the reconcile ends.
    WriteWithoutAnswer(usize),
    /// A controller ends before its next write.
    Crash(usize),
    /// The other controller becomes the leader. The next write of the former leader is already sent.
    Elect,
    /// A pod executes its next request.
    Advance(usize),
    /// As [`Self::Advance`], but the response is lost, and the pod repeats the request.
    AdvanceWithoutAnswer(usize),
    /// The run of a pod fails because of the module.
    Fail(usize),
    /// A pod ends without a report.
    Kill(usize),
    /// A pod whose Job is deleted ends within its grace period.
    Stop(usize),
    /// The Job controller creates a second pod of a Job.
    AddPod(String),
    /// The user approves the plan in the status.
    Approve,
    /// The user changes a variable.
    Edit,
    /// The user cancels the active run.
    Cancel,
    /// The user deletes the resource.
    Delete,
    /// An hour passes.
    AdvanceClock,
}

/// Transitions of one scenario.
pub(crate) struct Transitions {
    pub(crate) scenario: Scenario,
    pub(crate) decisions: Decisions,
}

impl Transitions {
    pub(crate) fn new(scenario: Scenario) -> Self {
        Self {
            decisions: Decisions::new(scenario.defect),
            scenario,
        }
    }

    fn pod_world(&self) -> PodWorld {
        PodWorld {
            backend: self.scenario.backend,
            defect: self.scenario.defect,
        }
    }

    /// Returns the state with a new resource.
    pub(crate) fn new_resource(&self) -> State {
        State {
            seconds: 0,
            objects: Objects {
                resource: Resource {
                    tf: Some(Shared::new(resource::terraform(&self.scenario))),
                    status: Shared::new(TerraformStatus::default()),
                },
                secrets: Secrets {
                    record: Versioned::ABSENT,
                    report: Versioned::ABSENT,
                    pin: Versioned::ABSENT,
                },
                workload: Workload::default(),
            },
            earlier: Earlier::default(),
            leader: 0,
            reconciles: [None, None],
            pods: Vec::new(),
            real: Real::default(),
            lock: None,
            approved: [].into(),
            applied: [].into(),
            budget: Budget::default(),
            broken: None,
        }
    }

    /// Changes `state` by `action`.
    fn apply(&self, state: &mut State, action: &Action) -> Option<()> {
        let defect = self.scenario.defect;
        match *action {
            Action::Observe(controller, caches) => {
                let decided = self.decisions.decide(state, controller, caches)?;
                state.reconciles[controller] = Some(decided.reconcile.clone()?);
                if caches != Stale::default() {
                    state.budget.stale_reads -= 1;
                }
            }
            Action::Write(controller) => state.execute(controller, defect),
            Action::WriteWithoutAnswer(controller) => {
                state.execute(controller, defect);
                state.reconciles[controller] = None;
                state.budget.lost_answers -= 1;
            }
            Action::Crash(controller) => {
                state.reconciles[controller] = None;
                state.budget.crashes -= 1;
            }
            Action::Elect => {
                if let Some(reconcile) = &mut state.reconciles[state.leader] {
                    reconcile.writes.drain(..reconcile.writes.len() - 1);
                }
                state.leader = 1 - state.leader;
                state.budget.elections -= 1;
            }
            Action::Advance(pod) => {
                state.pods[pod].stage = state.advance_pod(pod, self.pod_world());
            }
            Action::AdvanceWithoutAnswer(pod) => {
                state.advance_pod(pod, self.pod_world());
                state.budget.lost_answers -= 1;
            }
            Action::Fail(pod) => {
                state.pods[pod].stage = state.fail_pod(pod, self.pod_world())?;
                state.budget.failures -= 1;
            }
            Action::Kill(pod) => {
                state.kill_pod(pod);
                state.budget.lost_pods -= 1;
            }
            Action::Stop(pod) => {
                state.pods[pod].stage = state.stop_pod(pod, self.pod_world())?;
            }
            Action::AddPod(ref name) => {
                let job = state.objects.workload.jobs.get(name)?.clone();
                state.add_pod(name, &job);
                state.budget.second_pods -= 1;
            }
            Action::Approve => {
                approve(state)?;
                state.budget.approvals -= 1;
            }
            Action::Edit => {
                let tf = resource::edited(state.tf()?);
                state.objects.resource.tf = Some(Shared::new(tf));
                state.budget.edits -= 1;
            }
            Action::Cancel => {
                cancel(state)?;
                state.budget.cancellations -= 1;
            }
            Action::Delete => {
                let mut tf = state.tf()?.clone();
                tf.metadata.deletion_timestamp = Some(Time(state.now()));
                state.objects.resource.tf = Some(Shared::new(resource::with_new_generation(tf)));
                state.budget.deletions -= 1;
            }
            Action::AdvanceClock => {
                state.seconds += HOUR;
                state.budget.hours -= 1;
            }
        }
        Some(())
    }

    /// Returns the state after `action`. `None` if the action changes nothing.
    pub(crate) fn next(&self, last: &State, action: &Action) -> Option<State> {
        let mut next = last.clone();
        self.apply(&mut next, action)?;
        next.publish_pods();
        let writer = match action {
            Action::Write(controller) => Some(*controller),
            _ => None,
        };
        next.remember(last, writer);
        (next != *last).then_some(next)
    }
}

impl State {
    /// Keeps the objects before their last change, by `writer`, while controllers may still read outdated caches.
    fn remember(&mut self, last: &Self, writer: Option<usize>) {
        if self.budget.stale_reads == 0 {
            self.earlier = Earlier::default();
            return;
        }
        let before = &last.objects;
        let after = &self.objects;
        if before.resource != after.resource {
            self.earlier.resource = Some((before.resource.clone(), writer));
        }
        if before.secrets != after.secrets {
            self.earlier.secrets = Some((before.secrets.clone(), writer));
        }
        if before.workload != after.workload {
            self.earlier.workload = Some((before.workload.clone(), writer));
        }
    }

    /// Returns the id of the plan in the status that waits for approval.
    fn pending_plan(&self) -> Option<&str> {
        let (_, id) = self.objects.resource.status.pending_plan()?;
        Some(id)
    }

    /// Describes `action` in this state: the write of a controller, or the request of a pod.
    pub fn describe(&self, action: &Action) -> String {
        let write = |controller: &usize| {
            let reconcile = self.reconciles[*controller].as_ref();
            reconcile.and_then(|reconcile| reconcile.writes.last())
        };
        let pod = |index: &usize| {
            let pod = &self.pods[*index];
            format!("{} ({})", pod.name, pod.stage)
        };
        match action {
            Action::Write(index) | Action::WriteWithoutAnswer(index) => {
                let write = write(index).map(ToString::to_string);
                format!("{action:?}: {}", write.unwrap_or_default())
            }
            Action::Advance(index)
            | Action::AdvanceWithoutAnswer(index)
            | Action::Fail(index)
            | Action::Kill(index)
            | Action::Stop(index) => format!("{action:?}: {}", pod(index)),
            _ => format!("{action:?}"),
        }
    }

    pub(crate) fn controller_actions(&self, has_lease: bool, actions: &mut Vec<Action>) {
        if self.budget.elections > 0 {
            actions.push(Action::Elect);
        }
        for controller in 0..self.reconciles.len() {
            if self.reconciles[controller].is_none() {
                if has_lease && controller != self.leader {
                    continue;
                }
                actions.push(Action::Observe(controller, Stale::default()));
                if self.budget.stale_reads > 0 {
                    let combinations = Stale::combinations();
                    actions.extend(combinations.map(|caches| Action::Observe(controller, caches)));
                }
                continue;
            }
            actions.push(Action::Write(controller));
            if self.budget.lost_answers > 0 {
                actions.push(Action::WriteWithoutAnswer(controller));
            }
            if self.budget.crashes > 0 {
                actions.push(Action::Crash(controller));
            }
        }
    }

    pub(crate) fn pod_actions(&self, actions: &mut Vec<Action>) {
        for (index, pod) in self.pods.iter().enumerate() {
            if !pod.is_alive() {
                continue;
            }
            actions.push(Action::Advance(index));
            if pod.is_terminating {
                actions.push(Action::Stop(index));
            }
            if self.budget.lost_answers > 0 && pod.writes_report() {
                actions.push(Action::AdvanceWithoutAnswer(index));
            }
            if self.budget.failures > 0 {
                actions.push(Action::Fail(index));
            }
            if self.budget.lost_pods > 0 {
                actions.push(Action::Kill(index));
            }
        }
        if self.budget.second_pods > 0 {
            let jobs = self.objects.workload.jobs.keys();
            let unfinished = jobs.filter(|job| self.live_pods_of(job) == 1);
            actions.extend(unfinished.map(|job| Action::AddPod(job.clone())));
        }
    }

    pub(crate) fn user_actions(&self, actions: &mut Vec<Action>) {
        let budget = self.budget;
        let is_deleted = self.is_deleted();
        let acts = [
            (budget.approvals > 0, Action::Approve),
            (budget.edits > 0 && !is_deleted, Action::Edit),
            (budget.cancellations > 0, Action::Cancel),
            (budget.deletions > 0 && !is_deleted, Action::Delete),
            (budget.hours > 0, Action::AdvanceClock),
        ];
        let possible = acts.into_iter().filter(|(is_possible, _)| *is_possible);
        actions.extend(possible.map(|(_, action)| action));
    }
}

/// Approves the plan in the status, as the user.
fn approve(state: &mut State) -> Option<()> {
    let id = state.pending_plan()?.to_owned();
    let mut tf = state.tf()?.clone();
    if tf.spec.approval.plan.as_ref() == Some(&id) {
        return None;
    }
    tf.spec.approval.plan = Some(id.clone());
    state.objects.resource.tf = Some(Shared::new(resource::with_new_generation(tf)));
    state.approved.insert(id);
    Some(())
}

/// Cancels the active run, as the user.
fn cancel(state: &mut State) -> Option<()> {
    let record = &state.objects.secrets.record.content.as_ref()?.record;
    open_run(record)?;
    let number = record.number.to_string();
    let mut tf = state.tf()?.clone();
    tf.annotations_mut().insert(CANCEL_RUN.to_owned(), number);
    state.objects.resource.tf = Some(Shared::new(tf));
    Some(())
}
