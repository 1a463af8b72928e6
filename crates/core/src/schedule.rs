//! Which runs may start now, over all resources (rule 18).

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::references::Key;

/// Runs that matter more go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Apply and destroy.
    Change,
    /// Plans that somebody waits for.
    Plan,
    /// Looks for drift.
    Drift,
}

/// A run that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whose it is.
    pub key: Key,
    /// How much it matters.
    pub class: Class,
    /// Since when it waits.
    pub since: Timestamp,
}

/// After this long in the queue a run counts as one class higher.
const AGEING: SignedDuration = SignedDuration::from_mins(10);

/// All of `queue` in the order in which they start; the first `limit - running` may start at
/// `now`. Class first, with ageing; then the namespace with the fewest runs going or put before;
/// then who waits longest.
pub fn schedule(queue: &[Waiting], running: &[Key], now: Timestamp) -> Vec<Key> {
    let mut load: BTreeMap<&str, usize> = BTreeMap::new();
    for key in running {
        *load.entry(&key.namespace).or_default() += 1;
    }
    let mut left: Vec<&Waiting> = queue.iter().collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some((index, next)) = left.iter().enumerate().min_by_key(|(_, waiting)| {
        let load = load
            .get(waiting.key.namespace.as_str())
            .copied()
            .unwrap_or_default();
        (rank(waiting, now), load, waiting.since, &waiting.key)
    }) {
        *load.entry(&next.key.namespace).or_default() += 1;
        order.push(next.key.clone());
        left.swap_remove(index);
    }
    order
}

fn rank(waiting: &Waiting, now: Timestamp) -> i64 {
    let class = match waiting.class {
        Class::Change => 0,
        Class::Plan => 1,
        Class::Drift => 2,
    };
    let aged = now.duration_since(waiting.since).as_secs() / AGEING.as_secs();
    (class - aged).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key(namespace: &str, name: &str) -> Key {
        Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn waiting(namespace: &str, name: &str, class: Class, since: i64) -> Waiting {
        Waiting {
            key: key(namespace, name),
            class,
            since: at(since),
        }
    }

    fn names(order: &[Key]) -> Vec<&str> {
        order.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn changes_go_before_plans_and_plans_before_drift() {
        let queue = [
            waiting("a", "drift", Class::Drift, 1),
            waiting("a", "plan", Class::Plan, 2),
            waiting("a", "apply", Class::Change, 3),
        ];
        assert_eq!(
            names(&schedule(&queue, &[], at(10))),
            ["apply", "plan", "drift"]
        );
    }

    #[test]
    fn drift_that_waits_long_is_not_starved() {
        let queue = [
            waiting("a", "drift", Class::Drift, 0),
            waiting("a", "apply", Class::Change, 1_100),
        ];
        assert_eq!(names(&schedule(&queue, &[], at(1_200))), ["drift", "apply"]);
    }

    #[test]
    fn a_namespace_with_many_runs_does_not_delay_another_by_more_than_one() {
        let mut queue: Vec<_> = (0..50)
            .map(|n| waiting("greedy", &format!("g{n:02}"), Class::Change, n))
            .collect();
        queue.push(waiting("modest", "m", Class::Change, 100));
        assert_eq!(
            schedule(&queue, &[key("greedy", "r")], at(101))[0],
            key("modest", "m")
        );
        assert_eq!(schedule(&queue, &[], at(101))[1], key("modest", "m"));
    }

    proptest! {
        #[test]
        fn everyone_in_the_queue_gets_exactly_one_place(
            entries in prop::collection::btree_map((0..5_u8, 0..20_u8), (0..3_u8, 0..5_000_i64), 0..40)
        ) {
            let queue: Vec<_> = entries
                .iter()
                .map(|((namespace, name), (class, since))| {
                    let class = [Class::Change, Class::Plan, Class::Drift][usize::from(*class)];
                    waiting(&namespace.to_string(), &name.to_string(), class, *since)
                })
                .collect();
            let mut order = schedule(&queue, &[], at(5_000));
            order.sort();
            let mut keys: Vec<_> = queue.into_iter().map(|waiting| waiting.key).collect();
            keys.sort();
            prop_assert_eq!(order, keys);
        }
    }
}
