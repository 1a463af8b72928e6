//! Admission of runs and builds: `--max-concurrent-runs` and `--max-runs-per-namespace`, in the order of [`schedule`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use alustan_core::metrics;
use alustan_core::references::Key;
use alustan_core::schedule::{Class, Places, Served, Waiting, schedule};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc::UnboundedSender;

use crate::Ref;

/// Who runs, and who waits for a place.
pub(crate) struct Dispatcher {
    places: Places,
    state: Mutex<State>,
    wake: UnboundedSender<Ref>,
}

#[derive(Default)]
struct State {
    /// Whether the runs that went on before this process are counted.
    begun: bool,
    running: HashSet<Key>,
    queue: HashMap<Key, Waiting>,
    served: Served,
    /// How many places were given out.
    places: u64,
}

/// So many places after its last one a namespace counts as one that never had any.
const REMEMBERED: u64 = 10_000;

/// How busy it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Runs that wait, by class.
    pub(crate) waiting: BTreeMap<&'static str, i64>,
    /// Since when the first of them waits, by class.
    pub(crate) oldest: BTreeMap<&'static str, Timestamp>,
    /// Runs that go on.
    pub(crate) running: i64,
    /// Runs that may go on at once.
    pub(crate) places: i64,
}

impl Dispatcher {
    /// `wake` receives the resources that are admitted.
    pub(crate) fn new(places: Places, wake: UnboundedSender<Ref>) -> Self {
        Self {
            places,
            state: Mutex::default(),
            wake,
        }
    }

    /// Counts the runs that went on before this process, once: nobody else may take their places.
    pub(crate) fn begin(&self, running: impl FnOnce() -> Vec<Key>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut state.begun, true) {
            state.running.extend(running());
        }
    }

    /// A place for a run of `key`, and how long it waited for that; none if it had one already. Or its
    /// position in the queue, from 1.
    pub(crate) fn admit(
        &self,
        key: &Key,
        class: Class,
        now: Timestamp,
    ) -> Result<Option<SignedDuration>, usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.running.contains(key) {
            return Ok(None);
        }
        let since = state.queue.get(key).map_or(now, |waiting| waiting.since);
        state.queue.insert(
            key.clone(),
            Waiting {
                key: key.clone(),
                class,
                since,
            },
        );
        let order = state.order(now);
        let running = state.running();
        let admitted = self.places.admit(&order, &running);
        if admitted.contains(&key) {
            state.serve(key);
            return Ok(Some(now.duration_since(since)));
        }
        let mut waiting = order.iter().filter(|next| !admitted.contains(next));
        let before = waiting.position(|next| next == key);
        Err(before.unwrap_or(order.len()) + 1)
    }

    /// How busy it is now.
    pub(crate) fn load(&self) -> Load {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let classes = [Class::Change, Class::Plan, Class::Drift];
        let of = |class| state.queue.values().filter(|it| it.class == class).count();
        let mut oldest = BTreeMap::new();
        for waiting in state.queue.values() {
            metrics::older(&mut oldest, metrics::class(waiting.class), waiting.since);
        }
        Load {
            oldest,
            waiting: classes.map(|it| (metrics::class(it), count(of(it)))).into(),
            running: count(state.running.len()),
            places: count(self.places.all),
        }
    }

    /// A run of `key` goes on.
    pub(crate) fn running(&self, key: &Key) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.remove(key);
        state.running.insert(key.clone());
    }

    /// Nothing of `key` runs or waits: its place, or the one it was called for, goes to the next.
    pub(crate) fn idle(&self, key: &Key, now: Timestamp) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.remove(key);
        state.running.remove(key);
        self.call(&state, now);
    }

    /// Nobody can tell whether `key` still wants to run: it does not keep others waiting. What of it
    /// runs goes on.
    pub(crate) fn unknown(&self, key: &Key, now: Timestamp) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.queue.remove(key).is_some() {
            self.call(&state, now);
        }
    }

    /// Wakes those for whom there is a place.
    fn call(&self, state: &State, now: Timestamp) {
        for next in self.places.admit(&state.order(now), &state.running()) {
            // The receiver lives as long as the controller.
            let _ = self.wake.send(Ref::new(&next.name).within(&next.namespace));
        }
    }
}

impl State {
    fn serve(&mut self, key: &Key) {
        self.queue.remove(key);
        self.running.insert(key.clone());
        self.places += 1;
        self.served.insert(key.namespace.clone(), self.places);
        let places = self.places;
        self.served.retain(|_, last| *last + REMEMBERED > places);
    }

    fn order(&self, now: Timestamp) -> Vec<Key> {
        let queue: Vec<Waiting> = self.queue.values().cloned().collect();
        schedule(&queue, &self.running(), &self.served, now)
    }

    fn running(&self) -> Vec<Key> {
        self.running.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn key(name: &str) -> Key {
        Key {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_place_that_gets_free_goes_to_the_next_in_the_queue() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(Places::new(1, 0), wake);
        let later = now + SignedDuration::from_secs(4);
        let at_once = Ok(Some(SignedDuration::ZERO));
        assert_eq!(dispatcher.admit(&key("a"), Class::Change, now), at_once);
        assert_eq!(dispatcher.admit(&key("a"), Class::Change, now), Ok(None));
        assert_eq!(dispatcher.admit(&key("b"), Class::Drift, now), Err(1));
        assert_eq!(dispatcher.admit(&key("c"), Class::Change, now), Err(1));
        assert_eq!(dispatcher.admit(&key("b"), Class::Drift, later), Err(2));
        let load = dispatcher.load();
        assert_eq!((load.running, load.places), (1, 1));
        let waiting = [("change", 1), ("plan", 0), ("drift", 1)];
        assert_eq!(load.waiting, BTreeMap::from(waiting));
        assert_eq!(
            load.oldest,
            BTreeMap::from([("change", now), ("drift", now)])
        );
        dispatcher.idle(&key("a"), now);
        assert_eq!(woken.try_recv().unwrap().name, "c");
        assert_eq!(dispatcher.admit(&key("b"), Class::Drift, now), Err(1));
        let waited = Ok(Some(SignedDuration::from_secs(4)));
        assert_eq!(dispatcher.admit(&key("c"), Class::Change, later), waited);
    }

    #[test]
    fn runs_from_before_a_restart_keep_their_places() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(Places::new(1, 0), wake);
        dispatcher.begin(|| vec![key("a")]);
        dispatcher.begin(|| unreachable!("it began already"));
        assert_eq!(dispatcher.admit(&key("b"), Class::Change, now), Err(1));
        dispatcher.idle(&key("a"), now);
        assert!(dispatcher.admit(&key("b"), Class::Change, now).is_ok());
    }

    #[test]
    fn who_no_longer_wants_to_run_leaves_the_queue() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(Places::new(1, 0), wake);
        dispatcher.running(&key("a"));
        assert_eq!(dispatcher.admit(&key("b"), Class::Change, now), Err(1));
        assert_eq!(dispatcher.admit(&key("c"), Class::Change, now), Err(2));
        dispatcher.idle(&key("b"), now);
        assert_eq!(dispatcher.admit(&key("c"), Class::Change, now), Err(1));
    }

    #[test]
    fn one_that_cannot_be_looked_at_keeps_nobody_waiting() {
        let now = Timestamp::from_second(1_000).unwrap();
        let (wake, mut woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(Places::new(1, 0), wake);
        assert!(dispatcher.admit(&key("a"), Class::Change, now).is_ok());
        for waits in ["b", "c"] {
            assert!(dispatcher.admit(&key(waits), Class::Change, now).is_err());
        }
        dispatcher.unknown(&key("a"), now);
        assert_eq!(dispatcher.load().running, 1, "its run may go on");
        dispatcher.idle(&key("a"), now);
        assert_eq!(woken.try_recv().unwrap().name, "b");
        dispatcher.unknown(&key("b"), now);
        assert_eq!(woken.try_recv().unwrap().name, "c");
        assert!(dispatcher.admit(&key("c"), Class::Change, now).is_ok());
    }

    #[test]
    fn namespaces_take_turns_though_there_is_one_place_alone() {
        let (wake, _woken) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::new(Places::new(1, 0), wake);
        let of = |namespace: &str, name: &str| Key::new(namespace, name);
        let at = |second| Timestamp::from_second(second).unwrap();
        let all = [
            ("greedy", "a"),
            ("greedy", "b"),
            ("greedy", "c"),
            ("modest", "z"),
        ];
        assert!(
            dispatcher
                .admit(&of("greedy", "first"), Class::Change, at(0))
                .is_ok()
        );
        for (second, (namespace, name)) in (1..).zip(all) {
            let waits = dispatcher.admit(&of(namespace, name), Class::Change, at(second));
            assert!(waits.is_err());
        }
        dispatcher.idle(&of("greedy", "first"), at(9));
        assert!(
            dispatcher
                .admit(&of("greedy", "a"), Class::Change, at(9))
                .is_err()
        );
        assert!(
            dispatcher
                .admit(&of("modest", "z"), Class::Change, at(9))
                .is_ok()
        );
    }
}
