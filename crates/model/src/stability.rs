//! Liveness: without further faults, a fair schedule reaches a stable state from each state.

use std::collections::HashSet;

use alustan_api::{Reason, TerraformStatus};
use parking_lot::Mutex;

use crate::controller::Stale;
use crate::resource;
use crate::scenario::Budget;
use crate::shared::digest;
use crate::state::{Earlier, State};
use crate::transitions::{Action, Transitions};

/// Maximum number of transitions until a stable state.
const MAX_STEPS: usize = 200;

/// Limit of failures in the spec of the resource.
const RETRY_LIMIT: u32 = 2;

/// Digests of the states from which a stable state is reached.
#[derive(Default)]
pub(crate) struct Stability {
    known: Mutex<HashSet<u64>>,
}

/// Next step of the fair schedule.
enum Fair {
    Next(Box<State>, String),
    Stable,
    /// Nothing happens any more, although the state is not stable.
    Stuck(String),
}

impl Stability {
    /// Whether the fair schedule reaches a stable state from `state`.
    pub(crate) fn includes(&self, transitions: &Transitions, state: &State) -> bool {
        let mut state = without_budget(state);
        let mut visited = Vec::new();
        for _ in 0..MAX_STEPS {
            let key = digest(&state);
            let is_known = self.known.lock().contains(&key);
            visited.push(key);
            match fair_step(transitions, &state) {
                _ if is_known => {}
                Fair::Next(next, _) if next.broken.is_none() => {
                    state = *next;
                    continue;
                }
                Fair::Stable => {}
                Fair::Next(..) | Fair::Stuck(_) => return false,
            }
            self.known.lock().extend(visited);
            return true;
        }
        false
    }
}

/// Returns the stable state that the fair schedule reaches from `state`. `None` if it reaches none.
pub(crate) fn stable_state(transitions: &Transitions, state: &State) -> Option<State> {
    let mut state = without_budget(state);
    for _ in 0..MAX_STEPS {
        match fair_step(transitions, &state) {
            Fair::Next(next, _) => state = *next,
            Fair::Stable => return Some(state),
            Fair::Stuck(_) => return None,
        }
    }
    None
}

/// Describes the steps of the fair schedule from `state`, and its end.
pub(crate) fn fair_schedule(transitions: &Transitions, state: &State) -> Vec<String> {
    let mut state = without_budget(state);
    let mut steps = Vec::new();
    while steps.len() < MAX_STEPS && state.broken.is_none() {
        match fair_step(transitions, &state) {
            Fair::Next(next, step) => {
                steps.push(step);
                state = *next;
            }
            Fair::Stable => {
                steps.push("stable".to_owned());
                return steps;
            }
            Fair::Stuck(why) => {
                steps.push(format!("stuck: {why}"));
                return steps;
            }
        }
    }
    steps.push(format!("broken rule: {:?}", state.broken));
    steps
}

fn fair_step(transitions: &Transitions, state: &State) -> Fair {
    let next = |action: Action| {
        let next = transitions.next(state, &action)?;
        Some(Fair::Next(Box::new(next), state.describe(&action)))
    };
    let pending = state.reconciles.iter().position(Option::is_some);
    if let Some(next) = pending.and_then(|controller| next(Action::Write(controller))) {
        return next;
    }
    if let Some(next) = next(Action::Observe(state.leader, Stale::default())) {
        return next;
    }
    for (index, pod) in state.pods.iter().enumerate() {
        let stopped = pod
            .is_terminating
            .then(|| next(Action::Stop(index)))
            .flatten();
        let advanced = || {
            pod.is_alive()
                .then(|| next(Action::Advance(index)))
                .flatten()
        };
        if let Some(next) = stopped.or_else(advanced) {
            return next;
        }
    }
    let Some(decided) = transitions
        .decisions
        .decide(state, state.leader, Stale::default())
    else {
        return released(state);
    };
    if is_true(&decided.status, "Ready") && !state.is_deleted() {
        return ready(state);
    }
    if let Some(next) = approved(transitions, state) {
        return Fair::Next(Box::new(next), format!("{:?}", Action::Approve));
    }
    match decided.requeue_at {
        Some(at) if at > state.now() => {
            let seconds = at.duration_since(resource::start()).as_secs();
            let next = State {
                seconds: seconds.max(state.seconds + 1),
                ..state.clone()
            };
            Fair::Next(Box::new(next), format!("{at}"))
        }
        _ if is_true(&decided.status, "Stalled") && may_be_stalled(state, &decided.status) => {
            Fair::Stable
        }
        _ => Fair::Stuck(format!(
            "{:?}: {}",
            decided.status.state, decided.status.message
        )),
    }
}

/// Returns the state after an approval of the user, which the schedule does not take from the budget.
fn approved(transitions: &Transitions, state: &State) -> Option<State> {
    let mut state = state.clone();
    state.budget.approvals = 1;
    transitions.next(&state, &Action::Approve)
}

/// Returns `state` without the parts on which the fair schedule does not depend.
fn without_budget(state: &State) -> State {
    State {
        budget: Budget::default(),
        earlier: Earlier::default(),
        ..state.clone()
    }
}

/// Returns the result for a state in which the resource does not exist any more.
fn released(state: &State) -> Fair {
    if state.real.size.is_none() && !state.real.is_partial && state.lock.is_none() {
        return Fair::Stable;
    }
    Fair::Stuck(format!("released, but {:?} stays", state.real))
}

fn ready(state: &State) -> Fair {
    let wanted = state.tf().map(resource::wanted);
    if state.real.size == wanted && !state.real.is_partial {
        return Fair::Stable;
    }
    Fair::Stuck(format!("Ready, but {:?} is not {wanted:?}", state.real))
}

fn is_true(status: &TerraformStatus, kind: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Whether `status` may be stalled: the retry budget is used up, the user cancelled the last run, or run record and pin are missing and nothing
/// is left to destroy. The last case follows from a late write of a former leader, after the clean-up by the current leader: an outdated
/// status, or a Job. Both are evidence of an apply, so the operator asks the user before it releases the resource.
fn may_be_stalled(state: &State, status: &TerraformStatus) -> bool {
    let has_reason = |reason| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.type_ == "Stalled" && condition.reason == reason)
    };
    if has_reason(Reason::PinLost.as_str()) {
        return state.real.size.is_none() && !state.real.is_partial;
    }
    let record = state.objects.secrets.record.content.as_ref();
    record.is_some_and(|record| {
        let failures = &record.history.failures;
        failures.count >= RETRY_LIMIT || failures.reason == Reason::RunCancelled
    })
}
