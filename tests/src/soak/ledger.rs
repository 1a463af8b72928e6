//! Checks of a campaign: what the modules created and destroyed, compared with the results of runs and with the states.

use std::collections::{BTreeMap, BTreeSet};

/// Request of a module to the counter: it created or destroyed an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) resource: String,
    /// Name of the object in the module.
    pub(super) object: String,
    /// Value of the object. The specs and commits of a campaign require each value once.
    pub(super) value: String,
    pod: String,
    is_creation: bool,
}

impl Action {
    /// Returns the path that a module requests, for a pod whose name is in the variable `HOSTNAME`.
    pub(super) fn path(is_creation: bool, resource: &str, object: &str, value: &str) -> String {
        let verb = if is_creation { CREATED } else { DESTROYED };
        format!("/{verb}/{resource}/{object}/{value}/$HOSTNAME")
    }

    /// Reads a path of [`Self::path`].
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/').map(str::to_owned);
        let is_creation = match parts.next()?.as_str() {
            CREATED => true,
            DESTROYED => false,
            _ => return None,
        };
        let action = Self {
            is_creation,
            resource: parts.next()?,
            object: parts.next()?,
            value: parts.next()?,
            pod: parts.next()?,
        };
        parts.next().is_none().then_some(action)
    }

    /// Returns the number of the run: the pod `web-apply-3-x7k2p` belongs to run 3.
    fn run(&self) -> Option<i64> {
        let (job, _) = self.pod.rsplit_once('-')?;
        job.rsplit_once('-')?.1.parse().ok()
    }

    /// Returns the recorded result of the run.
    fn result<'a>(&self, outcome: &'a Outcome) -> Option<&'a str> {
        let key = (self.resource.clone(), self.run()?);
        outcome.results.get(&key).map(String::as_str)
    }
}

const CREATED: &str = "created";
const DESTROYED: &str = "destroyed";
/// Reason of a run that ended without a report, for example after SIGKILL.
const INTERRUPTED: &str = "Interrupted";

/// End of a campaign, as the cluster reports it.
#[derive(Default)]
pub(super) struct Outcome {
    /// Results of runs, by resource and number of the run. For a run that failed: the reason.
    pub(super) results: BTreeMap<(String, i64), String>,
    /// Values in the states of the existing resources, by resource and object.
    pub(super) states: BTreeMap<(String, String), String>,
    /// Values that the specs and the last commits require, by resource and object.
    pub(super) wanted: BTreeMap<(String, String), String>,
    /// Resources that need approval, and the values that a user approved, each with the number of earlier actions of all resources.
    pub(super) approved: BTreeMap<String, BTreeMap<String, usize>>,
}

/// Returns the violations of the rules in docs/reliability.md.
pub(super) fn violations(actions: &[Action], outcome: &Outcome) -> BTreeSet<String> {
    let mut by_resource: BTreeMap<&str, Vec<&Action>> = BTreeMap::new();
    for action in actions {
        by_resource
            .entry(&action.resource)
            .or_default()
            .push(action);
    }
    let mut found: BTreeSet<String> = wrong_states(outcome).into_iter().collect();
    found.extend(unapproved(actions, outcome));
    for (resource, actions) in &by_resource {
        found.extend(concurrent_pods(resource, actions));
        found.extend(unrecorded_runs(resource, actions, outcome));
        found.extend(repeated_actions(resource, actions, outcome));
        found.extend(lost_objects(resource, actions, outcome));
    }
    found
}

/// Returns the number of runs that were interrupted after they had created or destroyed an object.
pub(super) fn interrupted(actions: &[Action], outcome: &Outcome) -> usize {
    let pods: BTreeSet<&str> = actions
        .iter()
        .filter(|action| action.result(outcome) == Some(INTERRUPTED))
        .map(|action| action.pod.as_str())
        .collect();
    pods.len()
}

/// Runs that acted and have no record.
fn unrecorded_runs(resource: &str, actions: &[&Action], outcome: &Outcome) -> Vec<String> {
    let unrecorded = actions
        .iter()
        .filter(|action| action.result(outcome).is_none());
    unrecorded
        .map(|action| format!("{resource}: the run of pod {} has no record", action.pod))
        .collect()
}

/// A pod that acts after a later pod of the same resource, and a second pod of one run.
fn concurrent_pods(resource: &str, actions: &[&Action]) -> Vec<String> {
    let mut found = Vec::new();
    let mut pods: Vec<(&str, Option<i64>)> = Vec::new();
    for action in actions {
        let (pod, run) = (action.pod.as_str(), action.run());
        if pods.last().is_some_and(|(last, _)| *last == pod) {
            continue;
        }
        if pods.iter().any(|(earlier, _)| *earlier == pod) {
            found.push(format!("{resource}: pod {pod} acted after a later pod"));
        } else if pods.iter().any(|(_, earlier)| *earlier >= run) {
            found.push(format!(
                "{resource}: pod {pod} acted after a pod of the same or a later run"
            ));
        }
        pods.push((pod, run));
    }
    found
}

/// Objects that were created or destroyed again after this was complete.
fn repeated_actions(resource: &str, actions: &[&Action], outcome: &Outcome) -> Vec<String> {
    let mut complete = BTreeSet::new();
    let mut found = Vec::new();
    for (index, action) in actions.iter().enumerate() {
        let subject = (action.is_creation, &action.object, &action.value);
        if complete.contains(&subject) {
            let verb = if action.is_creation {
                CREATED
            } else {
                DESTROYED
            };
            found.push(format!(
                "{resource}: {} {} was {verb} again by pod {}",
                action.object, action.value, action.pod
            ));
        }
        if is_complete(action, &actions[index + 1..], outcome) {
            complete.insert(subject);
        }
    }
    found
}

fn unapproved(actions: &[Action], outcome: &Outcome) -> Vec<String> {
    let is_unapproved = |(index, action): &(usize, &Action)| {
        let approved = outcome.approved.get(&action.resource);
        let since = approved.map(|values| values.get(&action.value));
        action.is_creation && since.is_some_and(|since| since.is_none_or(|since| index < since))
    };
    actions
        .iter()
        .enumerate()
        .filter(is_unapproved)
        .map(|(_, action)| {
            format!(
                "{}: {} {} was created without approval",
                action.resource, action.object, action.value
            )
        })
        .collect()
}

/// Objects whose creation is complete, that were not destroyed, and that no state contains.
fn lost_objects(resource: &str, actions: &[&Action], outcome: &Outcome) -> Vec<String> {
    let destroyed: BTreeSet<_> = actions
        .iter()
        .filter(|action| !action.is_creation)
        .map(|action| (&action.object, &action.value))
        .collect();
    let is_lost = |(index, action): &(usize, &&Action)| {
        let key = (resource.to_owned(), action.object.clone());
        action.is_creation
            && is_complete(action, &actions[index + 1..], outcome)
            && !destroyed.contains(&(&action.object, &action.value))
            && outcome.states.get(&key) != Some(&action.value)
    };
    let lost = actions
        .iter()
        .enumerate()
        .filter(is_lost)
        .map(|(_, action)| {
            format!(
                "{resource}: {} {} exists and no state has it",
                action.object, action.value
            )
        });
    lost.collect()
}

fn wrong_states(outcome: &Outcome) -> Vec<String> {
    let keys: BTreeSet<_> = outcome.wanted.keys().chain(outcome.states.keys()).collect();
    keys.into_iter()
        .filter_map(|key| {
            let (wanted, state) = (outcome.wanted.get(key), outcome.states.get(key));
            let (resource, object) = key;
            (wanted != state).then(|| {
                format!("{resource}: {object} should be {wanted:?}, and is {state:?} in the state")
            })
        })
        .collect()
}

/// Whether the engine completed the action and saved the state: its run succeeded, or it failed at another object afterwards. `later`: later
/// actions of the resource.
fn is_complete(action: &Action, later: &[&Action], outcome: &Outcome) -> bool {
    match action.result(outcome) {
        Some("Done") => true,
        Some("ApplyFailed") => later.iter().any(|other| other.pod == action.pod),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(is_creation: bool, value: &str, pod: &str) -> Action {
        let path = Action::path(is_creation, "web", "first", value).replace("$HOSTNAME", pod);
        Action::parse(&path).unwrap()
    }

    fn created(value: &str, pod: &str) -> Action {
        action(true, value, pod)
    }

    fn destroyed(value: &str, pod: &str) -> Action {
        action(false, value, pod)
    }

    /// Outcome in which the runs `done` have the result `Done`, the others `Interrupted`, and spec and state have `value`.
    fn outcome(done: &[i64], value: &str) -> Outcome {
        let key = ("web".to_owned(), "first".to_owned());
        let result = |run| {
            if done.contains(&run) {
                "Done"
            } else {
                INTERRUPTED
            }
        };
        Outcome {
            results: (1..9)
                .map(|run| (("web".to_owned(), run), result(run).to_owned()))
                .collect(),
            states: BTreeMap::from([(key.clone(), value.to_owned())]),
            wanted: BTreeMap::from([(key, value.to_owned())]),
            approved: BTreeMap::new(),
        }
    }

    fn assert_found(actions: &[Action], outcome: &Outcome, text: &str) {
        let found = violations(actions, outcome);
        assert!(
            found.len() == 1 && found.iter().all(|violation| violation.contains(text)),
            "{found:?}"
        );
    }

    #[test]
    fn replaced_object_and_repetition_after_interruption_are_right() {
        let actions = [
            created("a", "web-apply-1-x"),
            created("a", "web-apply-2-y"),
            destroyed("a", "web-apply-3-z"),
            created("b", "web-apply-3-z"),
        ];
        let outcome = outcome(&[2, 3], "b");
        assert_eq!(violations(&actions, &outcome), BTreeSet::new());
        assert_eq!(interrupted(&actions, &outcome), 1);
    }

    #[test]
    fn each_rule_is_checked() {
        let twice = [created("a", "web-apply-1-x"), created("a", "web-apply-2-y")];
        assert_found(&twice, &outcome(&[1, 2], "a"), "was created again");

        let two_pods = [created("a", "web-apply-1-x"), created("a", "web-apply-1-y")];
        assert_found(&two_pods, &outcome(&[], "a"), "of the same or a later run");

        let back = [
            created("a", "web-apply-1-x"),
            created("b", "web-apply-2-y"),
            destroyed("a", "web-apply-1-x"),
        ];
        assert_found(&back, &outcome(&[], "b"), "acted after a later pod");

        let kept = [created("a", "web-apply-1-x"), created("b", "web-apply-2-y")];
        assert_found(&kept, &outcome(&[1, 2], "b"), "no state has it");

        let actions = [created("a", "web-apply-1-x")];
        for approved in [("b", 0), ("a", 1)] {
            let mut manual = outcome(&[1], "a");
            let approved = BTreeMap::from([(approved.0.to_owned(), approved.1)]);
            manual.approved.insert("web".to_owned(), approved);
            assert_found(&actions, &manual, "without approval");
        }

        let mut stale = outcome(&[1], "a");
        stale.wanted.clear();
        assert_found(&actions, &stale, "should be None");

        let mut unrecorded = outcome(&[1], "a");
        unrecorded.results.clear();
        assert_found(&actions, &unrecorded, "has no record");
    }

    #[test]
    fn object_before_the_one_that_failed_is_not_created_again() {
        let mut failed = outcome(&[2], "a");
        let run = ("web".to_owned(), 1);
        failed.results.insert(run, "ApplyFailed".to_owned());
        let second = Action {
            object: "second".to_owned(),
            ..created("a", "web-apply-1-x")
        };
        let key = ("web".to_owned(), "second".to_owned());
        failed.states.insert(key.clone(), "a".to_owned());
        failed.wanted.insert(key, "a".to_owned());
        let retried = Action {
            object: "second".to_owned(),
            ..created("a", "web-apply-2-y")
        };
        let mut actions = vec![created("a", "web-apply-1-x"), second, retried.clone()];
        assert_eq!(violations(&actions, &failed), BTreeSet::new());
        actions.insert(2, created("a", "web-apply-2-y"));
        assert_found(&actions, &failed, "first a was created again");
    }
}
