//! Queue of runs: selects the runs that may start, across all resources (rule 18). Builds wait in the same queue. In this module, "run"
//! means a run or a build.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque, vec_deque};
use std::iter::Peekable;
use std::ops::Range;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use alustan_api::ObjectKey;
use alustan_api::run::{RunKind, Trigger};

use crate::drift_schedule::DueCheck;

/// Priority class of a run, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Apply and destroy.
    Change,
    /// Plans, drift checks that a user requested, plans of `spec.mode: PlanOnly` for a change, and builds of images for which no run waits.
    Plan,
    /// Other drift checks.
    Drift,
}

impl Class {
    /// Returns the priority class of a run, or of the build for it. A drift check that a user or a change caused has the priority of a plan.
    pub fn of(kind: RunKind, trigger: &Trigger) -> Self {
        match kind {
            RunKind::Apply | RunKind::Destroy => Self::Change,
            RunKind::Plan => Self::Plan,
            RunKind::Drift => match trigger {
                Trigger::Interval | Trigger::Drift | Trigger::Retry { .. } => Self::Drift,
                _ => Self::Plan,
            },
        }
    }
}

/// A queued run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRun {
    /// Resource of the run.
    pub key: ObjectKey,
    /// Priority class.
    pub class: Class,
    /// Time at which the run was queued.
    pub since: Timestamp,
    /// The drift check for which the run was queued; `None` for other runs, and for builds.
    pub check: Option<DueCheck>,
}

/// Time in the queue after which the priority of a run rises by one class. The priority of a drift check never rises above the priority of
/// a new plan.
const AGEING: SignedDuration = SignedDuration::from_mins(10);

/// Limits for run slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Maximum number of concurrent runs.
    pub total: usize,
    /// Maximum number of concurrent runs in one namespace.
    pub per_namespace: usize,
    /// Number of slots that only namespaces without a running run may use.
    pub reserved: usize,
    /// Maximum number of concurrent drift checks.
    pub drift: usize,
}

impl SlotLimits {
    /// Returns the limits for `total` slots. One namespace uses at most `per_namespace` slots (0: half of all slots). A tenth of the slots
    /// is reserved for namespaces without a running run. Drift checks use at most half of the slots, so that long drift checks do not block
    /// applies.
    pub fn new(total: usize, per_namespace: usize) -> Self {
        let half = total.div_ceil(2);
        let per_namespace = match per_namespace {
            0 => half,
            limit => limit,
        };
        Self {
            total,
            per_namespace,
            reserved: total / 10,
            drift: half,
        }
    }

    /// Returns the runs of `queue` that start now, in the order of the queue. `running`: runs that already hold slots.
    ///
    /// If a namespace or class gets no slot, the call skips its remaining runs, because the number of free slots only decreases. The cost
    /// depends on the number of namespaces and admitted runs, not on the length of the queue.
    pub fn admit(
        self,
        queue: &Queue,
        running: &Running,
        served: &Served,
        now: Timestamp,
    ) -> Vec<ObjectKey> {
        let mut free = self.total.saturating_sub(running.slots(self.per_namespace));
        let mut admitted = Vec::new();
        if free == 0 {
            return admitted;
        }
        let mut drift = self.drift.saturating_sub(running.drift);
        let mut order = queue.order(running, served, now);
        if drift == 0 {
            order.exclude(Class::Drift);
        }
        while let Some(FirstRun { key, class, load }) = order.take_first() {
            let reserved = if load == 0 { 0 } else { self.reserved };
            if free > reserved && load < self.per_namespace {
                free -= 1;
                order.push_first(&key.namespace);
                admitted.push(key);
                if class == Class::Drift {
                    drift -= 1;
                    if drift == 0 {
                        order.exclude(Class::Drift);
                    }
                }
            }
            if free == 0 {
                break;
            }
        }
        admitted
    }
}

/// Sequence number of the last slot granted to each namespace. The operator numbers the grants of slots to all namespaces from 1.
pub type Served = BTreeMap<String, u64>;

/// Running runs, at most one per resource.
#[derive(Clone, Debug, Default)]
pub struct Running {
    classes: BTreeMap<ObjectKey, Class>,
    /// Number of running drift checks.
    drift: usize,
    /// Number of running runs by namespace.
    load: BTreeMap<String, usize>,
    /// Runs that are known only from a Job: no reconcile has confirmed them since the start of the operator. A tenant may have created such
    /// a Job without a run.
    unconfirmed: BTreeSet<ObjectKey>,
}

impl Running {
    /// Adds a run that is known only from a Job. The run has the class of apply and destroy. The run is unconfirmed until [`Self::insert`]
    /// or [`Self::remove`] is called for the resource.
    pub fn expect(&mut self, key: ObjectKey) {
        self.insert(key.clone(), Class::Change);
        self.unconfirmed.insert(key);
    }

    /// Adds a run, or changes its class.
    pub fn insert(&mut self, key: ObjectKey, class: Class) {
        self.remove(&key);
        self.drift += usize::from(class == Class::Drift);
        *self.load.entry(key.namespace.clone()).or_default() += 1;
        self.classes.insert(key, class);
    }

    /// Removes the run of resource `key`. Returns false if the resource has no run.
    pub fn remove(&mut self, key: &ObjectKey) -> bool {
        let Some(class) = self.classes.remove(key) else {
            return false;
        };
        self.unconfirmed.remove(key);
        self.drift -= usize::from(class == Class::Drift);
        if let Some(load) = self.load.get_mut(&key.namespace) {
            *load -= 1;
            if *load == 0 {
                self.load.remove(&key.namespace);
            }
        }
        true
    }

    /// Returns the class of the run of resource `key`, if the resource has one.
    pub fn class(&self, key: &ObjectKey) -> Option<Class> {
        self.classes.get(key).copied()
    }

    /// Whether resource `key` has a run.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.classes.contains_key(key)
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Returns the number of slots that the runs hold. An unconfirmed run beyond the limit of its namespace holds no slot, because a tenant
    /// may have forged its Job.
    fn slots(&self, per_namespace: usize) -> usize {
        let mut unconfirmed: BTreeMap<&str, usize> = BTreeMap::new();
        for key in &self.unconfirmed {
            *unconfirmed.entry(&key.namespace).or_default() += 1;
        }
        let over_limit = unconfirmed.into_iter().map(|(namespace, count)| {
            let load = self.load.get(namespace).copied().unwrap_or_default();
            load.saturating_sub(per_namespace).min(count)
        });
        self.len() - over_limit.sum::<usize>()
    }

    /// Whether there is no run.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}

impl Extend<(ObjectKey, Class)> for Running {
    fn extend<I: IntoIterator<Item = (ObjectKey, Class)>>(&mut self, runs: I) {
        runs.into_iter()
            .for_each(|(key, class)| self.insert(key, class));
    }
}

/// Queued runs. A lookup takes logarithmic time. An insertion or a removal also moves entries of the same namespace and class; a run that is
/// queued last moves none. The cost of [`SlotLimits::admit`] and [`Self::position`]
/// depends on the number of namespaces with queued runs, not on the number of queued runs.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    waiting: BTreeMap<ObjectKey, Waiting>,
    by_namespace: BTreeMap<String, NamespaceQueue>,
}

/// A queued run, without its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Priority class.
    pub class: Class,
    /// Time at which the run was queued.
    pub since: Timestamp,
    /// The drift check for which the run was queued; `None` for other runs, and for builds.
    pub check: Option<DueCheck>,
}

/// Queued runs of one namespace, by class. No class is empty.
#[derive(Clone, Debug, Default)]
struct NamespaceQueue(BTreeMap<Class, VecDeque<Entry>>);

/// Time at which a run was queued, and name of its resource. The entries of a class are sorted, so an older run never starts later than a
/// younger run of the same namespace and class.
type Entry = (Timestamp, String);

impl Queue {
    /// Adds a run, or changes its class or time.
    pub fn insert(&mut self, run: QueuedRun) {
        let QueuedRun {
            key,
            class,
            since,
            check,
        } = run;
        let next = Waiting {
            class,
            since,
            check,
        };
        let previous = self.waiting.get(&key);
        if previous.is_none_or(|previous| (previous.class, previous.since) != (class, since)) {
            self.remove(&key);
            let runs = self.by_namespace.entry(key.namespace.clone()).or_default();
            runs.insert(class, (since, key.name.clone()));
        }
        self.waiting.insert(key, next);
    }

    /// Removes the queued run of resource `key`. Returns false if the resource has no queued run.
    pub fn remove(&mut self, key: &ObjectKey) -> bool {
        let Some(Waiting { class, since, .. }) = self.waiting.remove(key) else {
            return false;
        };
        if let Some(runs) = self.by_namespace.get_mut(&key.namespace) {
            runs.remove(class, since, &key.name);
            if runs.0.is_empty() {
                self.by_namespace.remove(&key.namespace);
            }
        }
        true
    }

    /// Returns the queued run of resource `key`.
    pub fn get(&self, key: &ObjectKey) -> Option<&Waiting> {
        self.waiting.get(key)
    }

    /// All queued runs.
    pub fn values(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.values()
    }

    /// Returns all queued runs in the order in which they start; [`SlotLimits::admit`] returns the runs that start at `now`. The sort keys
    /// of a run are, in this order:
    ///
    /// - priority class, which rises with the time in the queue;
    /// - number of runs of the same namespace that are running or earlier in the order;
    /// - time since the namespace was last `served`, longest first;
    /// - time in the queue, longest first.
    ///
    /// If no run of a namespace is running, its first apply waits for at most one run of each other namespace.
    pub fn order<'a>(&'a self, running: &Running, served: &Served, now: Timestamp) -> Order<'a> {
        let line = |(namespace, line): (&'a String, &'a NamespaceQueue)| {
            let classes = line.0.iter();
            let classes = classes.map(|(class, names)| (*class, names.iter().peekable()));
            let remaining = RemainingRuns {
                classes: classes.collect(),
                load: running.load.get(namespace).copied().unwrap_or_default(),
                // Sequence numbers of slots start at 1. 0 means that no slot was ever granted to the namespace.
                served: served.get(namespace).copied().unwrap_or_default(),
            };
            (namespace.as_str(), remaining)
        };
        let mut order = Order {
            now,
            by_namespace: self.by_namespace.iter().map(line).collect(),
            heads: BinaryHeap::new(),
            slots_granted: served.values().copied().max().unwrap_or_default(),
        };
        for namespace in self.by_namespace.keys() {
            order.push_first(namespace);
        }
        order
    }

    /// Returns the number of queued runs that are before the run of resource `key` in [`Self::order`], without computing the order. `None`
    /// if the resource has no queued run.
    pub fn position<'a>(
        &'a self,
        key: &ObjectKey,
        running: &Running,
        served: &Served,
        now: Timestamp,
    ) -> Option<usize> {
        let Waiting { class, since, .. } = *self.waiting.get(key)?;
        let line = |(namespace, runs): (&'a String, &NamespaceQueue)| {
            let load = running.load.get(namespace).copied().unwrap_or_default();
            Line {
                namespace,
                served: served.get(namespace).copied().unwrap_or_default(),
                load,
                segments: runs.segments(load, now),
            }
        };
        let (namespace, runs) = self.by_namespace.get_key_value(&key.namespace)?;
        let own = line((namespace, runs));
        let rank = rank_of(class, since, now);
        let level = own.load + runs.count_before(class, since, &key.name, now);
        let place = own.place(own.up_to(rank), level);
        let earlier = |line: Line<'a>| {
            let segments = line.up_to(rank);
            let Some(last) = segments.last() else {
                return 0;
            };
            let levels = &last.levels;
            if last.rank < rank {
                return levels.end - line.load;
            }
            let is_earlier = levels.contains(&level) && line.place(segments, level) < place;
            level.clamp(levels.start, levels.end) - line.load + usize::from(is_earlier)
        };
        Some(self.by_namespace.iter().map(line).map(earlier).sum())
    }
}

impl NamespaceQueue {
    fn insert(&mut self, class: Class, entry: Entry) {
        let entries = self.0.entry(class).or_default();
        let index = entries.partition_point(|queued| *queued < entry);
        entries.insert(index, entry);
    }

    fn remove(&mut self, class: Class, since: Timestamp, name: &str) {
        let Some(entries) = self.0.get_mut(&class) else {
            return;
        };
        let position =
            entries.binary_search_by(|(queued, of)| (*queued, of.as_str()).cmp(&(since, name)));
        if let Ok(index) = position {
            entries.remove(index);
        }
        if entries.is_empty() {
            self.0.remove(&class);
        }
    }

    /// Returns the number of runs that start before the run `(since, name)` of class `class`.
    fn count_before(&self, class: Class, since: Timestamp, name: &str, now: Timestamp) -> usize {
        let rank = rank_of(class, since, now);
        let before = |(other, entries): (&Class, &VecDeque<Entry>)| {
            entries.partition_point(|(queued, of)| {
                let other_rank = rank_of(*other, *queued, now);
                (other_rank, *queued, of.as_str(), *other) < (rank, since, name, class)
            })
        };
        self.0.iter().map(before).sum()
    }

    /// Returns the runs by rank, lowest rank first. `load`: number of running runs of the namespace.
    fn segments(&self, load: usize, now: Timestamp) -> Vec<Segment> {
        let mut ranks: BTreeMap<i64, (usize, Timestamp)> = BTreeMap::new();
        for (class, entries) in &self.0 {
            let mut start = 0;
            while let Some((first, _)) = entries.get(start) {
                let rank = rank_of(*class, *first, now);
                let end =
                    entries.partition_point(|(since, _)| rank_of(*class, *since, now) <= rank);
                let (count, since) = ranks.entry(rank).or_insert((0, *first));
                *count += end - start;
                *since = (*since).min(*first);
                start = end;
            }
        }
        let mut start = load;
        let segment = |(rank, (count, since))| {
            let levels = start..start + count;
            start = levels.end;
            Segment {
                rank,
                levels,
                since,
            }
        };
        ranks.into_iter().map(segment).collect()
    }
}

/// Queued runs of one namespace and rank.
struct Segment {
    rank: i64,
    /// Levels of the runs. The level of a run is the number of runs of its namespace that are running or start earlier.
    levels: Range<usize>,
    /// Time at which the first run was queued.
    since: Timestamp,
}

/// Queued runs of a namespace.
struct Line<'a> {
    namespace: &'a str,
    /// Sequence number of the last slot that was granted to the namespace, from 1; 0 if no slot was granted.
    served: u64,
    /// Number of running runs of the namespace.
    load: usize,
    /// Runs by rank, lowest rank first.
    segments: Vec<Segment>,
}

/// Sort key of a queued run among the queued runs of all namespaces.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    rank: i64,
    level: usize,
    /// Level of the first run of the same namespace and rank. At the same level, a namespace that starts its first run of a rank precedes
    /// namespaces that started a run of this rank before.
    first_level: Reverse<usize>,
    turn: Turn<'a>,
    /// Time at which the first run of the same namespace and rank was queued.
    since: Timestamp,
    namespace: &'a str,
}

/// Last slot of a namespace before its first run of a rank.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Turn<'a> {
    /// Sequence number of the last slot that was granted.
    Granted(u64),
    /// Place of the last queued run with a lower rank.
    After(Box<Place<'a>>),
}

impl<'a> Line<'a> {
    /// Returns the segments with a rank of at most `rank`.
    fn up_to(&self, rank: i64) -> &[Segment] {
        let end = self
            .segments
            .partition_point(|segment| segment.rank <= rank);
        self.segments.get(..end).unwrap_or_default()
    }

    /// Returns the place of the run at level `level` in the last one of `segments`.
    fn place(&self, segments: &[Segment], level: usize) -> Option<Place<'a>> {
        let (
            Segment {
                rank,
                levels,
                since,
            },
            lower,
        ) = segments.split_last()?;
        let previous = levels.start.checked_sub(1);
        let previous = previous.and_then(|previous| self.place(lower, previous));
        Some(Place {
            rank: *rank,
            level,
            first_level: Reverse(levels.start),
            turn: previous.map_or(Turn::Granted(self.served), |previous| {
                Turn::After(Box::new(previous))
            }),
            since: *since,
            namespace: self.namespace,
        })
    }
}

/// Order of a queue, computed lazily.
pub struct Order<'a> {
    now: Timestamp,
    by_namespace: BTreeMap<&'a str, RemainingRuns<'a>>,
    /// First run of each namespace.
    heads: BinaryHeap<Reverse<(SortKey, &'a str)>>,
    slots_granted: u64,
}

/// Sort key of a namespace: rank of its first run, number of its runs that are running or earlier in the order, sequence number of the last
/// slot granted to it, queue time of its first run.
type SortKey = (i64, usize, u64, Timestamp);

/// Runs of a namespace that the iteration has not returned yet.
struct RemainingRuns<'a> {
    classes: Vec<(Class, Names<'a>)>,
    load: usize,
    served: u64,
}

/// Runs of one namespace and class, oldest first. An older run never starts later than a younger run of the same namespace and class.
type Names<'a> = Peekable<vec_deque::Iter<'a, Entry>>;

/// First run of one class in a namespace. Candidates are compared field by field, in the order of declaration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<'a> {
    rank: i64,
    since: Timestamp,
    name: &'a str,
    class: Class,
}

impl<'a> RemainingRuns<'a> {
    /// Returns the first run of the namespace, and the remaining runs of its class.
    fn first(&mut self, now: Timestamp) -> Option<(Candidate<'a>, &mut Names<'a>)> {
        let candidates = self.classes.iter_mut().filter_map(|(class, names)| {
            let (since, name) = *names.peek()?;
            let candidate = Candidate {
                rank: rank_of(*class, *since, now),
                since: *since,
                name,
                class: *class,
            };
            Some((candidate, names))
        });
        candidates.min_by_key(|(candidate, _)| *candidate)
    }
}

/// The run that starts first.
struct FirstRun {
    key: ObjectKey,
    class: Class,
    /// Number of runs of the same namespace that are running or earlier in the order.
    load: usize,
}

impl Order<'_> {
    /// Removes and returns the first run. [`Self::push_first`] adds the next run of its namespace.
    fn take_first(&mut self) -> Option<FirstRun> {
        let Reverse((_, namespace)) = self.heads.pop()?;
        let line = self.by_namespace.get_mut(namespace)?;
        let (Candidate { name, class, .. }, names) = line.first(self.now)?;
        names.next();
        let load = line.load;
        self.slots_granted += 1;
        (line.load, line.served) = (load + 1, self.slots_granted);
        let key = ObjectKey::new(namespace, name);
        Some(FirstRun { key, class, load })
    }

    /// Removes the remaining runs of `class` from the order.
    fn exclude(&mut self, class: Class) {
        for line in self.by_namespace.values_mut() {
            line.classes.retain(|(line_class, _)| *line_class != class);
        }
        let firsts: Vec<_> = self.heads.drain().collect();
        for Reverse((_, namespace)) in firsts {
            self.push_first(namespace);
        }
    }

    /// Adds the next run of `namespace` to `heads`.
    fn push_first(&mut self, namespace: &str) {
        let Some((&namespace, _)) = self.by_namespace.get_key_value(namespace) else {
            return;
        };
        let Some(line) = self.by_namespace.get_mut(namespace) else {
            return;
        };
        let (load, served) = (line.load, line.served);
        if let Some((Candidate { rank, since, .. }, _)) = line.first(self.now) {
            let turn = (rank, load, served, since);
            self.heads.push(Reverse((turn, namespace)));
        }
    }
}

impl Iterator for Order<'_> {
    type Item = ObjectKey;

    fn next(&mut self) -> Option<ObjectKey> {
        let FirstRun { key, .. } = self.take_first()?;
        self.push_first(&key.namespace);
        Some(key)
    }
}

/// Returns the rank of a run. Runs with a lower rank start first.
fn rank_of(class: Class, since: Timestamp, now: Timestamp) -> i64 {
    #[cfg(test)]
    tests::count_visit();
    // Ranks have a minimum. Otherwise, old drift checks would start before applies that were queued later, and many old drift checks would
    // delay these applies.
    let (class, highest_rank) = match class {
        Class::Change => (0, 0),
        Class::Plan => (1, 0),
        Class::Drift => (2, 1),
    };
    let steps = now.duration_since(since).as_secs() / AGEING.as_secs();
    (class - steps).max(highest_rank)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// Number of queue entries that the queue visited in this thread.
        static VISITS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count_visit() {
        VISITS.set(VISITS.get() + 1);
    }

    /// Returns the number of queue entries that `work` visits.
    fn visits_of(work: impl FnOnce()) -> usize {
        let before = VISITS.get();
        work();
        VISITS.get() - before
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn waiting(namespace: &str, name: &str, class: Class, since: i64) -> QueuedRun {
        QueuedRun {
            key: key(namespace, name),
            class,
            since: at(since),
            check: None,
        }
    }

    fn names(order: &[ObjectKey]) -> Vec<&str> {
        order.iter().map(|key| key.name.as_str()).collect()
    }

    fn queue_of(waiting: &[QueuedRun]) -> Queue {
        let mut queue = Queue::default();
        for waiting in waiting {
            queue.insert(waiting.clone());
        }
        queue
    }

    /// Returns a [`Running`] in which each resource in `keys` has a running apply.
    fn running_of(keys: &[ObjectKey]) -> Running {
        let mut running = Running::default();
        running.extend(keys.iter().cloned().map(|key| (key, Class::Change)));
        running
    }

    fn schedule(
        queue: &[QueuedRun],
        running: &[ObjectKey],
        served: &Served,
        now: Timestamp,
    ) -> Vec<ObjectKey> {
        let (queue, running) = (queue_of(queue), running_of(running));
        queue.order(&running, served, now).collect()
    }

    /// Reference implementation of [`SlotLimits::admit`], which finds each next run by linear search. `drift`: number of drift checks among
    /// the `running` runs.
    fn admitted_by_linear_search(
        places: SlotLimits,
        queue: &[QueuedRun],
        (running, drift): (&[ObjectKey], usize),
        served: &Served,
        now: Timestamp,
    ) -> Vec<ObjectKey> {
        let mut queued = queue.to_vec();
        let (mut running_keys, mut drift, mut served) = (running.to_vec(), drift, served.clone());
        let mut admitted = Vec::new();
        while running_keys.len() < places.total {
            queued.retain(|waiting| waiting.class != Class::Drift || drift < places.drift);
            let Some(next) = first_of(&queued, &running_keys, &served, now) else {
                break;
            };
            let load = load_of(&running_keys, &next.key.namespace);
            let reserved = if load == 0 { 0 } else { places.reserved };
            if places.total - running_keys.len() <= reserved || load >= places.per_namespace {
                queued.retain(|waiting| waiting.key.namespace != next.key.namespace);
                continue;
            }
            queued.retain(|waiting| waiting.key != next.key);
            let last_slot = served.values().max().copied().unwrap_or_default();
            served.insert(next.key.namespace.clone(), last_slot + 1);
            drift += usize::from(next.class == Class::Drift);
            running_keys.push(next.key.clone());
            admitted.push(next.key);
        }
        admitted
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
    fn aged_drift_check_precedes_later_plans_but_not_changes() {
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
    fn busy_namespace_delays_another_by_at_most_one_run() {
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

    /// Generates queued runs, running runs, and the sequence numbers of the last slots of five namespaces.
    fn queues() -> impl Strategy<Value = (Vec<QueuedRun>, Vec<ObjectKey>, Served)> {
        let resource = (0..5_u8, 0..20_u8);
        let queued = (0..3_usize, 0..5_000_i64);
        let queue = prop::collection::btree_map(resource, queued, 0..60);
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

    /// Returns the run that starts first, by linear search.
    fn first_of(
        queue: &[QueuedRun],
        running: &[ObjectKey],
        served: &Served,
        now: Timestamp,
    ) -> Option<QueuedRun> {
        let sort_key = |waiting: &&QueuedRun| {
            let ObjectKey { namespace, name } = waiting.key.clone();
            let served = served.get(&namespace).copied().unwrap_or_default();
            (
                rank_of(waiting.class, waiting.since, now),
                load_of(running, &namespace),
                served,
                waiting.since,
                namespace,
                name,
            )
        };
        queue.iter().min_by_key(sort_key).cloned()
    }

    /// Reference implementation of [`Queue::order`].
    fn ordered_by_linear_search(
        queue: &[QueuedRun],
        running: &[ObjectKey],
        served: &Served,
        now: Timestamp,
    ) -> Vec<ObjectKey> {
        let (mut queued, mut running_keys, mut served) =
            (queue.to_vec(), running.to_vec(), served.clone());
        let mut order = Vec::new();
        while let Some(next) = first_of(&queued, &running_keys, &served, now) {
            queued.retain(|waiting| waiting.key != next.key);
            let last_slot = served.values().max().copied().unwrap_or_default();
            served.insert(next.key.namespace.clone(), last_slot + 1);
            running_keys.push(next.key.clone());
            order.push(next.key);
        }
        order
    }

    fn load_of(keys: &[ObjectKey], namespace: &str) -> usize {
        keys.iter().filter(|key| key.namespace == namespace).count()
    }

    #[rstest::rstest]
    #[case::half(50, 0, 25)]
    #[case::half_of_an_odd_number(3, 0, 2)]
    #[case::one(1, 0, 1)]
    #[case::as_configured(50, 40, 40)]
    fn one_namespace_takes_half_of_the_slots_by_default(
        #[case] total: usize,
        #[case] per_namespace: usize,
        #[case] expected: usize,
    ) {
        let queue: Vec<_> = (0..60)
            .map(|n| waiting("a", &format!("{n:02}"), Class::Change, 0))
            .collect();
        let places = SlotLimits::new(total, per_namespace);
        let admitted = places.admit(
            &queue_of(&queue),
            &Running::default(),
            &Served::new(),
            at(0),
        );
        assert_eq!(admitted.len(), expected);
    }

    #[test]
    fn reserved_slots_go_to_namespaces_without_a_run() {
        let places = SlotLimits::new(20, 20);
        let running: Vec<_> = (0..18).map(|n| key("a", &format!("{n:02}"))).collect();
        let queue = [
            waiting("a", "next", Class::Change, 0),
            waiting("b", "first", Class::Change, 0),
            waiting("b", "second", Class::Change, 0),
        ];
        let (queue, running) = (queue_of(&queue), running_of(&running));
        let admitted = places.admit(&queue, &running, &Served::new(), at(0));
        assert_eq!(admitted, [key("b", "first")]);
    }

    #[test]
    fn drift_checks_take_half_of_the_slots_at_most() {
        let places = SlotLimits::new(4, 4);
        let mut queue: Vec<_> = (0..4)
            .map(|n| waiting(&n.to_string(), "drift", Class::Drift, 0))
            .collect();
        let admit = |queue: &[QueuedRun], running: &Running| {
            let now = at(2_000);
            places.admit(&queue_of(queue), running, &Served::new(), now)
        };
        let first = [key("0", "drift"), key("1", "drift")];
        assert_eq!(admit(&queue, &Running::default()), first);
        let mut running = Running::default();
        running.extend(first.clone().map(|key| (key, Class::Drift)));
        assert_eq!(admit(&queue[2..], &running), []);
        queue.push(waiting("2", "plan", Class::Plan, 1_999));
        assert_eq!(admit(&queue[2..], &running), [key("2", "plan")]);
        running.remove(&first[0]);
        running.insert(first[1].clone(), Class::Change);
        let after = [key("2", "drift"), key("3", "drift"), key("2", "plan")];
        assert_eq!(admit(&queue[2..], &running), after);
    }

    #[test]
    fn forged_runs_take_no_slots_of_other_namespaces() {
        let places = SlotLimits::new(10, 0);
        let mut running = Running::default();
        for i in 0..200 {
            running.expect(key("1", &format!("f{i}")));
        }
        let queue = [
            waiting("1", "own", Class::Change, 0),
            waiting("2", "other", Class::Change, 1),
        ];
        let admit =
            |running: &Running| places.admit(&queue_of(&queue), running, &Served::new(), at(2));
        assert_eq!(admit(&running), [key("2", "other")]);
        // Confirmed runs hold their slots, even beyond the limit of their namespace.
        for i in 0..10 {
            running.insert(key("1", &format!("f{i}")), Class::Change);
        }
        assert_eq!(admit(&running), []);
    }

    /// Returns a queue of `length` runs in 100 namespaces, in all classes and of different ages.
    fn long_queue(length: i64) -> Queue {
        let classes = [Class::Change, Class::Plan, Class::Drift];
        let run = |number: i64| {
            let class = classes[usize::try_from(number / 100 % 3).unwrap()];
            waiting(
                &format!("{:02}", number % 100),
                &format!("{number:05}"),
                class,
                number * 10_000 / length,
            )
        };
        (0..length)
            .map(run)
            .fold(Queue::default(), |mut queue, run| {
                queue.insert(run);
                queue
            })
    }

    /// Positions of all runs of a queue cost time proportional to the length of the queue. The position of one run, and the admission of a
    /// run for a slot that becomes free, cost almost the same in a queue of any length.
    #[test]
    fn cost_of_a_run_does_not_depend_on_length_of_queue() {
        let (served, now) = (Served::new(), at(10_000));
        let running = running_of(
            &(0..49)
                .map(|n| key(&format!("{n:02}"), "r"))
                .collect::<Vec<_>>(),
        );
        let cost = |length| {
            let queue = long_queue(length);
            let last = key(
                &format!("{:02}", (length - 1) % 100),
                &format!("{:05}", length - 1),
            );
            let admit = visits_of(|| {
                let admitted = SlotLimits::new(50, 0).admit(&queue, &running, &served, now);
                assert_eq!(admitted.len(), 1);
            });
            let position =
                visits_of(|| assert!(queue.position(&last, &running, &served, now).is_some()));
            let all = visits_of(|| drop(queue.order(&running, &served, now).collect::<Vec<_>>()));
            (admit, position, all)
        };
        let (of_half, of_all) = (cost(5_000), cost(10_000));
        println!(
            "visited entries (admit, position, order): 5,000: {of_half:?}; 10,000: {of_all:?}"
        );
        assert_eq!(of_all.0, of_half.0);
        assert!(of_all.1 <= of_half.1 * 5 / 4);
        assert!(of_all.2 <= of_half.2 * 2);
    }

    proptest! {
        #[test]
        fn admitted_runs_keep_to_the_limits_and_leave_no_slot_unused(
            (queue, running, served) in queues(),
            total in 0..20_usize,
            per_namespace in 0..8_usize,
            drift_checks in 0..12_usize,
        ) {
            let limits = SlotLimits::new(total, per_namespace);
            let now = at(5_000);
            let drift_checks = drift_checks.min(running.len());
            let mut of_running = running_of(&running);
            of_running.extend(running[..drift_checks].iter().cloned().map(|key| (key, Class::Drift)));
            let admitted = limits.admit(&queue_of(&queue), &of_running, &served, now);
            let expected = admitted_by_linear_search(limits, &queue, (&running, drift_checks), &served, now);
            prop_assert_eq!(&admitted, &expected);
            let mut running_after = running.clone();
            running_after.extend(admitted.iter().cloned());
            prop_assert!(admitted.is_empty() || running_after.len() <= limits.total);
            let drift = |run: &&QueuedRun| run.class == Class::Drift;
            let admitted_drift = queue.iter().filter(|run| admitted.contains(&run.key)).filter(drift).count();
            let drift_total = drift_checks + admitted_drift;
            prop_assert!(admitted_drift == 0 || drift_total <= limits.drift);
            for QueuedRun { key: waiting, class, .. } in &queue {
                let namespace = &waiting.namespace;
                let load = load_of(&running_after, namespace);
                let has_grown = load > load_of(&running, namespace);
                prop_assert!(!has_grown || load <= limits.per_namespace);
                let free = limits.total.saturating_sub(running_after.len());
                let has_no_run = load == 0 && free > 0;
                let has_slot = free > limits.reserved && load < limits.per_namespace;
                let has_share = *class != Class::Drift || drift_total < limits.drift;
                prop_assert!(admitted.contains(waiting) || !has_share || !(has_no_run || has_slot));
            }
        }

        #[test]
        fn queue_order_contains_each_run_once((queue, running, served) in queues()) {
            let mut order = schedule(&queue, &running, &served, at(5_000));
            order.sort();
            let mut keys: Vec<_> = queue.into_iter().map(|waiting| waiting.key).collect();
            keys.sort();
            prop_assert_eq!(order, keys);
        }

        #[test]
        fn queue_order_matches_linear_search((queue, running, served) in queues()) {
            let found = schedule(&queue, &running, &served, at(5_000));
            prop_assert_eq!(&found, &ordered_by_linear_search(&queue, &running, &served, at(5_000)));
            let (queue, running) = (queue_of(&queue), running_of(&running));
            let positions = found.iter().map(|key| queue.position(key, &running, &served, at(5_000)));
            prop_assert_eq!(positions.collect::<Option<Vec<_>>>(), Some((0..found.len()).collect()));
        }

        /// After any sequence of inserts, removals and starts, the queue returns the runs in the same order as a linear search.
        #[test]
        fn queue_is_in_order_after_any_changes(
            events in prop::collection::vec(
                (0..4_usize, 0..4_u8, 0..8_u8, 0..3_usize, 0..5_000_i64),
                1..60,
            ),
            total in 0..9_usize,
            per_namespace in 0..5_usize,
        ) {
            let limits = SlotLimits::new(total, per_namespace);
            let classes = [Class::Change, Class::Plan, Class::Drift];
            let (mut queue, mut running) = (Queue::default(), Running::default());
            let (mut queued, mut running_keys) = (Vec::<QueuedRun>::new(), Vec::<ObjectKey>::new());
            let mut drift_checks = BTreeSet::new();
            let mut served = Served::new();
            for (number, (event, namespace, name, class, since)) in (1..).zip(events) {
                let run = waiting(
                    &namespace.to_string(),
                    &name.to_string(),
                    classes[class],
                    since,
                );
                queued.retain(|waiting| waiting.key != run.key || event == 3);
                match event {
                    0 => {
                        queue.insert(run.clone());
                        queued.push(run);
                    }
                    1 => drop(queue.remove(&run.key)),
                    2 => {
                        queue.remove(&run.key);
                        running.insert(run.key.clone(), run.class);
                        served.insert(run.key.namespace.clone(), number);
                        running_keys.retain(|key| *key != run.key);
                        drift_checks.remove(&run.key);
                        if run.class == Class::Drift {
                            drift_checks.insert(run.key.clone());
                        }
                        running_keys.push(run.key);
                    }
                    _ => {
                        prop_assert_eq!(running.remove(&run.key), running_keys.contains(&run.key));
                        running_keys.retain(|key| *key != run.key);
                        drift_checks.remove(&run.key);
                    }
                }
                let now = at(4_000);
                let order: Vec<ObjectKey> = queue.order(&running, &served, now).collect();
                prop_assert_eq!(&order, &ordered_by_linear_search(&queued, &running_keys, &served, now));
                let positions = order.iter().map(|key| queue.position(key, &running, &served, now));
                prop_assert_eq!(positions.collect::<Option<Vec<_>>>(), Some((0..order.len()).collect()));
                let admitted = limits.admit(&queue, &running, &served, now);
                let running_with_drift = (&*running_keys, drift_checks.len());
                let expected = admitted_by_linear_search(limits, &queued, running_with_drift, &served, now);
                prop_assert_eq!(admitted, expected);
            }
        }

        /// Thousands of runs wait in up to three namespaces, all slots are in use, and slots become free in any order. An apply in another
        /// namespace waits for at most one run of each of these namespaces.
        #[test]
        fn thousand_runs_delay_apply_of_another_tenant_by_at_most_one(
            greedy in 1..4_usize,
            places in 1..6_usize,
            comes in 0..20_usize,
            was_served in any::<bool>(),
            classes in prop::collection::vec(0..3_usize, 1..7),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let all = [Class::Change, Class::Plan, Class::Drift];
            let class = |n: usize| all[classes[n % classes.len()]];
            let mut queue = Queue::default();
            for n in 0..1_000 * greedy {
                let since = i64::try_from(n).unwrap();
                queue.insert(waiting(&format!("greedy{}", n % greedy), &format!("g{n:04}"), class(n), since));
            }
            let modest = key("modest", "m");
            let (mut running, mut served) = (Vec::<ObjectKey>::new(), Served::new());
            let mut before: BTreeMap<String, usize> = BTreeMap::new();
            for (turn, end) in ends.iter().enumerate() {
                let now = at(5_000 + i64::try_from(turn).unwrap());
                if turn == comes {
                    let last = served.values().max().copied().unwrap_or_default();
                    served.extend(was_served.then(|| (modest.namespace.clone(), last + 1)));
                    queue.insert(QueuedRun { key: modest.clone(), class: Class::Change, since: now, check: None });
                }
                let order = queue.order(&running_of(&running), &served, now);
                for next in order.take(places - running.len()).collect::<Vec<_>>() {
                    if next == modest {
                        prop_assert!(before.values().all(|starts| *starts <= 1), "{:?}", before);
                        return Ok(());
                    }
                    if turn >= comes {
                        *before.entry(next.namespace.clone()).or_default() += 1;
                    }
                    let last = served.values().max().copied().unwrap_or_default();
                    served.insert(next.namespace.clone(), last + 1);
                    queue.remove(&next);
                    running.push(next);
                }
                let index = end.index(running.len());
                running.swap_remove(index);
            }
            prop_assert!(false, "it never started");
        }
    }
}
