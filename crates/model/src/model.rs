//! The model as a [`stateright::Model`], and its properties.

use alustan_api::Reason;
use stateright::{Model, Property};

use crate::pod::Pod;
use crate::rules::Rule;
use crate::scenario::{Backend, Scenario};
use crate::stability::{self, Stability};
use crate::state::State;
use crate::transitions::{Action, Transitions};
use crate::write::Write;

/// Model of one scenario.
pub struct RunModel {
    transitions: Transitions,
    stability: Stability,
}

impl RunModel {
    /// Creates the model of `scenario`.
    pub fn new(scenario: Scenario) -> Self {
        Self {
            transitions: Transitions::new(scenario),
            stability: Stability::default(),
        }
    }

    /// Returns the number of different observations for which the operator decided.
    pub fn decision_count(&self) -> usize {
        self.transitions.decisions.len()
    }

    /// Describes the steps of the fair schedule from `state`, and its end.
    pub fn fair_schedule(&self, state: &State) -> Vec<String> {
        stability::fair_schedule(&self.transitions, state)
    }

    fn scenario(&self) -> &Scenario {
        &self.transitions.scenario
    }
}

impl Model for RunModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = self.transitions.new_resource();
        if self.scenario().is_applied {
            state = stability::stable_state(&self.transitions, &state)
                .expect("the resource is applied without faults");
        }
        state.budget = self.scenario().budget;
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_none() {
            state.controller_actions(self.scenario().has_lease, actions);
            state.pod_actions(actions);
            state.user_actions(actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.transitions.next(last, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = rules();
        properties.extend(situations(self.scenario()));
        properties
    }
}

/// Name of the property that a stable state is reached from each state without further faults, and no rule is broken until then.
pub const BECOMES_STABLE: &str = "stable by the rules once faults stop";

/// Returns the properties of all scenarios: the rules, and liveness.
fn rules() -> Vec<Property<RunModel>> {
    vec![
        Property::always(Rule::OneMutator.name(), |_, state: &State| {
            state.keeps(Rule::OneMutator)
        }),
        Property::always(Rule::UnapprovedApply.name(), |_, state: &State| {
            state.keeps(Rule::UnapprovedApply)
        }),
        Property::always(Rule::LockOfLivePod.name(), |_, state: &State| {
            state.keeps(Rule::LockOfLivePod)
        }),
        Property::always(Rule::PinBeforeApply.name(), |_, state: &State| {
            state.keeps(Rule::PinBeforeApply)
        }),
        Property::always(Rule::ReleasedBeforeDestroy.name(), |_, state: &State| {
            state.keeps(Rule::ReleasedBeforeDestroy)
        }),
        Property::always(BECOMES_STABLE, |model: &RunModel, state: &State| {
            state.broken.is_some() || model.stability.includes(&model.transitions, state)
        }),
    ]
}

/// Returns properties that show that the search reaches the situations for which the scenario was written.
fn situations(scenario: &Scenario) -> Vec<Property<RunModel>> {
    let budget = scenario.budget;
    let concurrent = budget.elections > 0 || !scenario.has_lease;
    let is_s3 = scenario.backend == Backend::S3;
    let all = [
        (
            concurrent,
            Property::sometimes("both controllers hold writes", |_, state: &State| {
                state.reconciles.iter().all(Option::is_some)
            }),
        ),
        (
            concurrent,
            Property::sometimes("the stored record refuses a swap", |_, state: &State| {
                state.holds_outdated_swap()
            }),
        ),
        (
            budget.second_pods > 0,
            Property::sometimes("two pods of a claimed run are alive", |_, state: &State| {
                let mut working = state.pods.iter().filter(|pod| pod.is_working());
                working.any(|pod| state.live_pods_of(&pod.job) == 2)
            }),
        ),
        (
            budget.lost_answers > 0,
            Property::sometimes(
                "a lost response is followed by an apply",
                |_, state: &State| state.budget.lost_answers == 0 && state.real.size.is_some(),
            ),
        ),
        (
            budget.approvals > 0,
            Property::sometimes("an approved plan is applied", |_, state: &State| {
                !state.applied.is_empty() && state.real.size.is_some()
            }),
        ),
        (
            budget.cancellations > 0,
            Property::sometimes("a cancelled run is recorded", |_, state: &State| {
                state.last_failure() == Some(Reason::RunCancelled.as_str())
            }),
        ),
        (
            budget.deletions > 0,
            Property::sometimes("the resource is destroyed", |_, state: &State| {
                state.tf().is_none() && state.real.serial > 0
            }),
        ),
        (
            budget.lost_pods > 0,
            Property::sometimes("an interrupted apply is recorded", |_, state: &State| {
                state.last_failure() == Some(Reason::Interrupted.as_str())
            }),
        ),
        (
            budget.lost_pods > 0 && budget.hours > 0 && is_s3,
            Property::sometimes(
                "the lock of an ended pod is replaced",
                |_, state: &State| {
                    let holder = |pod: &Pod| pod.is_changing() && state.real.is_partial;
                    state.pods.iter().any(holder)
                },
            ),
        ),
    ];
    all.into_iter()
        .filter(|(is_possible, _)| *is_possible)
        .map(|(_, situation)| situation)
        .collect()
}

impl State {
    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// Returns the reason of the last failure in the run record.
    fn last_failure(&self) -> Option<&str> {
        let record = self.objects.secrets.record.content.as_ref()?;
        Some(&record.history.failures.reason)
    }

    /// Whether the next write of a controller is a swap of a record that has changed.
    fn holds_outdated_swap(&self) -> bool {
        let version = self.objects.secrets.record.version;
        self.reconciles.iter().flatten().any(|reconcile| {
            let next = reconcile.writes.last();
            reconcile.record_version != version && matches!(next, Some(Write::SwapRecord(_)))
        })
    }
}
