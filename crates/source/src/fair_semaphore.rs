//! Concurrency limit that is fair between tenants. The waiting tenant with the fewest permits gets the next permit. If several waiting tenants have
//! equally few permits, the permit goes to the tenant that has not released a permit for the longest time.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

/// Concurrency limit with a fixed number of permits, fair between tenants.
pub struct FairSemaphore {
    at_once: usize,
    /// Maximum number of permits of one tenant.
    per_tenant: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    granted: usize,
    /// Number of requests and releases of permits so far. Orders tenants that have equally few permits.
    events: u64,
    tenants: BTreeMap<Arc<str>, Tenant>,
}

/// A tenant with permits or waiting calls.
#[derive(Default)]
struct Tenant {
    granted: usize,
    /// Value of `State::events` when the tenant last released a permit. If the tenant has released none, the value at its first request.
    last: u64,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// A permit, released on drop.
pub struct Permit {
    owner: Option<(Arc<FairSemaphore>, Arc<str>)>,
}

impl FairSemaphore {
    /// Returns a limit of `at_once` permits.
    pub fn new(at_once: usize) -> Arc<Self> {
        Self::with_tenant_limit(at_once, at_once)
    }

    /// Returns a limit of `at_once` permits, of which one tenant gets at most half. For requests to servers: a server that does not respond keeps
    /// the permits of its tenant until the timeout, and must not delay other tenants.
    pub fn half_per_tenant(at_once: usize) -> Arc<Self> {
        Self::with_tenant_limit(at_once, at_once.div_ceil(2))
    }

    fn with_tenant_limit(at_once: usize, per_tenant: usize) -> Arc<Self> {
        Arc::new(Self {
            at_once,
            per_tenant,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits for a permit for `tenant`. Always returns `Some`: the channel that passes the permit is closed only when `self` is dropped.
    pub async fn acquire(self: &Arc<Self>, tenant: &Arc<str>) -> Option<Permit> {
        let (permit, given) = oneshot::channel();
        {
            let mut state = self.state();
            let last = state.next_event();
            let new = || Tenant {
                last,
                ..Tenant::default()
            };
            let own = state.tenants.entry(tenant.clone()).or_insert_with(new);
            own.waiting.push_back(permit);
            self.grant_permits(&mut state);
        }
        given.await.ok()
    }

    fn grant_permits(self: &Arc<Self>, state: &mut State) {
        while state.granted < self.at_once {
            let next = state
                .tenants
                .iter_mut()
                .filter(|(_, tenant)| {
                    !tenant.waiting.is_empty() && tenant.granted < self.per_tenant
                })
                .min_by_key(|(_, tenant)| (tenant.granted, tenant.last));
            let Some((name, tenant)) = next else {
                return;
            };
            let permit = Permit {
                owner: Some((self.clone(), name.clone())),
            };
            let refused = tenant.waiting.pop_front().map(|sender| sender.send(permit));
            if let Some(Err(mut permit)) = refused {
                // The caller was cancelled. The permit is not counted as granted yet, so dropping the permit must not release one.
                permit.owner = None;
                continue;
            }
            state.granted += 1;
            tenant.granted += 1;
        }
    }
}

impl State {
    fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some((semaphore, name)) = self.owner.take() else {
            return;
        };
        let mut state = semaphore.state();
        state.granted -= 1;
        let last = state.next_event();
        if let Some(tenant) = state.tenants.get_mut(&name) {
            tenant.granted -= 1;
            tenant.last = last;
            if tenant.granted == 0 && tenant.waiting.is_empty() {
                state.tenants.remove(&name);
            }
        }
        semaphore.grant_permits(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;

    type Names = UnboundedSender<&'static str>;

    /// Starts a call of `tenant` that takes a permit, sends `tenant` to `sender` and holds the permit for one second.
    fn start_call(
        semaphore: &Arc<FairSemaphore>,
        tenant: &'static str,
        sender: &Names,
    ) -> JoinHandle<()> {
        let (semaphore, sender) = (semaphore.clone(), sender.clone());
        tokio::spawn(async move {
            let _permit = semaphore.acquire(&Arc::from(tenant)).await;
            sender.send(tenant).unwrap();
            sleep(Duration::from_secs(1)).await;
        })
    }

    async fn received(names: &mut UnboundedReceiver<&'static str>, number: usize) -> String {
        let mut all = String::new();
        for _ in 0..number {
            all.push_str(names.recv().await.unwrap());
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn call_waits_for_at_most_one_call_of_a_busy_tenant() {
        for at_once in [1, 2, 8] {
            let semaphore = FairSemaphore::new(at_once);
            let (sender, mut names) = unbounded_channel();
            for _ in 0..1_000 {
                start_call(&semaphore, "g", &sender);
            }
            received(&mut names, at_once).await;
            start_call(&semaphore, "m", &sender);
            sleep(Duration::from_millis(1)).await;
            let next = received(&mut names, 2).await;
            assert!(next.contains('m'), "{next}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn busy_tenant_leaves_half_of_the_permits_to_others() {
        for at_once in [2, 3, 8] {
            let semaphore = FairSemaphore::half_per_tenant(at_once);
            let (sender, mut names) = unbounded_channel();
            for _ in 0..1_000 {
                start_call(&semaphore, "g", &sender);
            }
            received(&mut names, at_once.div_ceil(2)).await;
            let now = tokio::time::Instant::now();
            for tenant in ["m", "n"].into_iter().take(at_once / 2) {
                start_call(&semaphore, tenant, &sender);
                assert_eq!(received(&mut names, 1).await, tenant);
            }
            assert_eq!(now.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_alternate_between_tenants_in_call_order() {
        let semaphore = FairSemaphore::new(1);
        let (sender, mut names) = unbounded_channel();
        for tenant in ["a", "a", "a", "b", "b", "c"] {
            start_call(&semaphore, tenant, &sender);
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(received(&mut names, 6).await, "abcaba");
        sleep(Duration::from_secs(2)).await;
        let state = semaphore.state();
        assert!(state.granted == 0 && state.tenants.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn repeating_tenants_delay_another_by_one_turn_each() {
        let semaphore = FairSemaphore::new(1);
        let (sender, mut names) = unbounded_channel();
        let returns = |tenant: &'static str| {
            let (semaphore, sender) = (semaphore.clone(), sender.clone());
            tokio::spawn(async move {
                loop {
                    start_call(&semaphore, tenant, &sender).await.unwrap();
                }
            })
        };
        for tenant in ["a", "b", "z"] {
            returns(tenant);
        }
        let order: Vec<_> = received(&mut names, 12).await.chars().collect();
        for semaphore in order.windows(3) {
            assert!(semaphore.contains(&'z'), "{order:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_call_releases_its_turn() {
        let semaphore = FairSemaphore::new(1);
        let (sender, mut names) = unbounded_channel();
        let first = start_call(&semaphore, "a", &sender);
        received(&mut names, 1).await;
        let second = start_call(&semaphore, "b", &sender);
        start_call(&semaphore, "c", &sender);
        sleep(Duration::from_millis(1)).await;
        second.abort();
        first.abort();
        assert_eq!(received(&mut names, 1).await, "c");
    }
}
