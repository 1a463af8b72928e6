//! Simulation of the drift checks and applies of many resources with the real queue and schedule, without a cluster.

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::ObjectKey;

use super::*;
use crate::queue::{Class, Queue, QueuedRun, Running, Served, SlotLimits};

const NAMESPACES: usize = 100;
const HOUR: i64 = 3_600;
const INTERVAL: Duration = Duration::from_hours(1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

struct Resource {
    key: ObjectKey,
    uid: String,
    next: DueCheck,
    late_checks: u8,
}

impl Resource {
    /// Whether the status reports late checks.
    fn is_reported(&self) -> bool {
        self.late_checks == REPORTED_LATE_CHECKS
    }
}

/// Figures of a part of the simulated time.
#[derive(Debug, Default)]
struct Figures {
    hours: i64,
    /// Number of drift checks that started.
    checks: usize,
    /// Number of drift checks that started late.
    late: usize,
    /// Largest number of drift checks in the queue.
    queued: usize,
    /// Largest number of drift checks that started within five minutes.
    burst: usize,
    /// Longest time between two checks of a resource, in multiples of the interval.
    stretch: f64,
    /// Queue times of applies, in seconds.
    waits: Vec<i64>,
    /// Number of writes of the status because checks are late or on time again.
    writes: usize,
    /// Number of drift checks by namespace.
    by_namespace: BTreeMap<String, usize>,
}

struct Simulation {
    limits: SlotLimits,
    resources: Vec<Resource>,
    index: BTreeMap<ObjectKey, usize>,
    queue: Queue,
    running: Running,
    /// Number of running runs by namespace.
    load: BTreeMap<String, usize>,
    served: Served,
    slots_granted: u64,
    leading_since: i64,
    /// Times at which checks are due, and at which runs end.
    due: BTreeSet<(Timestamp, usize)>,
    ends: BTreeSet<(i64, usize)>,
    waiting_applies: BTreeSet<ObjectKey>,
    now: i64,
    random: u64,
    five_minutes: usize,
    figures: Figures,
}

impl Simulation {
    /// Returns an operator that starts to lead at time 0 with `count` applied resources. Each was last checked two to three hours earlier. Of
    /// 100 namespaces, those with an even number have three times as many resources as the others.
    fn new(count: usize, limits: SlotLimits) -> Self {
        let mut simulation = Self {
            limits,
            resources: Vec::new(),
            index: BTreeMap::new(),
            queue: Queue::default(),
            running: Running::default(),
            load: BTreeMap::new(),
            served: Served::new(),
            slots_granted: 0,
            leading_since: 0,
            due: BTreeSet::new(),
            ends: BTreeSet::new(),
            waiting_applies: BTreeSet::new(),
            now: 0,
            random: 1,
            five_minutes: 0,
            figures: Figures::default(),
        };
        for number in 0..count {
            let pair = number / 4 % (NAMESPACES / 2) * 2;
            let namespace = pair + usize::from(number % 4 == 0);
            let key = ObjectKey::new(format!("ns{namespace:02}"), format!("n{number:05}"));
            let uid = format!("uid-{number}");
            let earlier = DueCheck::after(at(-4 * HOUR), INTERVAL, &uid, at(-4 * HOUR));
            let next = DueCheck::after(earlier.at, INTERVAL, &uid, at(0));
            simulation.due.insert((next.at, number));
            simulation.index.insert(key.clone(), number);
            simulation.resources.push(Resource {
                key,
                uid,
                next,
                late_checks: 0,
            });
        }
        simulation
    }

    /// Returns a number in `0.0..1.0` (xorshift).
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        f64::from(u32::try_from(self.random >> 32).unwrap()) / f64::from(u32::MAX)
    }

    /// Returns the duration of a drift check in seconds: 5.8 on average, with a tail of up to two minutes.
    fn duration(&mut self, slowness: f64) -> i64 {
        let (kind, fraction) = (self.random(), self.random());
        let seconds = match kind {
            kind if kind < 0.9 => 3.0 + 3.0 * fraction,
            kind if kind < 0.99 => 6.0 + 6.0 * fraction,
            _ => 60.0 + 60.0 * fraction,
        };
        #[expect(clippy::cast_possible_truncation, reason = "a few minutes")]
        let seconds = (seconds * slowness).round() as i64;
        seconds
    }

    fn is_running(&self, resource: usize) -> bool {
        self.running.contains(&self.resources[resource].key)
    }

    /// Queues an apply of `resource`, which replaces a queued drift check. Does nothing while a run of the resource is active.
    fn apply(&mut self, resource: usize) {
        let key = self.resources[resource].key.clone();
        if self.is_running(resource) || !self.waiting_applies.insert(key.clone()) {
            return;
        }
        self.queue.insert(QueuedRun {
            key,
            class: Class::Change,
            since: at(self.now),
            check: None,
        });
    }

    /// Ends the run of `resource`, which compared the real objects with the configuration.
    fn end(&mut self, resource: usize) {
        let key = &self.resources[resource].key;
        self.running.remove(key);
        *self.load.get_mut(&key.namespace).unwrap() -= 1;
        self.schedule(resource, at(self.now));
    }

    fn schedule(&mut self, resource: usize, checked: Timestamp) {
        let Resource { uid, next, .. } = &mut self.resources[resource];
        self.due.remove(&(next.at, resource));
        *next = DueCheck::after(checked, INTERVAL, uid, at(self.leading_since));
        self.due.insert((next.at, resource));
    }

    fn queue_due_checks(&mut self) {
        while let Some((due, resource)) = self.due.first().copied()
            && due <= at(self.now)
        {
            self.due.pop_first();
            let Resource { key, next, .. } = &self.resources[resource];
            if !self.running.contains(key) && self.queue.get(key).is_none() {
                self.queue.insert(QueuedRun {
                    key: key.clone(),
                    class: Class::Drift,
                    since: at(self.now),
                    check: Some(*next),
                });
            }
        }
    }

    fn start_admitted(&mut self, slowness: f64) {
        let (running, now) = (&self.running, at(self.now));
        let admitted = self.limits.admit(&self.queue, running, &self.served, now);
        let mut starts_drift_check = false;
        for key in admitted {
            let queued = *self.queue.get(&key).unwrap();
            self.queue.remove(&key);
            self.running.insert(key.clone(), queued.class);
            *self.load.entry(key.namespace.clone()).or_default() += 1;
            self.slots_granted += 1;
            self.served
                .insert(key.namespace.clone(), self.slots_granted);
            let resource = self.index[&key];
            let mut duration = self.duration(slowness);
            if let Some(check) = queued.check {
                starts_drift_check = true;
                self.record_check(resource, check);
            } else {
                self.waiting_applies.remove(&key);
                let waited = now.duration_since(queued.since).as_secs();
                self.figures.waits.push(waited);
                duration += 15;
            }
            self.ends.insert((self.now + duration, resource));
        }
        if starts_drift_check {
            self.assert_that_no_apply_could_start();
        }
    }

    /// Asserts that each queued apply waits for a slot of its namespace, or for a slot that is not reserved.
    fn assert_that_no_apply_could_start(&self) {
        let free = self.limits.total - self.running.len();
        for apply in &self.waiting_applies {
            let load = self.load.get(&apply.namespace).copied().unwrap_or_default();
            let reserved = if load == 0 { 0 } else { self.limits.reserved };
            assert!(
                free <= reserved || load >= self.limits.per_namespace,
                "{apply}"
            );
        }
    }

    fn record_check(&mut self, resource: usize, check: DueCheck) {
        let (figures, now) = (&mut self.figures, at(self.now));
        let is_late = check.is_late(now);
        let resource = &mut self.resources[resource];
        let was_reported = resource.is_reported();
        resource.late_checks = late_checks(resource.late_checks, is_late);
        figures.writes += usize::from(resource.is_reported() != was_reported);
        figures.checks += 1;
        figures.late += usize::from(is_late);
        figures.stretch = figures.stretch.max(check.stretch(now));
        *figures
            .by_namespace
            .entry(resource.key.namespace.clone())
            .or_default() += 1;
        self.five_minutes += 1;
    }

    /// Runs for `hours` with runs that take `slowness` times as long as usual. One resource is applied every 200 seconds on average, and every
    /// hour a commit applies one of twenty resources.
    fn run(&mut self, hours: i64, slowness: f64) -> Figures {
        self.figures = Figures {
            hours,
            ..Figures::default()
        };
        let end = self.now + hours * HOUR;
        while self.now < end {
            self.now += 1;
            let mut is_changed = false;
            while let Some((ended_at, resource)) = self.ends.first().copied()
                && ended_at <= self.now
            {
                self.ends.pop_first();
                self.end(resource);
                is_changed = true;
            }
            let is_due = self
                .due
                .first()
                .is_some_and(|(due, _)| *due <= at(self.now));
            self.queue_due_checks();
            if self.random() < 0.005 {
                let chosen = usize::try_from(self.now).unwrap() * 7 % self.resources.len();
                self.apply(chosen);
                is_changed = true;
            }
            if self.now % HOUR == HOUR / 2 {
                let first = usize::try_from(self.now / HOUR * 7 % 20).unwrap();
                (first..self.resources.len())
                    .step_by(20)
                    .for_each(|resource| self.apply(resource));
                is_changed = true;
            }
            if is_changed || is_due {
                self.start_admitted(slowness);
            }
            let queued_checks = self.queue.values();
            let queued_checks = queued_checks.filter(|run| run.check.is_some()).count();
            self.figures.queued = self.figures.queued.max(queued_checks);
            if self.now % 300 == 0 {
                self.figures.burst = self
                    .figures
                    .burst
                    .max(std::mem::take(&mut self.five_minutes));
            }
        }
        std::mem::take(&mut self.figures)
    }

    /// Stops the operator for `hours`. Active runs end in this time.
    fn outage(&mut self, hours: i64) {
        for (_, resource) in std::mem::take(&mut self.ends) {
            self.end(resource);
        }
        self.queue = Queue::default();
        self.waiting_applies.clear();
        self.now += hours * HOUR;
        self.leading_since = self.now;
        self.due.clear();
        for resource in 0..self.resources.len() {
            let Resource { uid, next, .. } = &mut self.resources[resource];
            // The time of the resource that precedes the check which is due now.
            let checked = next.at - next.interval;
            *next = DueCheck::after(checked, INTERVAL, uid, at(self.leading_since));
            self.due.insert((next.at, resource));
        }
    }
}

impl Figures {
    fn checks_per_hour(&self) -> usize {
        self.checks / usize::try_from(self.hours).unwrap()
    }

    fn print(&mut self, name: &str) {
        self.waits.sort_unstable();
        let wait =
            |share: usize| self.waits[(self.waits.len() * share / 100).min(self.waits.len() - 1)];
        println!(
            "| {name} | {} | {} | {} | {} | {:.1} | {} s, {} s | {} |",
            self.checks_per_hour(),
            self.late,
            self.queued,
            self.burst,
            self.stretch,
            wait(50),
            wait(100),
            self.writes,
        );
    }

    /// Returns the smallest and the largest number of drift checks of a namespace. `is_large`: of the large or of the small namespaces.
    fn checks_of_namespaces(&self, is_large: bool) -> (usize, usize) {
        let is_even = |namespace: &str| namespace.ends_with(['0', '2', '4', '6', '8']);
        let checks = || {
            let of_size = self.by_namespace.iter();
            of_size
                .filter(|(namespace, _)| is_even(namespace) == is_large)
                .map(|(_, checks)| *checks)
        };
        (checks().min().unwrap(), checks().max().unwrap())
    }
}

/// Simulates 16 hours. Neither a start nor an outage causes a burst of checks, no drift check starts before an apply that could start, and all
/// intervals stretch while demand is twice the capacity.
fn simulate(count: usize, slots: usize) {
    let mut simulation = Simulation::new(count, SlotLimits::new(slots, 0));
    println!(
        "| {count} resources, {slots} slots | checks per hour | late checks | longest queue of checks | most checks \
         in 5 minutes | longest interval | queue time of applies: median, longest | status writes |"
    );
    let mut phase = |name: &str, hours, slowness| {
        let mut figures = simulation.run(hours, slowness);
        figures.print(name);
        figures
    };
    let normal = [
        phase("start after an outage of 2 h", 1, 1.0),
        phase("demand 0.6 times the capacity, 3 h", 3, 1.0),
    ];
    let overload = phase("demand 2 times the capacity, 6 h", 6, 3.6);
    let drain = phase("demand 0.6 times the capacity, 1 h", 1, 1.0);
    let recovered = phase("demand 0.6 times the capacity, 3 h", 3, 1.0);
    simulation.outage(2);
    let mut restarted = simulation.run(2, 1.0);
    restarted.print("start after an outage of 2 h, 2 h");
    for figures in normal.iter().chain([&recovered, &restarted]) {
        assert!(figures.queued * 8 <= count, "{figures:?}");
        assert!(
            figures.burst * 8 <= count,
            "a twelfth of the resources on average: {figures:?}"
        );
    }
    assert_eq!((normal[1].late, normal[1].writes), (0, 0));
    assert!(recovered.late * 20 <= count, "{recovered:?}");
    let share = overload.checks_per_hour() * 100 / normal[1].checks_per_hour();
    assert!((40..60).contains(&share), "{share} %");
    assert!(overload.stretch < 5.0, "{overload:?}");
    let (least, most) = overload.checks_of_namespaces(true);
    assert!(
        least * 10 >= most * 7,
        "large namespaces are equal: {overload:?}"
    );
    let (least_of_small, _) = overload.checks_of_namespaces(false);
    assert!(
        least_of_small * 3 >= most,
        "small namespaces are not worse off: {overload:?}"
    );
    let writes = overload.writes + drain.writes + recovered.writes;
    assert!(writes <= count * 2, "{writes} writes");
}

#[test]
fn intervals_stretch_with_demand_and_applies_go_first() {
    simulate(1_000, 6);
}

/// `docs/sizing.md` has the figures that this test prints.
#[test]
fn ten_thousand_resources_are_checked_with_fifty_slots() {
    simulate(10_000, 50);
}

fn due(checked: i64, leading_since: i64) -> i64 {
    DueCheck::after(at(checked), INTERVAL, "uid", at(leading_since))
        .at
        .as_second()
}

#[test]
fn check_missed_for_more_than_an_interval_is_skipped_at_start() {
    let regular = due(0, 0);
    assert!((HOUR / 2..=HOUR * 3 / 2).contains(&regular));
    assert_eq!(due(0, regular + HOUR), regular, "overdue by one interval");
    assert_eq!(due(0, regular + HOUR + 1), regular + 2 * HOUR);
    assert_eq!(due(0, regular + 10 * HOUR - 1), regular + 10 * HOUR);
}

#[test]
fn longest_interval_is_bounded() {
    let check = DueCheck::after(Timestamp::MAX, Duration::MAX, "uid", at(0));
    assert_eq!(check.at, Timestamp::MAX);
    let shortest = DueCheck::after(at(0), Duration::ZERO, "uid", at(0));
    assert_eq!(shortest.interval, SignedDuration::from_secs(1));
}

#[test]
fn check_is_late_after_one_and_a_half_intervals() {
    let check = DueCheck {
        checked: at(0),
        at: at(HOUR),
        interval: SignedDuration::from_hours(1),
    };
    assert!(!check.is_late(at(HOUR * 3 / 2)) && check.is_late(at(HOUR * 3 / 2 + 1)));
    let stretch = [1, 2, 4].map(|hours| check.stretch(at(hours * HOUR)).to_string());
    assert_eq!(stretch, ["1", "2", "4"]);
}
