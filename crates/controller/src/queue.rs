//! Admission of runs and builds in the order of [`Queue`], within the limits `--max-concurrent-runs` and `--max-runs-per-namespace`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use alustan_api::ObjectKey;
use alustan_core::drift_schedule::DueCheck;
use alustan_core::metric_definitions;
use alustan_core::queue::{Class, Queue, QueuedRun, Running, Served, SlotLimits, Waiting};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::UnboundedSender;

use crate::resource::Ref;

/// Interval of [`Dispatcher::refresh`].
pub(crate) const REFRESH: Duration = Duration::from_secs(10);
/// Minimum time between two refreshes of the queue position in the status of one resource. The refreshes of all queued resources are spread
/// over this time.
const POSITION_REFRESH: SignedDuration = SignedDuration::from_mins(5);
/// Number of calls of [`Dispatcher::refresh`] in [`POSITION_REFRESH`].
const REFRESH_CALLS: usize = 30;

/// Queue of runs and builds, and the slots in use.
pub(crate) struct Dispatcher {
    slots: SlotLimits,
    state: Mutex<DispatcherState>,
    wake: UnboundedSender<Ref>,
}

#[derive(Default)]
struct DispatcherState {
    /// Time at which [`Dispatcher::begin`] assigned slots to the runs that started before this process.
    begun_at: Option<Timestamp>,
    running: Running,
    queue: Queue,
    served: Served,
    /// Number of slots assigned so far.
    assigned_slots: u64,
    /// Queue positions in status, by resource.
    reported_positions: HashMap<ObjectKey, ReportedPosition>,
}

/// Queue position in the status of a resource.
struct ReportedPosition {
    position: usize,
    /// Time at which the position was computed.
    at: Timestamp,
}

/// Number of slot assignments after which the last assignment to a namespace is forgotten. The queue then treats the namespace like one that
/// never got a slot.
const MAX_ASSIGNMENTS_REMEMBERED: u64 = 10_000;

/// Load of the queue, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Number of queued runs, by priority class ([`Class`]).
    pub(crate) waiting: BTreeMap<&'static str, i64>,
    /// Start of the longest wait, by priority class.
    pub(crate) oldest: BTreeMap<&'static str, Timestamp>,
    /// Number of queued drift checks that are late ([`DueCheck::is_late`]).
    pub(crate) late_checks: i64,
    /// Longest time since the last check of a resource with a queued drift check, in multiples of its interval; 1 if none is queued.
    pub(crate) drift_stretch: f64,
    /// Number of slots in use.
    pub(crate) running: i64,
    /// Number of slots.
    pub(crate) slots: i64,
}

/// The run is queued: no slot is free for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued;

impl Dispatcher {
    /// Creates an empty queue. Admitted resources, and resources whose queue position changed, are sent to `wake`, which requeues them.
    pub(crate) fn new(slots: SlotLimits, wake: UnboundedSender<Ref>) -> Self {
        Self {
            slots,
            state: Mutex::default(),
            wake,
        }
    }

    fn state(&self) -> MutexGuard<'_, DispatcherState> {
        self.state.lock()
    }

    /// Assigns slots to the runs that started before this process. Later calls have no effect. Assumes priority class [`Class::Change`] for
    /// these runs, until [`record_running`](Self::record_running) reports their class.
    pub(crate) fn begin(&self, now: Timestamp, running: impl FnOnce() -> Vec<ObjectKey>) {
        let mut state = self.state();
        if state.begun_at.is_none() {
            state.begun_at = Some(now);
            for key in running() {
                state.running.expect(key);
            }
        }
    }

    /// Returns the time of the first call of [`Self::begin`]: this process leads since then. `None` before.
    pub(crate) fn begun_at(&self) -> Option<Timestamp> {
        self.state().begun_at
    }

    /// Admits a run of `key` and returns how long it was queued; `None` if it was admitted before. `check`: the drift check that the run
    /// makes.
    ///
    /// # Errors
    /// [`Queued`] if no slot is free for it.
    pub(crate) fn admit(
        &self,
        key: &ObjectKey,
        class: Class,
        check: Option<DueCheck>,
        now: Timestamp,
    ) -> Result<Option<SignedDuration>, Queued> {
        let mut state = self.state();
        if state.running.contains(key) {
            return Ok(None);
        }
        let since = state.queue.get(key).map_or(now, |queued| queued.since);
        state.queue.insert(QueuedRun {
            key: key.clone(),
            class,
            since,
            check,
        });
        let admitted = self.next(&state, now);
        if admitted.contains(key) {
            state.assign_slot(key, class);
            return Ok(Some(now.duration_since(since)));
        }
        // The priority class of this run may have changed, so that other queued runs may start before it: requeue their resources.
        self.wake(&admitted);
        Err(Queued)
    }

    /// Returns the position of `key` in the queue, from 1, rounded up to two significant digits. It is constant until
    /// [`refresh`](Self::refresh).
    pub(crate) fn position(&self, key: &ObjectKey, now: Timestamp) -> usize {
        let mut state = self.state();
        if let Some(reported) = state.reported_positions.get(key) {
            return reported.position;
        }
        let position = rounded(self.waiting_before(&state, key, now).unwrap_or_default() + 1);
        let reported = ReportedPosition { position, at: now };
        state.reported_positions.insert(key.clone(), reported);
        position
    }

    /// Whether a run of `key` is queued behind at least as many other queued runs as there are slots.
    pub(crate) fn is_far_back(&self, key: &ObjectKey, now: Timestamp) -> bool {
        let before = self.waiting_before(&self.state(), key, now);
        before.is_some_and(|before| before >= self.slots.total)
    }

    /// Returns the number of queued runs that are before the run of `key` and cannot be admitted now. `None` if no run of `key` is queued, or
    /// if it can be admitted now.
    fn waiting_before(
        &self,
        state: &DispatcherState,
        key: &ObjectKey,
        now: Timestamp,
    ) -> Option<usize> {
        let position = |key| {
            state
                .queue
                .position(key, &state.running, &state.served, now)
        };
        let before = position(key)?;
        let admitted = self.next(state, now);
        let earlier = admitted.iter().filter(|next| position(next) < Some(before));
        (!admitted.contains(key)).then(|| before - earlier.count())
    }

    /// Requeues the resources of admitted runs, and those whose queue position differs from the one in their status. A resource is requeued
    /// for its position at most once per [`POSITION_REFRESH`]. One call requeues only a share of the resources with a position, so that
    /// reconciles of resources with a free slot do not wait for those of a long queue.
    pub(crate) fn refresh(&self, now: Timestamp) {
        let mut state = self.state();
        let admitted = self.next(&state, now);
        self.wake(&admitted);
        if state.reported_positions.is_empty() {
            return;
        }
        let share = state.reported_positions.len().div_ceil(REFRESH_CALLS);
        let DispatcherState {
            queue,
            running,
            served,
            reported_positions,
            ..
        } = &mut *state;
        let order = queue.order(running, served, now);
        let waiting = order.filter(|key| !admitted.contains(key));
        let mut moved = 0;
        for (key, position) in waiting.zip((1..).map(rounded)) {
            let Some(reported) = reported_positions.get_mut(&key) else {
                continue;
            };
            let is_due = now.duration_since(reported.at) >= POSITION_REFRESH;
            if is_due && reported.position != position {
                *reported = ReportedPosition { position, at: now };
                self.wake(&[key]);
                moved += 1;
                if moved == share {
                    break;
                }
            }
        }
    }

    /// Returns the current load.
    pub(crate) fn load(&self, now: Timestamp) -> Load {
        let state = self.state();
        let to_i64 = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let classes = [Class::Change, Class::Plan, Class::Drift];
        let mut load = Load {
            waiting: classes
                .map(|class| (metric_definitions::class(class), 0))
                .into(),
            running: to_i64(state.running.len()),
            slots: to_i64(self.slots.total),
            drift_stretch: 1.0,
            ..Load::default()
        };
        for Waiting {
            class,
            since,
            check,
        } in state.queue.values()
        {
            let label = metric_definitions::class(*class);
            *load.waiting.entry(label).or_default() += 1;
            metric_definitions::older(&mut load.oldest, label, *since);
            if let Some(check) = check {
                load.late_checks += i64::from(check.is_late(now));
                load.drift_stretch = load.drift_stretch.max(check.stretch(now));
            }
        }
        load
    }

    /// Records an active run or build of `key`. `class` is the priority class of the run. `None`: a build, which keeps the priority class with
    /// which it was admitted.
    pub(crate) fn record_running(&self, key: &ObjectKey, class: Option<Class>) {
        let mut state = self.state();
        state.dequeue(key);
        let class = class.or_else(|| state.running.class(key));
        state
            .running
            .insert(key.clone(), class.unwrap_or(Class::Change));
    }

    /// Whether a run or build of `key` has a slot.
    pub(crate) fn holds_slot(&self, key: &ObjectKey) -> bool {
        self.state().running.contains(key)
    }

    /// Records that `key` has no active or queued run. Requeues the resources whose runs can be admitted now.
    pub(crate) fn record_idle(&self, key: &ObjectKey, now: Timestamp) {
        let mut state = self.state();
        let waited = state.dequeue(key);
        if state.running.remove(key) || waited {
            self.wake_admissible(&state, now);
        }
    }

    /// Removes `key` from the queue after a failed reconcile, so that it does not block other runs. An active run keeps its slot.
    pub(crate) fn reconcile_failed(&self, key: &ObjectKey, now: Timestamp) {
        let mut state = self.state();
        if state.dequeue(key) {
            self.wake_admissible(&state, now);
        }
    }

    /// Requeues the resources whose runs can be admitted now.
    fn wake_admissible(&self, state: &DispatcherState, now: Timestamp) {
        self.wake(&self.next(state, now));
    }

    fn next(&self, state: &DispatcherState, now: Timestamp) -> Vec<ObjectKey> {
        self.slots
            .admit(&state.queue, &state.running, &state.served, now)
    }

    fn wake(&self, keys: &[ObjectKey]) {
        for key in keys {
            // `send` fails only after the controller has stopped.
            let _ = self.wake.send(Ref::new(&key.name).within(&key.namespace));
        }
    }
}

impl DispatcherState {
    fn assign_slot(&mut self, key: &ObjectKey, class: Class) {
        self.dequeue(key);
        self.running.insert(key.clone(), class);
        self.assigned_slots += 1;
        self.served
            .insert(key.namespace.clone(), self.assigned_slots);
        let assigned_slots = self.assigned_slots;
        self.served.retain(|_, last_assignment| {
            *last_assignment + MAX_ASSIGNMENTS_REMEMBERED > assigned_slots
        });
    }

    /// Removes `key` from the queue. Returns whether it was queued.
    fn dequeue(&mut self, key: &ObjectKey) -> bool {
        self.reported_positions.remove(key);
        self.queue.remove(key)
    }
}

/// Rounds a queue position up to two significant digits, which saves most status patches of a long queue.
fn rounded(position: usize) -> usize {
    let digits = position.checked_ilog10().unwrap_or_default();
    let step = 10_usize.pow(digits.saturating_sub(1));
    position.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn free_slot_goes_to_the_next_run_in_the_queue() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        let later = now + POSITION_REFRESH;
        let at_once = Ok(Some(SignedDuration::ZERO));
        assert_eq!(
            dispatcher.admit(&key("a"), Class::Change, None, now),
            at_once
        );
        assert_eq!(
            dispatcher.admit(&key("a"), Class::Change, None, now),
            Ok(None)
        );
        let queued = |name, class| dispatcher.admit(&key(name), class, None, now) == Err(Queued);
        assert!(queued("b", Class::Drift));
        assert_eq!(dispatcher.position(&key("b"), now), 1);
        assert!(queued("c", Class::Change));
        assert_eq!(dispatcher.position(&key("c"), now), 1);
        dispatcher.refresh(later);
        assert_eq!(woken.try_recv().unwrap().name, "b");
        assert_eq!(dispatcher.position(&key("b"), later), 2);
        let load = dispatcher.load(now);
        assert_eq!((load.running, load.slots), (1, 1));
        let waiting = [("change", 1), ("plan", 0), ("drift", 1)];
        assert_eq!(load.waiting, BTreeMap::from(waiting));
        assert_eq!(
            load.oldest,
            BTreeMap::from([("change", now), ("drift", now)])
        );
        dispatcher.record_idle(&key("a"), now);
        assert_eq!(woken.try_recv().unwrap().name, "c");
        assert!(queued("b", Class::Drift));
        dispatcher.refresh(later);
        assert_eq!(dispatcher.position(&key("b"), later), 2, "refreshed before");
        dispatcher.refresh(later + POSITION_REFRESH);
        assert_eq!(dispatcher.position(&key("b"), later), 1);
        let waited = Ok(Some(POSITION_REFRESH));
        assert_eq!(
            dispatcher.admit(&key("c"), Class::Change, None, later),
            waited
        );
    }

    #[test]
    fn free_slot_is_offered_to_the_run_that_passed_another() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        dispatcher.record_running(&key("a"), None);
        for name in ["b", "c"] {
            let queued = dispatcher.admit(&key(name), Class::Change, None, now);
            assert_eq!(queued, Err(Queued));
        }
        dispatcher.record_idle(&key("a"), now);
        assert_eq!(woken.try_recv().unwrap().name, "b");
        let reverted = dispatcher.admit(&key("b"), Class::Drift, None, now);
        assert_eq!(reverted, Err(Queued));
        assert_eq!(woken.try_recv().unwrap().name, "c");
        dispatcher.refresh(now);
        assert_eq!(woken.try_recv().unwrap().name, "c", "without a position");
    }

    #[test]
    fn queued_run_is_far_beyond_the_number_of_slots() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        dispatcher.record_running(&key("a"), None);
        for name in ["b", "c", "d"] {
            let queued = dispatcher.admit(&key(name), Class::Change, None, now);
            assert_eq!(queued, Err(Queued));
        }
        let far = || ["a", "b", "c", "d", "e"].map(|name| dispatcher.is_far_back(&key(name), now));
        assert_eq!(far(), [false, false, true, true, false]);
        dispatcher.record_idle(&key("a"), now);
        assert_eq!(far(), [false, false, false, true, false]);
    }

    #[test]
    fn runs_from_before_a_restart_keep_their_slots() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        dispatcher.begin(now, || vec![key("a")]);
        dispatcher.begin(now, || unreachable!("it began already"));
        assert_eq!(
            dispatcher.admit(&key("b"), Class::Change, None, now),
            Err(Queued)
        );
        dispatcher.record_idle(&key("a"), now);
        assert!(
            dispatcher
                .admit(&key("b"), Class::Change, None, now)
                .is_ok()
        );
    }

    #[test]
    fn build_for_a_drift_check_counts_as_a_drift_check() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(2, 2), wake);
        dispatcher.begin(now, || vec![key("a")]);
        dispatcher.record_running(&key("a"), Some(Class::Drift));
        dispatcher.record_running(&key("a"), None);
        let admitted = |name, class| dispatcher.admit(&key(name), class, None, now).is_ok();
        assert!(!admitted("b", Class::Drift), "half of the slots");
        assert!(admitted("c", Class::Plan));
    }

    #[test]
    fn resource_without_pending_run_leaves_the_queue() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        dispatcher.record_running(&key("a"), None);
        let position = |name| {
            assert_eq!(
                dispatcher.admit(&key(name), Class::Change, None, now),
                Err(Queued)
            );
            dispatcher.position(&key(name), now)
        };
        assert_eq!((position("b"), position("c")), (1, 2));
        dispatcher.record_idle(&key("b"), now);
        dispatcher.refresh(now + POSITION_REFRESH);
        assert_eq!(position("c"), 1);
    }

    #[test]
    fn position_is_refreshed_in_steps_and_wakes_those_that_moved() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        dispatcher.record_running(&key("a"), None);
        let name = |number| format!("n{number:04}");
        for number in 0..250 {
            let key = key(&name(number));
            assert!(dispatcher.admit(&key, Class::Change, None, at(0)).is_err());
            dispatcher.position(&key, at(0));
        }
        let mut refresh = |second| {
            dispatcher.refresh(at(second));
            let mut names = Vec::new();
            while let Ok(resource) = woken.try_recv() {
                names.push(resource.name);
            }
            names
        };
        assert!(refresh(300).is_empty(), "nothing moved");
        dispatcher.record_idle(&key(&name(0)), at(300));
        assert_eq!(dispatcher.position(&key(&name(1)), at(300)), 2);
        // Positions above 100 are rounded up to multiples of 10, so only every tenth run after position 100 gets a new position.
        let moved: Vec<_> = (1..=100).chain((110..250).step_by(10)).map(name).collect();
        let mut refreshed = Vec::new();
        for second in (310..610).step_by(10) {
            let names = refresh(second);
            assert!(names.len() <= 9, "a thirtieth of 249");
            refreshed.extend(names);
        }
        assert_eq!(refreshed, moved);
        assert_eq!(dispatcher.position(&key(&name(1)), at(610)), 1);
        // All move again. No resource is requeued twice within five minutes.
        dispatcher.record_idle(&key(&name(1)), at(610));
        assert_eq!(refresh(610).len(), 9);
        assert!(refresh(619).iter().all(|again| !moved[..9].contains(again)));
    }

    /// Visits to 5,000 queued runs, whose positions all move, are spread over five minutes.
    #[test]
    fn refreshes_of_a_long_queue_are_spread_over_five_minutes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(50, 0), wake);
        for number in 0..50 {
            dispatcher.record_running(&key(&format!("r{number}")), None);
        }
        for number in 0..5_000 {
            let key = ObjectKey::new(format!("ns{}", number % 100), format!("n{number:04}"));
            assert!(dispatcher.admit(&key, Class::Change, None, at(0)).is_err());
            dispatcher.position(&key, at(0));
        }
        for number in 0..500 {
            let key = ObjectKey::new(format!("ns{}", number % 100), format!("n{number:04}"));
            dispatcher.record_idle(&key, at(200));
        }
        while woken.try_recv().is_ok() {}
        let per_call = (300..600).step_by(10).map(|second| {
            dispatcher.refresh(at(second));
            let mut names = 0;
            while woken.try_recv().is_ok() {
                names += 1;
            }
            names
        });
        let per_call: Vec<usize> = per_call.collect();
        assert_eq!(per_call, vec![150; 30], "4,500 resources in 30 calls");
    }

    #[test]
    fn each_end_wakes_one_of_five_thousand_queued_runs() {
        const QUEUED: i64 = 5_000;
        let at = |second| Timestamp::from_second(second).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(50, 0), wake);
        let to_key =
            |resource: &Ref| ObjectKey::new(resource.namespace.clone().unwrap(), &resource.name);
        let mut running = Vec::new();
        for number in 0..QUEUED {
            let key = ObjectKey::new(format!("ns{}", number % 50), format!("n{number}"));
            if dispatcher
                .admit(&key, Class::Change, None, at(number))
                .is_ok()
            {
                running.push(key);
            }
        }
        assert!(woken.try_recv().is_err(), "no slot is free");
        assert_eq!(running.len(), 50);
        let (mut started, mut wakes) = (running.len(), 0);
        while let Some(ends) = running.pop() {
            dispatcher.record_idle(&ends, at(QUEUED));
            while let Ok(resource) = woken.try_recv() {
                wakes += 1;
                if dispatcher
                    .admit(&to_key(&resource), Class::Change, None, at(QUEUED))
                    .is_ok()
                {
                    running.push(to_key(&resource));
                    started += 1;
                }
            }
        }
        assert_eq!((started, wakes), (5_000, 4_950));
        assert!(
            dispatcher
                .load(at(QUEUED))
                .waiting
                .values()
                .all(|number| *number == 0)
        );
    }

    #[test]
    fn resource_without_a_run_wakes_no_other() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        dispatcher.record_running(&key("a"), None);
        assert!(
            dispatcher
                .admit(&key("b"), Class::Change, None, now)
                .is_err()
        );
        dispatcher.record_idle(&key("a"), now);
        assert_eq!(woken.try_recv().unwrap().name, "b");
        dispatcher.record_idle(&key("c"), now);
        assert!(woken.try_recv().is_err());
    }

    #[test]
    fn queue_positions_are_rounded_up_to_two_digits() {
        let positions = [1, 9, 10, 99, 100, 101, 4_321].map(rounded);
        assert_eq!(positions, [1, 9, 10, 99, 100, 110, 4_400]);
    }

    #[test]
    fn failed_reconcile_does_not_block_the_queue() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        assert!(
            dispatcher
                .admit(&key("a"), Class::Change, None, now)
                .is_ok()
        );
        for waits in ["b", "c"] {
            assert!(
                dispatcher
                    .admit(&key(waits), Class::Change, None, now)
                    .is_err()
            );
        }
        dispatcher.reconcile_failed(&key("a"), now);
        assert_eq!(dispatcher.load(now).running, 1, "its run may go on");
        dispatcher.record_idle(&key("a"), now);
        assert_eq!(woken.try_recv().unwrap().name, "b");
        dispatcher.reconcile_failed(&key("b"), now);
        assert_eq!(woken.try_recv().unwrap().name, "c");
        assert!(
            dispatcher
                .admit(&key("c"), Class::Change, None, now)
                .is_ok()
        );
    }

    #[test]
    fn namespaces_alternate_on_a_single_slot() {
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(SlotLimits::new(1, 0), wake);
        let to_key = |namespace: &str, name: &str| ObjectKey::new(namespace, name);
        let at = |second| Timestamp::from_second(second).unwrap();
        let all = [
            ("greedy", "a"),
            ("greedy", "b"),
            ("greedy", "c"),
            ("modest", "z"),
        ];
        assert!(
            dispatcher
                .admit(&to_key("greedy", "first"), Class::Change, None, at(0))
                .is_ok()
        );
        for (second, (namespace, name)) in (1..).zip(all) {
            let waits = dispatcher.admit(&to_key(namespace, name), Class::Change, None, at(second));
            assert!(waits.is_err());
        }
        dispatcher.record_idle(&to_key("greedy", "first"), at(9));
        assert!(
            dispatcher
                .admit(&to_key("greedy", "a"), Class::Change, None, at(9))
                .is_err()
        );
        assert!(
            dispatcher
                .admit(&to_key("modest", "z"), Class::Change, None, at(9))
                .is_ok()
        );
    }
}
