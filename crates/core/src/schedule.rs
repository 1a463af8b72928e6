//! Which runs may start now, over all resources (rule 18).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

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

/// After this long in the queue a run counts as one class higher, drift as a plan at most.
const AGEING: SignedDuration = SignedDuration::from_mins(10);

/// Run slots of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Maximum number of concurrent runs.
    pub all: usize,
    /// Maximum number of concurrent runs in one namespace.
    pub per_namespace: usize,
    /// Slots reserved for namespaces without a run.
    pub reserved: usize,
}

impl Places {
    /// `all` slots, at most `per_namespace` of them for one namespace (0: half of them). A tenth is reserved for namespaces
    /// without a run.
    pub fn new(all: usize, per_namespace: usize) -> Self {
        let per_namespace = match per_namespace {
            0 => all.div_ceil(2),
            limit => limit,
        };
        Self {
            all,
            per_namespace,
            reserved: all / 10,
        }
    }

    /// The runs of `order` that start now, beside those that are `running`.
    pub fn admit<'a>(self, order: &'a [Key], running: &[Key]) -> Vec<&'a Key> {
        let mut load: BTreeMap<&str, usize> = BTreeMap::new();
        for key in running {
            *load.entry(key.namespace.as_str()).or_default() += 1;
        }
        let mut free = self.all.saturating_sub(running.len());
        let mut admitted = Vec::new();
        for key in order {
            let load = load.entry(key.namespace.as_str()).or_default();
            let kept = if *load == 0 { 0 } else { self.reserved };
            if free > kept && *load < self.per_namespace {
                *load += 1;
                free -= 1;
                admitted.push(key);
            }
        }
        admitted
    }
}

/// When namespaces got their last places: numbers that grow with each place that is given out.
pub type Served = BTreeMap<String, u64>;

/// All of `queue` in the order in which they start; [`Places::admit`] says which of them start at
/// `now`. Class first, with ageing; then the namespace with the fewest runs going or put before;
/// then the one that was `served` longest ago; then who waits longest.
///
/// So each other namespace gets one place at most before an apply of one in which nothing runs, however
/// many it wants.
pub fn schedule(queue: &[Waiting], running: &[Key], served: &Served, now: Timestamp) -> Vec<Key> {
    let mut lines: BTreeMap<&str, Line<'_>> = BTreeMap::new();
    for waiting in queue {
        let namespace = waiting.key.namespace.as_str();
        let line = lines.entry(namespace).or_insert_with(|| Line {
            waiting: Vec::new(),
            load: 0,
            // Zero is never: places are counted from one.
            served: served.get(namespace).copied().unwrap_or_default(),
        });
        line.waiting.push((rank(waiting, now), waiting));
    }
    for key in running {
        if let Some(line) = lines.get_mut(key.namespace.as_str()) {
            line.load += 1;
        }
    }
    // Of each namespace, the first in its line stands for all of it.
    let mut firsts = BinaryHeap::new();
    for (namespace, line) in &mut lines {
        line.waiting
            .sort_by_key(|(rank, it)| Reverse((*rank, it.since, &it.key.name)));
        firsts.extend(line.first().map(|turn| Reverse((turn, *namespace))));
    }
    let mut places = served.values().copied().max().unwrap_or_default();
    let mut order = Vec::with_capacity(queue.len());
    while let Some(Reverse((_, namespace))) = firsts.pop() {
        let Some(line) = lines.get_mut(namespace) else {
            continue;
        };
        places += 1;
        (line.load, line.served) = (line.load + 1, places);
        order.extend(line.waiting.pop().map(|(_, first)| first.key.clone()));
        firsts.extend(line.first().map(|turn| Reverse((turn, namespace))));
    }
    order
}

/// Who waits in a namespace, the first of them last.
struct Line<'a> {
    waiting: Vec<(i64, &'a Waiting)>,
    load: usize,
    served: u64,
}

impl Line<'_> {
    /// What says whether the first in it is next.
    fn first(&self) -> Option<(i64, usize, u64, Timestamp)> {
        let (rank, first) = self.waiting.last()?;
        Some((*rank, self.load, self.served, first.since))
    }
}

fn rank(waiting: &Waiting, now: Timestamp) -> i64 {
    // Drift never goes before a change that came later: it would, where there is more of it than places.
    let (class, first) = match waiting.class {
        Class::Change => (0, 0),
        Class::Plan => (1, 0),
        Class::Drift => (2, 1),
    };
    let aged = now.duration_since(waiting.since).as_secs() / AGEING.as_secs();
    (class - aged).max(first)
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
            names(&schedule(&queue, &[], &Served::new(), at(10))),
            ["apply", "plan", "drift"]
        );
    }

    #[test]
    fn drift_that_waits_long_goes_before_later_plans_and_never_before_changes() {
        let queue = [
            waiting("a", "drift", Class::Drift, 0),
            waiting("a", "plan", Class::Plan, 1_100),
            waiting("a", "old-plan", Class::Plan, 1),
            waiting("a", "apply", Class::Change, 1_199),
        ];
        assert_eq!(
            names(&schedule(&queue, &[], &Served::new(), at(1_200))),
            ["old-plan", "apply", "drift", "plan"]
        );
    }

    #[test]
    fn a_namespace_with_many_runs_does_not_delay_another_by_more_than_one() {
        let mut queue: Vec<_> = (0..50)
            .map(|n| waiting("greedy", &format!("g{n:02}"), Class::Change, n))
            .collect();
        queue.push(waiting("modest", "m", Class::Change, 100));
        assert_eq!(
            schedule(&queue, &[key("greedy", "r")], &Served::new(), at(101))[0],
            key("modest", "m")
        );
        assert_eq!(
            schedule(&queue, &[], &Served::new(), at(101))[1],
            key("modest", "m")
        );
    }

    /// Who waits, who runs and who was served when, in five namespaces.
    fn crowd() -> impl Strategy<Value = (Vec<Waiting>, Vec<Key>, Served)> {
        let place = (0..5_u8, 0..20_u8);
        let what = (0..3_usize, 0..5_000_i64);
        let queue = prop::collection::btree_map(place, what, 0..60);
        let running = prop::collection::btree_set((0..5_u8, 20..30_u8), 0..12);
        let served = prop::collection::btree_map(0..5_u8, 1..9_u64, 0..5);
        (queue, running, served).prop_map(|(queue, running, served)| {
            let queue = queue.iter().map(|((namespace, name), (class, since))| {
                let class = [Class::Change, Class::Plan, Class::Drift][*class];
                waiting(&namespace.to_string(), &name.to_string(), class, *since)
            });
            let running = running
                .iter()
                .map(|(namespace, name)| key(&namespace.to_string(), &name.to_string()));
            let served = served
                .iter()
                .map(|(namespace, at)| (namespace.to_string(), *at));
            (queue.collect(), running.collect(), served.collect())
        })
    }

    /// What [`schedule`] says, found the slow way: whoever is next is looked for among all.
    fn one_by_one(queue: &[Waiting], running: &[Key], served: &Served, now: Timestamp) -> Vec<Key> {
        let (mut left, mut going, mut served) = (queue.to_vec(), running.to_vec(), served.clone());
        let mut order = Vec::new();
        let turn = |waiting: &Waiting, going: &[Key], served: &Served| {
            let Key { namespace, name } = waiting.key.clone();
            let load = going
                .iter()
                .filter(|key| key.namespace == namespace)
                .count();
            let served = served.get(&namespace).copied().unwrap_or_default();
            (
                rank(waiting, now),
                load,
                served,
                waiting.since,
                namespace,
                name,
            )
        };
        while let Some(next) = left
            .iter()
            .min_by_key(|it| turn(it, &going, &served))
            .cloned()
        {
            left.retain(|waiting| waiting.key != next.key);
            let last = served.values().max().copied().unwrap_or_default();
            served.insert(next.key.namespace.clone(), last + 1);
            going.push(next.key.clone());
            order.push(next.key);
        }
        order
    }

    fn load_of(keys: &[Key], namespace: &str) -> usize {
        keys.iter().filter(|key| key.namespace == namespace).count()
    }

    #[rstest::rstest]
    #[case::half(50, 0, 25)]
    #[case::half_of_an_odd_number(3, 0, 2)]
    #[case::one(1, 0, 1)]
    #[case::as_configured(50, 40, 40)]
    fn one_namespace_takes_half_of_the_slots_by_default(
        #[case] all: usize,
        #[case] per_namespace: usize,
        #[case] wanted: usize,
    ) {
        let order: Vec<_> = (0..60).map(|n| key("a", &format!("{n:02}"))).collect();
        let places = Places::new(all, per_namespace);
        assert_eq!(places.admit(&order, &[]).len(), wanted);
    }

    #[test]
    fn reserved_slots_go_to_namespaces_without_a_run() {
        let places = Places::new(20, 20);
        let running: Vec<_> = (0..18).map(|n| key("a", &format!("{n:02}"))).collect();
        let order = [key("a", "next"), key("b", "first"), key("b", "second")];
        assert_eq!(places.admit(&order, &running), [&order[1]]);
    }

    proptest! {
        #[test]
        fn admitted_runs_keep_to_the_limits_and_leave_no_slot_unused(
            (queue, running, served) in crowd(), all in 0..20_usize, per_namespace in 0..8_usize,
        ) {
            let places = Places::new(all, per_namespace);
            let order = schedule(&queue, &running, &served, at(5_000));
            let admitted = places.admit(&order, &running);
            let mut then = running.clone();
            then.extend(admitted.iter().copied().cloned());
            prop_assert!(admitted.is_empty() || then.len() <= places.all);
            for waiting in &order {
                let namespace = &waiting.namespace;
                let load = load_of(&then, namespace);
                let grew = load > load_of(&running, namespace);
                prop_assert!(!grew || load <= places.per_namespace);
                let free = places.all.saturating_sub(then.len());
                let idle = load == 0 && free > 0;
                let room = free > places.reserved && load < places.per_namespace;
                prop_assert!(admitted.contains(&waiting) || !(idle || room));
            }
        }

        #[test]
        fn everyone_in_the_queue_gets_exactly_one_place((queue, running, served) in crowd()) {
            let mut order = schedule(&queue, &running, &served, at(5_000));
            order.sort();
            let mut keys: Vec<_> = queue.into_iter().map(|waiting| waiting.key).collect();
            keys.sort();
            prop_assert_eq!(order, keys);
        }

        #[test]
        fn who_is_next_is_the_first_among_all_that_are_left((queue, running, served) in crowd()) {
            let found = schedule(&queue, &running, &served, at(5_000));
            prop_assert_eq!(found, one_by_one(&queue, &running, &served, at(5_000)));
        }

        /// Thousands wait in some namespaces, and as many as there are places run; places get free
        /// in any order. However late an apply comes in another namespace, each of those gets one
        /// place at most before it.
        #[test]
        fn a_thousand_of_one_tenant_delay_the_apply_of_another_by_one_run_at_most(
            greedy in 1..4_usize,
            places in 1..6_usize,
            comes in 0..20_usize,
            was_served in any::<bool>(),
            classes in prop::collection::vec(0..3_usize, 1..7),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let all = [Class::Change, Class::Plan, Class::Drift];
            let class = |n: usize| all[classes[n % classes.len()]];
            let mut queue: Vec<_> = (0..1_000 * greedy)
                .map(|n| {
                    let since = i64::try_from(n).unwrap();
                    waiting(&format!("greedy{}", n % greedy), &format!("g{n:04}"), class(n), since)
                })
                .collect();
            let modest = key("modest", "m");
            let (mut running, mut served) = (Vec::<Key>::new(), Served::new());
            let mut before: BTreeMap<String, usize> = BTreeMap::new();
            for (turn, end) in ends.iter().enumerate() {
                let now = at(5_000 + i64::try_from(turn).unwrap());
                if turn == comes {
                    let last = served.values().max().copied().unwrap_or_default();
                    served.extend(was_served.then(|| (modest.namespace.clone(), last + 1)));
                    queue.push(Waiting { key: modest.clone(), class: Class::Change, since: now });
                }
                let order = schedule(&queue, &running, &served, now);
                for next in order.into_iter().take(places - running.len()) {
                    if next == modest {
                        prop_assert!(before.values().all(|starts| *starts <= 1), "{:?}", before);
                        return Ok(());
                    }
                    if turn >= comes {
                        *before.entry(next.namespace.clone()).or_default() += 1;
                    }
                    let last = served.values().max().copied().unwrap_or_default();
                    served.insert(next.namespace.clone(), last + 1);
                    queue.retain(|waiting| waiting.key != next);
                    running.push(next);
                }
                let index = end.index(running.len());
                running.swap_remove(index);
            }
            prop_assert!(false, "it never started");
        }
    }
}
