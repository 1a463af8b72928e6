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
}

const CREATED: &str = "created";
const DESTROYED: &str = "destroyed";

/// End of a campaign, as the cluster reports it.
#[derive(Default)]
pub(super) struct Outcome {
    /// Results of runs, by resource and number of the run.
    pub(super) results: BTreeMap<(String, i64), String>,
    /// Values in the states of the existing resources, by resource and object.
    pub(super) states: BTreeMap<(String, String), String>,
    /// Values that the specs and the last commits require, by resource and object.
    pub(super) wanted: BTreeMap<(String, String), String>,
    /// Resources that need approval, and the values that a user approved.
    pub(super) approved: BTreeMap<String, BTreeSet<String>>,
}

/// Returns the violations of the rules in docs/reliability.md.
pub(super) fn violations(actions: &[Action], outcome: &Outcome) -> Vec<String> {
    let mut by_resource: BTreeMap<&str, Vec<&Action>> = BTreeMap::new();
    for action in actions {
        by_resource
            .entry(&action.resource)
            .or_default()
            .push(action);
    }
    let mut found = Vec::new();
    for (resource, actions) in &by_resource {
        found.extend(concurrent_pods(resource, actions));
        found.extend(repeated_actions(resource, actions, outcome));
        found.extend(unapproved(resource, actions, outcome));
        found.extend(lost_objects(resource, actions, outcome));
    }
    found.extend(wrong_states(outcome));
    found
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

/// Objects that were created or destroyed again after a run with the result `Done` had done it.
fn repeated_actions(resource: &str, actions: &[&Action], outcome: &Outcome) -> Vec<String> {
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for action in actions {
        let subject = (action.is_creation, &action.object, &action.value);
        if done.contains(&subject) {
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
        if is_done(action, outcome) {
            done.insert(subject);
        }
    }
    found
}

fn unapproved(resource: &str, actions: &[&Action], outcome: &Outcome) -> Vec<String> {
    let Some(approved) = outcome.approved.get(resource) else {
        return Vec::new();
    };
    actions
        .iter()
        .filter(|action| action.is_creation && !approved.contains(&action.value))
        .map(|action| {
            format!(
                "{resource}: {} {} was created without approval",
                action.object, action.value
            )
        })
        .collect()
}

/// Objects that a run with the result `Done` created, that were not destroyed, and that no state contains.
fn lost_objects(resource: &str, actions: &[&Action], outcome: &Outcome) -> Vec<String> {
    let destroyed: BTreeSet<_> = actions
        .iter()
        .filter(|action| !action.is_creation)
        .map(|action| (&action.object, &action.value))
        .collect();
    let is_lost = |action: &&&Action| {
        let key = (resource.to_owned(), action.object.clone());
        action.is_creation
            && is_done(action, outcome)
            && !destroyed.contains(&(&action.object, &action.value))
            && outcome.states.get(&key) != Some(&action.value)
    };
    let lost = actions.iter().filter(is_lost).map(|action| {
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

fn is_done(action: &Action, outcome: &Outcome) -> bool {
    action
        .run()
        .and_then(|run| outcome.results.get(&(action.resource.clone(), run)))
        .is_some_and(|result| result == "Done")
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
                "Interrupted"
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
            matches!(found.as_slice(), [only] if only.contains(text)),
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
        assert_eq!(
            violations(&actions, &outcome(&[2, 3], "b")),
            Vec::<String>::new()
        );
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

        let mut manual = outcome(&[1], "a");
        manual
            .approved
            .insert("web".to_owned(), BTreeSet::from(["b".to_owned()]));
        let actions = [created("a", "web-apply-1-x")];
        assert_found(&actions, &manual, "without approval");

        let mut stale = outcome(&[1], "a");
        stale.wanted.clear();
        assert_found(&actions, &stale, "should be None");
    }
}
