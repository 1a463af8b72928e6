//! Polls git servers, registries and the API server. A reconcile never waits for an answer: it reads the last one, and is requeued
//! when the answer changes. Resources with the same query share its requests.

use std::collections::{BTreeMap, HashMap, HashSet, btree_map};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use alustan_api::report::{Failure, FailureClass};
use alustan_core::backoff::doubled;
use alustan_core::digest;
use alustan_core::observed::Answer;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::metrics::{Metrics, QueryCache, QueryKind};
use crate::resource::Ref;
#[cfg(test)]
use crate::visits;

/// Sends a query once. Called again for each attempt.
pub(crate) type SendQuery<V> =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<V, Failure>> + Send>> + Send + Sync>;

/// Sends a query once. Reads the newest argument when the request starts, and returns that argument with the answer.
pub(crate) type SendQueryWith<V, A> = Box<
    dyn Fn(watch::Receiver<A>) -> Pin<Box<dyn Future<Output = (A, Result<V, Failure>)> + Send>>
        + Send
        + Sync,
>;

/// Backoff after the first transient failure. Doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(2);
/// Maximum backoff of transient failures. It is much shorter than the maximum backoff of runs: queries are cheap, and the operator should notice soon
/// that a repository has recovered.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// Exclusive maximum of the phase of a [`PollInterval`].
const DAY: Duration = Duration::from_hours(24);

/// Poll interval of a query. Polls are due when the time since the start of the operator equals `phase` modulo `interval`. Queries with the same
/// interval and phase are therefore due at the same times and can share requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PollInterval {
    interval: Duration,
    phase: Duration,
}

impl PollInterval {
    /// Creates an interval for queries about `target`, for example a repository. Queries about the same `target` have the same phase.
    pub(crate) fn new(interval: Duration, target: &str) -> Self {
        Self {
            interval: interval.max(Duration::from_millis(1)),
            phase: DAY.mul_f64(digest::fraction(target)),
        }
    }

    /// Returns the time from `now` (time since the start of the operator) to the next poll: between 0.1 and 1.1 intervals.
    fn wait(self, now: Duration) -> Duration {
        let millis = |time: Duration| i128::try_from(time.as_millis()).unwrap_or(i128::MAX);
        let least = self.interval / 10;
        let rest = (millis(self.phase) - millis(now + least)).rem_euclid(millis(self.interval));
        least + Duration::from_millis(u64::try_from(rest).unwrap_or_default())
    }
}

/// Sends an answer as the argument of a query in another cache. Returns whether that query exists. The other cache then requeues the subscribers when
/// it has the answer for this argument.
pub(crate) type Forward<V> = Box<dyn Fn(&str, &V) -> bool + Send + Sync>;

/// Cache that polls queries and keeps the last answer to each query. Each request of a query contains the newest argument of type `A`.
pub(crate) struct PolledCache<V, A = ()> {
    queries: Mutex<Queries<V, A>>,
    /// Sends new answers to the queries of [`Self::forward_to`].
    forward: Option<Forward<V>>,
    began: Instant,
    wake: UnboundedSender<Ref>,
    metrics: Arc<Metrics>,
    kind: QueryKind,
}

/// Queries by key, and the keys of the queries of each subscriber.
struct Queries<V, A> {
    by_key: HashMap<Arc<str>, PolledQuery<V, A>>,
    of_subscriber: HashMap<Arc<Ref>, HashSet<Arc<str>>>,
}

struct PolledQuery<V, A> {
    answer: Answer<V>,
    /// Argument that the subscribers requested last.
    argument: watch::Sender<A>,
    /// Argument of the request that returned `answer`.
    answered: Option<A>,
    subscribers: HashMap<Arc<Ref>, Subscription>,
    /// Number of subscribers with each poll interval.
    intervals: BTreeMap<PollInterval, usize>,
    /// Shortest interval of all subscribers.
    interval: watch::Sender<Option<PollInterval>>,
    /// Ends the wait for the next poll.
    poll_now: Arc<Notify>,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Subscription {
    interval: Option<PollInterval>,
    /// Key of the query in another cache that has the answer as its argument.
    next_query: Option<Arc<str>>,
}

impl<V, A: PartialEq> PolledQuery<V, A> {
    /// Returns whether the query has no answer yet for its newest argument.
    fn is_open(&self) -> bool {
        matches!(self.answer, Answer::Pending)
            || self.answered.as_ref() != Some(&*self.argument.borrow())
    }

    /// Sets the argument of the query. If it changes, discards the failure of the query with the previous argument.
    fn set_argument(&mut self, argument: A) {
        let is_changed = self.argument.send_if_modified(|current| {
            let is_changed = *current != argument;
            *current = argument;
            is_changed
        });
        if is_changed && matches!(self.answer, Answer::Failed { .. }) {
            self.answer = Answer::Pending;
        }
    }
}

impl<V, A> PolledQuery<V, A> {
    /// Sets the poll interval of an existing subscriber.
    fn set_interval(&mut self, subscriber: &Ref, interval: Option<PollInterval>) {
        if let Some(subscribed) = self.subscribers.get_mut(subscriber) {
            let before = std::mem::replace(&mut subscribed.interval, interval);
            self.count_interval(before, interval);
        }
    }

    fn unsubscribe(&mut self, subscriber: &Ref) {
        if let Some(subscribed) = self.subscribers.remove(subscriber) {
            self.count_interval(subscribed.interval, None);
        }
    }

    fn count_interval(&mut self, before: Option<PollInterval>, after: Option<PollInterval>) {
        if before == after {
            return;
        }
        if let Some(interval) = after {
            *self.intervals.entry(interval).or_default() += 1;
        }
        if let Some(interval) = before
            && let btree_map::Entry::Occupied(mut count) = self.intervals.entry(interval)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let shortest = self.intervals.keys().next().copied();
        self.interval
            .send_if_modified(|current| std::mem::replace(current, shortest) != shortest);
    }
}

impl<V, A> Default for Queries<V, A> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            of_subscriber: HashMap::new(),
        }
    }
}

impl<V, A> Queries<V, A> {
    /// Subscribes `subscriber` to the query `key`. Returns the query; `None` if it does not exist.
    fn subscribe(&mut self, key: &str, subscriber: &Ref) -> Option<&mut PolledQuery<V, A>> {
        #[cfg(test)]
        visits::count(1);
        let (key, _) = self.by_key.get_key_value(key)?;
        let key = key.clone();
        let query = self.by_key.get_mut(&key)?;
        let subscriber = match self.of_subscriber.get_key_value(subscriber) {
            Some((known, _)) => known.clone(),
            None => Arc::new(without_version(subscriber)),
        };
        query.subscribers.entry(subscriber.clone()).or_default();
        let keys = self.of_subscriber.entry(subscriber).or_default();
        keys.insert(key);
        Some(query)
    }

    /// Unsubscribes `subscriber` from queries not in `used`. Removes queries without subscribers.
    fn keep(&mut self, subscriber: &Ref, used: &HashSet<String>) {
        let Some(keys) = self.of_subscriber.get_mut(subscriber) else {
            return;
        };
        let unused: Vec<_> = keys.extract_if(|key| !used.contains(&**key)).collect();
        if keys.is_empty() {
            self.of_subscriber.remove(subscriber);
        }
        for key in unused {
            #[cfg(test)]
            visits::count(1);
            let Some(query) = self.by_key.get_mut(&key) else {
                continue;
            };
            query.unsubscribe(subscriber);
            if query.subscribers.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }

    /// Returns the queries of `subscriber`.
    fn of(&self, subscriber: &Ref) -> impl Iterator<Item = &PolledQuery<V, A>> {
        let keys = self.of_subscriber.get(subscriber).into_iter().flatten();
        keys.filter_map(|key| {
            #[cfg(test)]
            visits::count(1);
            self.by_key.get(key)
        })
    }
}

/// Returns `resource` without uid and resource version, which need memory and are not compared.
fn without_version(resource: &Ref) -> Ref {
    let name = Ref::new(&resource.name);
    match &resource.namespace {
        Some(namespace) => name.within(namespace),
        None => name,
    }
}

impl<V, A> Drop for PolledQuery<V, A> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl<V: Clone + PartialEq + Send + 'static> PolledCache<V> {
    /// Returns the answer to `query` and subscribes `subscriber`. Polls with `send` at the shortest interval of all subscribers. Without
    /// an interval, polling ends with the first success.
    pub(crate) fn get(
        self: &Arc<Self>,
        query: &str,
        subscriber: &Ref,
        interval: Option<PollInterval>,
        send: SendQuery<V>,
    ) -> Answer<V> {
        let send: SendQueryWith<V, ()> = Box::new(move |_| {
            let result = send();
            Box::pin(async move { ((), result.await) })
        });
        self.get_with_argument(query, (), subscriber, interval, send)
    }
}

impl<V, A> PolledCache<V, A>
where
    V: Clone + PartialEq + Send + 'static,
    A: Clone + PartialEq + Send + Sync + 'static,
{
    /// Creates an empty cache. `wake` receives resources whose answers changed. `metrics` counts the answers to queries of this `kind`.
    pub(crate) fn new(
        wake: UnboundedSender<Ref>,
        metrics: Arc<Metrics>,
        kind: QueryKind,
    ) -> Arc<Self> {
        Self::with(wake, metrics, kind, None)
    }

    /// Like [`Self::new`]. Sends new answers to the queries of [`Self::forward_to`] with `forward`.
    pub(crate) fn forwarding(
        wake: UnboundedSender<Ref>,
        metrics: Arc<Metrics>,
        kind: QueryKind,
        forward: Forward<V>,
    ) -> Arc<Self> {
        Self::with(wake, metrics, kind, Some(forward))
    }

    fn with(
        wake: UnboundedSender<Ref>,
        metrics: Arc<Metrics>,
        kind: QueryKind,
        forward: Option<Forward<V>>,
    ) -> Arc<Self> {
        let cache = Arc::new(Self {
            queries: Mutex::default(),
            forward,
            began: Instant::now(),
            wake,
            metrics,
            kind,
        });
        let weak: Weak<Self> = Arc::downgrade(&cache);
        cache.metrics.register_queries(kind, weak);
        cache
    }

    /// Like [`get`](PolledCache::get), with an argument. A newer argument replaces an earlier one that has not been sent. Until the newer
    /// argument has an answer, the earlier answer is returned.
    pub(crate) fn get_with_argument(
        self: &Arc<Self>,
        query: &str,
        argument: A,
        subscriber: &Ref,
        interval: Option<PollInterval>,
        send: SendQueryWith<V, A>,
    ) -> Answer<V> {
        let mut queries = self.queries.lock();
        if let Some(query) = queries.subscribe(query, subscriber) {
            query.set_interval(subscriber, interval);
            query.set_argument(argument);
            return query.answer.clone();
        }
        let (interval_sender, interval_receiver) = watch::channel(None);
        let (argument_sender, argument_receiver) = watch::channel(argument);
        let poll_now = Arc::<Notify>::default();
        let schedule = Schedule {
            interval: interval_receiver,
            argument: argument_receiver,
            poll_now: poll_now.clone(),
        };
        let task = tokio::spawn(poll(
            Arc::downgrade(self),
            query.to_owned(),
            self.began,
            schedule,
            send,
        ));
        let new = PolledQuery {
            answer: Answer::Pending,
            argument: argument_sender,
            answered: None,
            subscribers: HashMap::new(),
            intervals: BTreeMap::new(),
            interval: interval_sender,
            poll_now,
            task: Some(task.abort_handle()),
        };
        queries.by_key.insert(Arc::from(query), new);
        if let Some(query) = queries.subscribe(query, subscriber) {
            query.set_interval(subscriber, interval);
        }
        Answer::Pending
    }

    /// Returns the answer to `query`, if the query exists, and subscribes `subscriber`.
    pub(crate) fn get_existing(&self, query: &str, subscriber: &Ref) -> Option<Answer<V>> {
        let mut queries = self.queries.lock();
        let query = queries.subscribe(query, subscriber)?;
        Some(query.answer.clone())
    }

    /// Polls all queries of these resources immediately.
    pub(crate) fn poll_now(&self, resources: &HashSet<Ref>) {
        let queries = self.queries.lock();
        for resource in resources {
            for query in queries.of(resource) {
                query.poll_now.notify_one();
            }
        }
    }

    /// Returns whether a query of `subscriber` has no answer yet for its newest argument.
    pub(crate) fn has_open_query(&self, subscriber: &Ref) -> bool {
        self.queries.lock().of(subscriber).any(PolledQuery::is_open)
    }

    /// Unsubscribes `subscriber` from queries not in `used`. A query without subscribers stops polling.
    pub(crate) fn keep(&self, subscriber: &Ref, used: &HashSet<String>) {
        self.queries.lock().keep(subscriber, used);
    }

    /// Makes each new answer to `query` the argument of `next_query` in another cache. `subscriber` subscribes to both queries, and is requeued only for
    /// the answer to `next_query`.
    pub(crate) fn forward_to(&self, query: &str, subscriber: &Ref, next_query: Arc<str>) {
        let mut queries = self.queries.lock();
        let query = queries.by_key.get_mut(query);
        if let Some(subscription) = query.and_then(|query| query.subscribers.get_mut(subscriber)) {
            subscription.next_query = Some(next_query);
        }
    }

    /// Returns the key of `query` for [`Self::forward_to`], without a copy of its text. `None` if the query does not exist.
    pub(crate) fn key(&self, query: &str) -> Option<Arc<str>> {
        let queries = self.queries.lock();
        queries
            .by_key
            .get_key_value(query)
            .map(|(key, _)| key.clone())
    }

    /// Sets the argument of `query`, if it exists. Returns whether it exists.
    pub(crate) fn set_argument(&self, query: &str, argument: A) -> bool {
        let mut queries = self.queries.lock();
        let found = queries.by_key.get_mut(query);
        found.map(|query| query.set_argument(argument)).is_some()
    }

    /// Stores an answer. Requeues the subscribers if it changed. Returns false if the query has no subscribers.
    fn store(&self, query: &str, argument: A, answer: Answer<V>) -> bool {
        let mut queries = self.queries.lock();
        let Some(entry) = queries.by_key.get_mut(query) else {
            return false;
        };
        let answer = match answer {
            Answer::Failed {
                failure, retry_at, ..
            } => Answer::Failed {
                failure,
                last: entry
                    .answer
                    .value()
                    .filter(|_| entry.answered.as_ref() == Some(&argument))
                    .cloned(),
                retry_at,
            },
            other => other,
        };
        let is_changed = !is_same(&entry.answer, &answer);
        // After a failure, the subscribers also report that the query succeeds again.
        let forward = self.forward.as_ref();
        let forward = forward.filter(|_| matches!(entry.answer, Answer::Known(_)));
        entry.answer = answer;
        entry.answered = Some(argument);
        if is_changed {
            for (subscriber, subscription) in &entry.subscribers {
                let is_forwarded = match (forward, &entry.answer, &subscription.next_query) {
                    (Some(forward), Answer::Known(value), Some(query)) => forward(query, value),
                    _ => false,
                };
                if !is_forwarded {
                    // `send` fails only after the controller has stopped.
                    let _ = self.wake.send(Ref::clone(subscriber));
                }
            }
        }
        true
    }
}

impl<V: Send, A: Send + Sync> QueryCache for PolledCache<V, A> {
    fn failing(&self) -> Vec<Ref> {
        let queries = self.queries.lock();
        let failing = queries.by_key.values().filter(|query| {
            matches!(&query.answer, Answer::Failed { failure, .. } if failure.class == FailureClass::Transient)
        });
        failing
            .flat_map(|query| query.subscribers.keys())
            .map(|subscriber| Ref::clone(subscriber))
            .collect()
    }
}

/// Returns whether two answers are equal, except for the time of the next attempt.
fn is_same<V: PartialEq>(previous: &Answer<V>, next: &Answer<V>) -> bool {
    match (previous, next) {
        (
            Answer::Failed { failure, last, .. },
            Answer::Failed {
                failure: next_failure,
                last: next_last,
                ..
            },
        ) => failure == next_failure && last == next_last,
        (previous, next) => previous == next,
    }
}

/// Argument and schedule of a query.
struct Schedule<A> {
    interval: watch::Receiver<Option<PollInterval>>,
    argument: watch::Receiver<A>,
    poll_now: Arc<Notify>,
}

async fn poll<V, A>(
    cache: Weak<PolledCache<V, A>>,
    query: String,
    began: Instant,
    mut schedule: Schedule<A>,
    send: SendQueryWith<V, A>,
) where
    V: Clone + PartialEq + Send + 'static,
    A: Clone + PartialEq + Send + Sync + 'static,
{
    let (mut failures, mut last_argument) = (0_u32, None);
    loop {
        let sent_at = Instant::now();
        let (argument, result) = send(schedule.argument.clone()).await;
        let failure = result.as_ref().err();
        if let Some(cache) = cache.upgrade() {
            cache.metrics.record_query(cache.kind, failure);
        }
        if last_argument.replace(argument.clone()) != Some(argument.clone()) {
            failures = 0;
        }
        let failure_class = failure.map(|failure| failure.class);
        failures = failure_class.map_or(0, |_| failures + 1);
        let wait = |interval: Option<PollInterval>| {
            let next = interval.map(|interval| interval.wait(sent_at - began));
            match failure_class {
                None => next,
                Some(class) => Some(retry_delay(failures, class, next)),
            }
        };
        let answer = match result {
            Ok(value) => Answer::Known(value),
            Err(failure) => Answer::Failed {
                failure,
                last: None,
                retry_at: after(wait(*schedule.interval.borrow())),
            },
        };
        let has_subscribers = cache
            .upgrade()
            .is_some_and(|cache| cache.store(&query, argument.clone(), answer));
        if !has_subscribers || schedule.wait(sent_at, &argument, wait).await.is_none() {
            return;
        }
    }
}

fn after(wait: Option<Duration>) -> Timestamp {
    let wait = SignedDuration::try_from(wait.unwrap_or(MAX_BACKOFF));
    Timestamp::now() + wait.unwrap_or(SignedDuration::from_mins(1))
}

impl<A: PartialEq> Schedule<A> {
    /// Sleeps until the query is due. The sleep ends early after a shorter interval, a call of `poll_now`, or an argument other than `answered`.
    /// Returns `None` if the query has no subscribers.
    async fn wait(
        &mut self,
        sent_at: Instant,
        answered: &A,
        wait: impl Fn(Option<PollInterval>) -> Option<Duration>,
    ) -> Option<()> {
        loop {
            if *self.argument.borrow_and_update() != *answered {
                return Some(());
            }
            let due = wait(*self.interval.borrow_and_update()).map(|wait| sent_at + wait);
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => return Some(()),
                () = self.poll_now.notified() => return Some(()),
                changed = self.interval.changed() => changed.ok()?,
                changed = self.argument.changed() => changed.ok()?,
            }
        }
    }
}

fn retry_delay(failures: u32, class: FailureClass, next: Option<Duration>) -> Duration {
    match class {
        FailureClass::Transient => doubled(FIRST_BACKOFF, failures, MAX_BACKOFF),
        FailureClass::Module | FailureClass::User => next.unwrap_or(MAX_BACKOFF),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    fn subscriber(name: &str) -> Ref {
        Ref::new(name).within("ns")
    }

    fn counting(calls: &Arc<AtomicUsize>, fail_first: usize) -> SendQuery<usize> {
        let calls = calls.clone();
        Box::new(move || {
            let n = calls.fetch_add(1, Ordering::SeqCst);
            let failure = Failure {
                class: FailureClass::Transient,
                reason: "RepositoryUnreachable".to_owned(),
                message: "no route".to_owned(),
            };
            Box::pin(async move { if n < fail_first { Err(failure) } else { Ok(n) } })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn shared_query_is_sent_once_and_wakes_all_subscribers() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let calls = Arc::new(AtomicUsize::new(0));
        for name in ["a", "b", "c"] {
            assert_eq!(
                cache.get("q", &subscriber(name), None, counting(&calls, 0)),
                Answer::Pending
            );
        }
        for _ in 0..3 {
            woken.recv().await.unwrap();
        }
        assert_eq!(
            cache.get("q", &subscriber("a"), None, counting(&calls, 0)),
            Answer::Known(0)
        );
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn transient_failure_is_returned_and_retried() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let calls = Arc::new(AtomicUsize::new(0));
        let send = || counting(&calls, 2);
        cache.get("q", &subscriber("a"), None, send());
        assert!(cache.has_open_query(&subscriber("a")) && !cache.has_open_query(&subscriber("b")));
        woken.recv().await.unwrap();
        assert!(!cache.has_open_query(&subscriber("a")));
        assert!(matches!(
            cache.get_existing("q", &subscriber("a")),
            Some(Answer::Failed { last: None, .. })
        ));
        // The second failure equals the first, so it requeues no resource.
        woken.recv().await.unwrap();
        assert_eq!(
            cache.get_existing("q", &subscriber("a")),
            Some(Answer::Known(2))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_lists_subscribers_of_failing_queries() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let calls = Arc::new(AtomicUsize::new(0));
        for name in ["a", "b"] {
            cache.get("q", &subscriber(name), None, counting(&calls, 1));
        }
        cache.get("p", &subscriber("c"), None, counting(&Arc::default(), 0));
        for _ in 0..3 {
            woken.recv().await.unwrap();
        }
        let mut failing = cache.failing();
        failing.sort_by(|first, second| first.name.cmp(&second.name));
        assert_eq!(failing, [subscriber("a"), subscriber("b")]);
        woken.recv().await.unwrap();
        assert_eq!(cache.failing(), []);
        // `failing` returns no resource with a permanent failure.
        let send: SendQuery<usize> = Box::new(|| {
            let failure = Failure {
                class: FailureClass::User,
                reason: "BranchNotFound".to_owned(),
                message: String::new(),
            };
            Box::pin(async move { Err(failure) })
        });
        cache.get("r", &subscriber("d"), None, send);
        while woken.recv().await != Some(subscriber("d")) {}
        assert_eq!(cache.failing(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn shortest_interval_of_all_subscribers_applies_at_once() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let calls = Arc::new(AtomicUsize::new(0));
        let get = |name, minutes| {
            let interval = Some(PollInterval::new(Duration::from_mins(minutes), "q"));
            cache.get("q", &subscriber(name), interval, counting(&calls, 0))
        };
        get("a", 600);
        woken.recv().await.unwrap();
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        get("b", 10);
        tokio::time::sleep(Duration::from_mins(7)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        cache.keep(&subscriber("b"), &HashSet::new());
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn ask_now_sends_queries_of_the_given_resources_at_once() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let hour = Some(PollInterval::new(Duration::from_hours(1), "q"));
        let (mine, other) = (Arc::default(), Arc::default());
        cache.get("q", &subscriber("a"), hour, counting(&mine, 0));
        cache.get("p", &subscriber("b"), hour, counting(&other, 0));
        woken.recv().await.unwrap();
        woken.recv().await.unwrap();
        cache.poll_now(&HashSet::from([subscriber("a"), subscriber("c")]));
        assert_eq!(woken.recv().await, Some(subscriber("a")));
        let calls_of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert_eq!((calls_of(&mine), calls_of(&other)), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn newer_argument_keeps_the_queue_position_of_the_query() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let permits = Arc::new(tokio::sync::Semaphore::new(0));
        let begun = Arc::new(AtomicUsize::new(0));
        let get = |argument: usize| {
            let (permits, begun) = (permits.clone(), begun.clone());
            let send: SendQueryWith<usize, usize> = Box::new(move |argument| {
                let (permits, begun) = (permits.clone(), begun.clone());
                Box::pin(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    permits.acquire().await.unwrap().forget();
                    let argument = *argument.borrow();
                    let failure = Failure {
                        class: FailureClass::User,
                        reason: "Odd".to_owned(),
                        message: String::new(),
                    };
                    let answer = if argument % 2 == 0 {
                        Ok(argument)
                    } else {
                        Err(failure)
                    };
                    (argument, answer)
                })
            });
            cache.get_with_argument("q", argument, &subscriber("a"), None, send)
        };
        assert_eq!(get(2), Answer::Pending);
        tokio::task::yield_now().await;
        assert_eq!(get(4), Answer::Pending);
        permits.add_permits(1);
        woken.recv().await.unwrap();
        assert_eq!(get(4), Answer::Known(4));
        assert!(!cache.has_open_query(&subscriber("a")));
        assert_eq!(
            begun.load(Ordering::SeqCst),
            1,
            "the question was not dropped"
        );
        // The answer for the older argument is returned until the next answer.
        assert_eq!(get(5), Answer::Known(4));
        assert!(cache.has_open_query(&subscriber("a")));
        permits.add_permits(1);
        woken.recv().await.unwrap();
        assert!(matches!(get(5), Answer::Failed { last: None, .. }));
        assert!(!cache.has_open_query(&subscriber("a")));
        // A failure for an older argument is discarded.
        assert_eq!(get(6), Answer::Pending);
        permits.add_permits(1);
        woken.recv().await.unwrap();
        assert_eq!(get(6), Answer::Known(6));
        assert_eq!(begun.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn new_answer_is_the_argument_of_the_next_query() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let next = PolledCache::new(wake.clone(), Metrics::new(), QueryKind::Api);
        let forward: Forward<usize> = {
            let next = next.clone();
            Box::new(move |query, answer| next.set_argument(query, *answer))
        };
        let cache = PolledCache::forwarding(wake, Metrics::new(), QueryKind::Api, forward);
        let calls = Arc::default();
        let get = |name: &str| cache.get("q", &subscriber(name), None, counting(&calls, 0));
        let get_next = |argument| {
            let send: SendQueryWith<usize, usize> = Box::new(|argument| {
                let argument = *argument.borrow();
                Box::pin(async move { (argument, Ok(argument)) })
            });
            next.get_with_argument("next", argument, &subscriber("a"), None, send)
        };
        for name in ["a", "b"] {
            get(name);
        }
        for _ in 0..2 {
            woken.recv().await.unwrap();
        }
        get_next(0);
        assert_eq!(woken.recv().await, Some(subscriber("a")));
        cache.forward_to("q", &subscriber("a"), next.key("next").unwrap());
        // `b` has no next query: the answer requeues it. The next query requeues `a`.
        cache.poll_now(&HashSet::from([subscriber("a")]));
        assert_eq!(woken.recv().await, Some(subscriber("b")));
        assert_eq!(woken.recv().await, Some(subscriber("a")));
        assert_eq!(
            (get("a"), get_next(1)),
            (Answer::Known(1), Answer::Known(1))
        );
        // `a` no longer subscribes to the next query.
        next.keep(&subscriber("a"), &HashSet::new());
        cache.poll_now(&HashSet::from([subscriber("a")]));
        let both = HashSet::from([woken.recv().await, woken.recv().await]);
        assert_eq!(
            both,
            HashSet::from([Some(subscriber("a")), Some(subscriber("b"))])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn first_answer_after_a_failure_is_not_forwarded() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let forward: Forward<usize> = Box::new(|_, _| true);
        let cache = PolledCache::forwarding(wake, Metrics::new(), QueryKind::Api, forward);
        let calls = Arc::new(AtomicUsize::new(0));
        cache.get("q", &subscriber("a"), None, counting(&calls, 1));
        cache.forward_to("q", &subscriber("a"), Arc::from("next"));
        assert_eq!(woken.recv().await, Some(subscriber("a")), "the failure");
        assert_eq!(woken.recv().await, Some(subscriber("a")), "the success");
    }

    #[test]
    fn polls_of_one_repository_coincide() {
        let interval_of = |minutes| PollInterval::new(Duration::from_mins(minutes), "a repository");
        let first = interval_of(5).wait(Duration::ZERO);
        for seconds in [1, 7, 40, 200, 299, 3000] {
            let now = Duration::from_secs(seconds);
            let wait = interval_of(5).wait(now);
            let apart = (now + wait).abs_diff(first).as_millis();
            assert_eq!(apart % Duration::from_mins(5).as_millis(), 0, "{wait:?}");
            let range = Duration::from_secs(30)..=Duration::from_secs(330);
            assert!(range.contains(&wait), "{wait:?}");
        }
        // Polls of the longer interval coincide with polls of the shorter one.
        let apart = interval_of(60).wait(first).as_millis();
        assert_eq!(apart % Duration::from_mins(5).as_millis(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn query_without_subscribers_is_not_polled() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let cache = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let calls = Arc::new(AtomicUsize::new(0));
        let minute = Some(PollInterval::new(Duration::from_mins(1), "q"));
        cache.get("q", &subscriber("a"), minute, counting(&calls, 0));
        woken.recv().await.unwrap();
        cache.keep(&subscriber("a"), &HashSet::new());
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(cache.get_existing("q", &subscriber("a")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_visits_the_queries_of_its_resource_only() {
        let visited_with = |others: usize| {
            let cache =
                PolledCache::new(mpsc::unbounded_channel().0, Metrics::new(), QueryKind::Api);
            let get = |query: &str, resource: &Ref| {
                cache.get(query, resource, None, counting(&Arc::default(), 0))
            };
            // Each of the other resources has a query of its own. All resources share a query.
            for other in 0..others {
                let other = subscriber(&format!("other-{other}"));
                get(&other.name, &other);
                get("shared", &other);
            }
            let before = visits::so_far();
            for query in ["shared", "own", "earlier"] {
                get(query, &subscriber("a"));
            }
            cache.has_open_query(&subscriber("a"));
            cache.keep(&subscriber("a"), &HashSet::from(["own".to_owned()]));
            cache.poll_now(&HashSet::from([subscriber("a")]));
            visits::so_far() - before
        };
        assert_eq!(visited_with(10), visited_with(100));
    }
}
