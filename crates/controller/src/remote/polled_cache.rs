//! Polls git servers, registries and the API server. A reconcile never waits for an answer: it reads the last one, and is requeued
//! when the answer changes. Resources with the same query share its requests.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use alustan_api::report::{Failure, FailureClass};
use alustan_core::digest;
use alustan_core::observed::Answer;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::backoff::doubled;
use crate::metrics::{Metrics, QueryCache, QueryKind};
use crate::resource::Ref;

/// Sends a query once. Called again for each attempt.
pub(crate) type Ask<V> =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<V, Failure>> + Send>> + Send + Sync>;

/// Sends a query once. Reads the newest argument when the request starts, and returns that argument with the answer.
pub(crate) type AskAbout<V, A> = Box<
    dyn Fn(watch::Receiver<A>) -> Pin<Box<dyn Future<Output = (A, Result<V, Failure>)> + Send>>
        + Send
        + Sync,
>;

/// Backoff after the first transient failure. Doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(2);
/// Maximum backoff of transient failures. It is much shorter than that of runs: queries are cheap, and recovery of a repository
/// should be noticed soon.
const LONGEST: Duration = Duration::from_mins(1);
/// Range of the phases of poll intervals: zero to one day.
const DAY: Duration = Duration::from_hours(24);

/// Poll interval of a query. Queries with the same interval and phase are due at the same times, regardless of the time of their first
/// request, so that they can share requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Every {
    interval: Duration,
    phase: Duration,
}

impl Every {
    /// Creates an interval for queries about `thing`, for example a repository. Queries about the same `thing` have the same phase.
    pub(crate) fn new(interval: Duration, thing: &str) -> Self {
        Self {
            interval: interval.max(Duration::from_millis(1)),
            phase: DAY.mul_f64(digest::fraction(thing)),
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

/// Answers by query. The argument `A` of a query may change: a newer argument replaces an earlier one that has not been sent.
pub(crate) struct PolledCache<V, A = ()> {
    entries: Mutex<HashMap<String, Entry<V, A>>>,
    began: Instant,
    wake: UnboundedSender<Ref>,
    metrics: Arc<Metrics>,
    asked: QueryKind,
}

struct Entry<V, A> {
    answer: Answer<V>,
    /// Argument that the subscribers requested last.
    about: watch::Sender<A>,
    /// Argument of the request that returned `answer`.
    answered: Option<A>,
    /// Subscribers and their poll intervals.
    subscribers: HashMap<Ref, Option<Every>>,
    /// Shortest interval of all subscribers.
    every: watch::Sender<Option<Every>>,
    /// Ends the wait for the next poll.
    now: Arc<Notify>,
    task: Option<AbortHandle>,
}

impl<V, A: PartialEq> Entry<V, A> {
    /// Returns whether the query has no answer yet for its newest argument.
    fn is_open(&self) -> bool {
        matches!(self.answer, Answer::Pending)
            || self.answered.as_ref() != Some(&*self.about.borrow())
    }

    /// Sets the argument to `about` and discards a failure about another argument.
    fn want(&mut self, about: A) {
        let is_news = self.about.send_if_modified(|wanted| {
            let is_news = *wanted != about;
            *wanted = about;
            is_news
        });
        if is_news && matches!(self.answer, Answer::Failed { .. }) {
            self.answer = Answer::Pending;
        }
    }
}

impl<V, A> Entry<V, A> {
    fn settle_interval(&self) {
        let all = self.subscribers.values().flatten();
        let every = all.min_by_key(|every| every.interval).copied();
        self.every
            .send_if_modified(|now| std::mem::replace(now, every) != every);
    }
}

impl<V, A> Drop for Entry<V, A> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl<V: Clone + PartialEq + Send + 'static> PolledCache<V> {
    /// Returns the answer to `question` and subscribes `subscriber`. Polls with `ask` at the shortest interval of all subscribers. Without
    /// an interval, polling ends with the first success.
    pub(crate) fn get(
        self: &Arc<Self>,
        question: &str,
        subscriber: &Ref,
        every: Option<Every>,
        ask: Ask<V>,
    ) -> Answer<V> {
        let ask: AskAbout<V, ()> = Box::new(move |_| {
            let answer = ask();
            Box::pin(async move { ((), answer.await) })
        });
        self.get_about(question, (), subscriber, every, ask)
    }
}

impl<V, A> PolledCache<V, A>
where
    V: Clone + PartialEq + Send + 'static,
    A: Clone + PartialEq + Send + Sync + 'static,
{
    /// Creates an empty cache. `wake` receives resources whose answers changed. `metrics` counts the answers to queries `asked`.
    pub(crate) fn new(
        wake: UnboundedSender<Ref>,
        metrics: Arc<Metrics>,
        asked: QueryKind,
    ) -> Arc<Self> {
        let lookups = Arc::new(Self {
            entries: Mutex::default(),
            began: Instant::now(),
            wake,
            metrics,
            asked,
        });
        let me: Weak<Self> = Arc::downgrade(&lookups);
        lookups.metrics.register_queries(asked, me);
        lookups
    }

    /// Like [`get`](PolledCache::get), with an argument. A newer argument replaces an earlier one that has not been sent. Until the newer
    /// argument has an answer, the earlier answer is returned.
    pub(crate) fn get_about(
        self: &Arc<Self>,
        question: &str,
        about: A,
        subscriber: &Ref,
        every: Option<Every>,
        ask: AskAbout<V, A>,
    ) -> Answer<V> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(question) {
            entry.subscribers.insert(subscriber.clone(), every);
            entry.settle_interval();
            entry.want(about);
            return entry.answer.clone();
        }
        let (sender, receiver) = watch::channel(every);
        let (about, wanted) = watch::channel(about);
        let now = Arc::<Notify>::default();
        let due = Due {
            every: receiver,
            about: wanted,
            now: now.clone(),
        };
        let task = tokio::spawn(answer(
            Arc::downgrade(self),
            question.to_owned(),
            self.began,
            due,
            ask,
        ));
        let entry = Entry {
            answer: Answer::Pending,
            about,
            answered: None,
            subscribers: HashMap::from([(subscriber.clone(), every)]),
            every: sender,
            now,
            task: Some(task.abort_handle()),
        };
        entries.insert(question.to_owned(), entry);
        Answer::Pending
    }

    /// Returns the answer to `question`, if the query exists, and subscribes `subscriber`.
    pub(crate) fn peek(&self, question: &str, subscriber: &Ref) -> Option<Answer<V>> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(question)?;
        entry.subscribers.entry(subscriber.clone()).or_default();
        Some(entry.answer.clone())
    }

    /// Polls all queries of these resources immediately.
    pub(crate) fn ask_now(&self, resources: &HashSet<Ref>) {
        let entries = self.entries.lock();
        let entries = entries.values();
        let theirs = entries.filter(|entry| {
            entry
                .subscribers
                .keys()
                .any(|subscriber| resources.contains(subscriber))
        });
        theirs.for_each(|entry| entry.now.notify_one());
    }

    /// Returns whether a query of `subscriber` has no answer yet for its newest argument.
    pub(crate) fn is_asking(&self, subscriber: &Ref) -> bool {
        let entries = self.entries.lock();
        let mut asked = entries.values();
        asked.any(|entry| entry.is_open() && entry.subscribers.contains_key(subscriber))
    }

    /// Unsubscribes `subscriber` from queries not in `used`. A query without subscribers stops polling.
    pub(crate) fn keep(&self, subscriber: &Ref, used: &HashSet<String>) {
        let mut entries = self.entries.lock();
        entries.retain(|question, entry| {
            if !used.contains(question) {
                entry.subscribers.remove(subscriber);
                entry.settle_interval();
            }
            !entry.subscribers.is_empty()
        });
    }

    /// Stores an answer. Requeues the subscribers if it changed. Returns false if the query has no subscribers.
    fn store(&self, question: &str, about: A, answer: Answer<V>) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(question) else {
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
                    .filter(|_| entry.answered.as_ref() == Some(&about))
                    .cloned(),
                retry_at,
            },
            other => other,
        };
        let news = !same(&entry.answer, &answer);
        entry.answer = answer;
        entry.answered = Some(about);
        if news {
            for subscriber in entry.subscribers.keys() {
                // `send` fails only after the controller has stopped.
                let _ = self.wake.send(subscriber.clone());
            }
        }
        true
    }
}

impl<V: Send, A: Send + Sync> QueryCache for PolledCache<V, A> {
    fn failing(&self) -> Vec<Ref> {
        let entries = self.entries.lock();
        let failed = entries.values().filter(|entry| {
            matches!(&entry.answer, Answer::Failed { failure, .. } if failure.class == FailureClass::Transient)
        });
        failed
            .flat_map(|entry| entry.subscribers.keys().cloned())
            .collect()
    }
}

/// Returns whether two answers are equal, except for the time of the next attempt.
fn same<V: PartialEq>(one: &Answer<V>, other: &Answer<V>) -> bool {
    match (one, other) {
        (
            Answer::Failed { failure, last, .. },
            Answer::Failed {
                failure: also,
                last: before,
                ..
            },
        ) => failure == also && last == before,
        (one, other) => one == other,
    }
}

/// Argument and schedule of a query.
struct Due<A> {
    every: watch::Receiver<Option<Every>>,
    about: watch::Receiver<A>,
    now: Arc<Notify>,
}

async fn answer<V, A>(
    lookups: Weak<PolledCache<V, A>>,
    question: String,
    began: Instant,
    mut due: Due<A>,
    ask: AskAbout<V, A>,
) where
    V: Clone + PartialEq + Send + 'static,
    A: Clone + PartialEq + Send + Sync + 'static,
{
    let (mut failures, mut before) = (0_u32, None);
    loop {
        let asked = Instant::now();
        let (about, result) = ask(due.about.clone()).await;
        let failure = result.as_ref().err();
        if let Some(lookups) = lookups.upgrade() {
            lookups.metrics.record_query(lookups.asked, failure);
        }
        if before.replace(about.clone()) != Some(about.clone()) {
            failures = 0;
        }
        let failed = failure.map(|failure| failure.class);
        failures = failed.map_or(0, |_| failures + 1);
        let wait = |every: Option<Every>| {
            let next = every.map(|every| every.wait(asked - began));
            match failed {
                None => next,
                Some(class) => Some(pause(failures, class, next)),
            }
        };
        let answer = match result {
            Ok(value) => Answer::Known(value),
            Err(failure) => Answer::Failed {
                failure,
                last: None,
                retry_at: after(wait(*due.every.borrow())),
            },
        };
        let wanted = lookups
            .upgrade()
            .is_some_and(|lookups| lookups.store(&question, about.clone(), answer));
        if !wanted || due.wait(asked, &about, wait).await.is_none() {
            return;
        }
    }
}

fn after(wait: Option<Duration>) -> Timestamp {
    let wait = SignedDuration::try_from(wait.unwrap_or(LONGEST));
    Timestamp::now() + wait.unwrap_or(SignedDuration::from_mins(1))
}

impl<A: PartialEq> Due<A> {
    /// Sleeps until the query is due. A shorter interval, a call of `ask_now` and an argument other than `answered` end the sleep.
    /// Returns `None` if the query has no subscribers.
    async fn wait(
        &mut self,
        asked: Instant,
        answered: &A,
        wait: impl Fn(Option<Every>) -> Option<Duration>,
    ) -> Option<()> {
        loop {
            if *self.about.borrow_and_update() != *answered {
                return Some(());
            }
            let due = wait(*self.every.borrow_and_update()).map(|wait| asked + wait);
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => return Some(()),
                () = self.now.notified() => return Some(()),
                changed = self.every.changed() => changed.ok()?,
                changed = self.about.changed() => changed.ok()?,
            }
        }
    }
}

fn pause(failures: u32, class: FailureClass, next: Option<Duration>) -> Duration {
    match class {
        FailureClass::Transient => doubled(FIRST, failures, LONGEST),
        FailureClass::Module | FailureClass::User => next.unwrap_or(LONGEST),
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

    fn counting(asked: &Arc<AtomicUsize>, fail_first: usize) -> Ask<usize> {
        let asked = asked.clone();
        Box::new(move || {
            let n = asked.fetch_add(1, Ordering::SeqCst);
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
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let asked = Arc::new(AtomicUsize::new(0));
        for name in ["a", "b", "c"] {
            assert_eq!(
                lookups.get("q", &subscriber(name), None, counting(&asked, 0)),
                Answer::Pending
            );
        }
        for _ in 0..3 {
            woken.recv().await.unwrap();
        }
        assert_eq!(
            lookups.get("q", &subscriber("a"), None, counting(&asked, 0)),
            Answer::Known(0)
        );
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn transient_failure_is_returned_and_retried() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let asked = Arc::new(AtomicUsize::new(0));
        let ask = || counting(&asked, 2);
        lookups.get("q", &subscriber("a"), None, ask());
        assert!(lookups.is_asking(&subscriber("a")) && !lookups.is_asking(&subscriber("b")));
        woken.recv().await.unwrap();
        assert!(!lookups.is_asking(&subscriber("a")));
        assert!(matches!(
            lookups.peek("q", &subscriber("a")),
            Some(Answer::Failed { last: None, .. })
        ));
        // The second failure equals the first, so it requeues no resource.
        woken.recv().await.unwrap();
        assert_eq!(lookups.peek("q", &subscriber("a")), Some(Answer::Known(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_lists_subscribers_of_failing_queries() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let asked = Arc::new(AtomicUsize::new(0));
        for name in ["a", "b"] {
            lookups.get("q", &subscriber(name), None, counting(&asked, 1));
        }
        lookups.get("p", &subscriber("c"), None, counting(&Arc::default(), 0));
        for _ in 0..3 {
            woken.recv().await.unwrap();
        }
        let mut unanswered = lookups.failing();
        unanswered.sort_by(|one, other| one.name.cmp(&other.name));
        assert_eq!(unanswered, [subscriber("a"), subscriber("b")]);
        woken.recv().await.unwrap();
        assert_eq!(lookups.failing(), []);
        // A permanent failure does not count as unanswered.
        let ask: Ask<usize> = Box::new(|| {
            let failure = Failure {
                class: FailureClass::User,
                reason: "BranchNotFound".to_owned(),
                message: String::new(),
            };
            Box::pin(async move { Err(failure) })
        });
        lookups.get("r", &subscriber("d"), None, ask);
        while woken.recv().await != Some(subscriber("d")) {}
        assert_eq!(lookups.failing(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn shortest_interval_of_all_subscribers_applies_at_once() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let asked = Arc::new(AtomicUsize::new(0));
        let get = |name, minutes| {
            let every = Some(Every::new(Duration::from_mins(minutes), "q"));
            lookups.get("q", &subscriber(name), every, counting(&asked, 0))
        };
        get("a", 600);
        woken.recv().await.unwrap();
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        get("b", 10);
        tokio::time::sleep(Duration::from_mins(7)).await;
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        lookups.keep(&subscriber("b"), &HashSet::new());
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn ask_now_sends_queries_of_the_given_resources_at_once() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let hour = Some(Every::new(Duration::from_hours(1), "q"));
        let (mine, other) = (Arc::default(), Arc::default());
        lookups.get("q", &subscriber("a"), hour, counting(&mine, 0));
        lookups.get("p", &subscriber("b"), hour, counting(&other, 0));
        woken.recv().await.unwrap();
        woken.recv().await.unwrap();
        lookups.ask_now(&HashSet::from([subscriber("a"), subscriber("c")]));
        assert_eq!(woken.recv().await, Some(subscriber("a")));
        let asked = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert_eq!((asked(&mine), asked(&other)), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn newer_argument_keeps_the_queue_position_of_the_query() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let turns = Arc::new(tokio::sync::Semaphore::new(0));
        let begun = Arc::new(AtomicUsize::new(0));
        let get = |about: usize| {
            let (turns, begun) = (turns.clone(), begun.clone());
            let ask: AskAbout<usize, usize> = Box::new(move |about| {
                let (turns, begun) = (turns.clone(), begun.clone());
                Box::pin(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    turns.acquire().await.unwrap().forget();
                    let about = *about.borrow();
                    let failure = Failure {
                        class: FailureClass::User,
                        reason: "Odd".to_owned(),
                        message: String::new(),
                    };
                    let answer = if about % 2 == 0 {
                        Ok(about)
                    } else {
                        Err(failure)
                    };
                    (about, answer)
                })
            });
            lookups.get_about("q", about, &subscriber("a"), None, ask)
        };
        assert_eq!(get(2), Answer::Pending);
        tokio::task::yield_now().await;
        assert_eq!(get(4), Answer::Pending);
        turns.add_permits(1);
        woken.recv().await.unwrap();
        assert_eq!(get(4), Answer::Known(4));
        assert!(!lookups.is_asking(&subscriber("a")));
        assert_eq!(
            begun.load(Ordering::SeqCst),
            1,
            "the question was not dropped"
        );
        // The answer for the older argument is returned until the next answer.
        assert_eq!(get(5), Answer::Known(4));
        assert!(lookups.is_asking(&subscriber("a")));
        turns.add_permits(1);
        woken.recv().await.unwrap();
        assert!(matches!(get(5), Answer::Failed { last: None, .. }));
        assert!(!lookups.is_asking(&subscriber("a")));
        // A failure for an older argument is discarded.
        assert_eq!(get(6), Answer::Pending);
        turns.add_permits(1);
        woken.recv().await.unwrap();
        assert_eq!(get(6), Answer::Known(6));
        assert_eq!(begun.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn polls_of_one_repository_coincide() {
        let every = |minutes| Every::new(Duration::from_mins(minutes), "a repository");
        let first = every(5).wait(Duration::ZERO);
        for seconds in [1, 7, 40, 200, 299, 3000] {
            let now = Duration::from_secs(seconds);
            let wait = every(5).wait(now);
            let apart = (now + wait).abs_diff(first).as_millis();
            assert_eq!(apart % Duration::from_mins(5).as_millis(), 0, "{wait:?}");
            let range = Duration::from_secs(30)..=Duration::from_secs(330);
            assert!(range.contains(&wait), "{wait:?}");
        }
        // Polls of the longer interval coincide with polls of the shorter one.
        let apart = every(60).wait(first).as_millis();
        assert_eq!(apart % Duration::from_mins(5).as_millis(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn query_without_subscribers_is_not_polled() {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let lookups = PolledCache::new(wake, Metrics::new(), QueryKind::Api);
        let asked = Arc::new(AtomicUsize::new(0));
        let minute = Some(Every::new(Duration::from_mins(1), "q"));
        lookups.get("q", &subscriber("a"), minute, counting(&asked, 0));
        woken.recv().await.unwrap();
        lookups.keep(&subscriber("a"), &HashSet::new());
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert_eq!(lookups.peek("q", &subscriber("a")), None);
    }
}
