//! Health of the operator. It is live while the controller loop iterates and no reconcile hangs. It is ready once its watches have listed all objects
//! and it is the leader or on standby.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::leader::{Leader, Role};
use crate::resource::Ref;

/// Maximum time between two iterations of the controller loop; after it, the operator is not live. The loop iterates at least every ten
/// seconds.
pub(crate) const ITERATION_TIMEOUT: Duration = Duration::from_mins(1);

/// Duration of a reconcile after which the operator is not live.
pub(crate) const RECONCILE_TIMEOUT: Duration = Duration::from_mins(10);

/// Duration after which an active reconcile is slow, for example because it waits for evaluations of expressions.
pub(crate) const SLOW_RECONCILE: Duration = Duration::from_secs(10);

/// Maximum number of slow reconciles ([`SLOW_RECONCILE`]) in one namespace, and in all namespaces. A slow reconcile beyond one of them ends before
/// it has written anything, and is requeued: a namespace with slow expressions gets 8 of the 64 concurrent reconciles after ten seconds, and 16
/// always remain for reconciles that are not slow. Those last milliseconds, and have no limit in any namespace.
pub(crate) const MAX_SLOW_IN_NAMESPACE: usize = 8;
const MAX_SLOW_RECONCILES: usize = 48;

/// Health of the operator. Clones share the same state.
#[derive(Clone)]
pub(crate) struct Health(Arc<HealthInner>);

pub(crate) struct HealthInner {
    leader: Leader,
    has_listed: AtomicBool,
    state: Mutex<HealthState>,
}

pub(crate) struct HealthState {
    last_iteration: Instant,
    /// Start time and resource of active reconciles, by sequence number.
    reconciles: BTreeMap<u64, (Instant, Ref)>,
    next: u64,
}

/// Guard of an active reconcile. Dropping the guard records the end of the reconcile.
pub(crate) struct ActiveReconcile {
    health: Health,
    number: u64,
}

impl Drop for ActiveReconcile {
    fn drop(&mut self) {
        self.health.lock().reconciles.remove(&self.number);
    }
}

impl Health {
    /// Creates the health of a live operator that is not ready. `leader` provides its role.
    pub(crate) fn new(leader: Leader) -> Self {
        Self(Arc::new(HealthInner {
            leader,
            has_listed: AtomicBool::default(),
            state: Mutex::new(HealthState {
                last_iteration: Instant::now(),
                reconciles: BTreeMap::new(),
                next: 0,
            }),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.0.state.lock()
    }

    /// Records that the watches have listed all objects.
    pub(crate) fn set_ready(&self) {
        self.0.has_listed.store(true, Ordering::Release);
    }

    /// Records an iteration of the controller loop.
    pub(crate) fn record_iteration(&self) {
        self.lock().last_iteration = Instant::now();
    }

    /// Records the start of a reconcile of `resource`.
    pub(crate) fn begin_reconcile(&self, resource: &Ref) -> ActiveReconcile {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state
            .reconciles
            .insert(number, (Instant::now(), resource.clone()));
        ActiveReconcile {
            health: self.clone(),
            number,
        }
    }

    /// Returns the number of active reconciles in `namespace` that take longer than [`SLOW_RECONCILE`].
    pub(crate) fn slow_reconciles(&self, namespace: &str) -> usize {
        let state = self.lock();
        // Sequence numbers increase with time: the first entries are the oldest.
        let reconciles = state.reconciles.values();
        let slow = reconciles.take_while(|(started_at, _)| started_at.elapsed() >= SLOW_RECONCILE);
        slow.filter(|(_, resource)| resource.namespace.as_deref() == Some(namespace))
            .count()
    }

    /// Returns the result of `observation`, a part of the active reconcile of `resource` that writes nothing. Returns `None` if the reconcile becomes
    /// slow, and exceeds the maximum number of slow reconciles.
    pub(crate) async fn limit_slow<T>(
        &self,
        resource: &Ref,
        observation: impl Future<Output = T>,
    ) -> Option<T> {
        let mut observation = pin!(observation);
        match timeout(SLOW_RECONCILE, &mut observation).await {
            Ok(result) => Some(result),
            Err(_) if self.may_be_slow(resource) => Some(observation.await),
            Err(_) => None,
        }
    }

    /// Returns whether the active reconcile of `resource`, which is slow, is among the allowed slow ones: all earlier reconciles are slow as well.
    fn may_be_slow(&self, resource: &Ref) -> bool {
        let state = self.lock();
        let (mut in_namespace, mut count) = (0, 0);
        for (_, earlier) in state.reconciles.values() {
            if earlier == resource {
                break;
            }
            count += 1;
            in_namespace += usize::from(earlier.namespace == resource.namespace);
        }
        in_namespace < MAX_SLOW_IN_NAMESPACE && count < MAX_SLOW_RECONCILES
    }

    /// Returns a description of the controller loop if the operator is live.
    ///
    /// # Errors
    /// The cause if the operator is not live.
    pub(crate) fn live(&self) -> Result<String, String> {
        let state = self.lock();
        let since_iteration = state.last_iteration.elapsed();
        let age = since_iteration.as_secs();
        if since_iteration >= ITERATION_TIMEOUT {
            return Err(format!("no iteration of the controller loop for {age} s"));
        }
        // Sequence numbers increase with time: the first entry is the oldest.
        let Some((started_at, resource)) = state.reconciles.values().next() else {
            return Ok(format!(
                "last iteration of the controller loop {age} s ago; no active reconcile"
            ));
        };
        let oldest_age = started_at.elapsed();
        let (active, seconds) = (state.reconciles.len(), oldest_age.as_secs());
        if oldest_age >= RECONCILE_TIMEOUT {
            // Callers of the probe may lack permission to list resources: only the log names the resource.
            warn!(resource = %resource, seconds, "reconcile does not finish");
            return Err(format!(
                "a reconcile has not finished for {seconds} s; see the log for the resource"
            ));
        }
        Ok(format!(
            "last iteration of the controller loop {age} s ago; active reconciles: {active}, the \
             oldest for {seconds} s"
        ))
    }

    /// Returns whether the watches have listed all objects.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.has_listed.load(Ordering::Acquire)
    }

    pub(crate) fn ready(&self) -> Result<String, String> {
        if !self.is_ready() {
            return Err("the initial lists of the watches are not complete".to_owned());
        }
        match self.0.leader.role() {
            Role::Has(role) => Ok(format!(
                "the initial lists of the watches are complete; {role}"
            )),
            Role::None(cause) => Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    /// Reconciles a resource in `namespace`, whose observation takes `duration`. Returns whether the reconcile continues until its end.
    async fn continues(health: Health, namespace: &str, number: usize, duration: Duration) -> bool {
        let resource = Ref::new(&format!("app-{number}")).within(namespace);
        let _active = health.begin_reconcile(&resource);
        health
            .limit_slow(&resource, sleep(duration))
            .await
            .is_some()
    }

    /// Starts `count` reconciles in each namespace at the same time. Returns how many continue.
    async fn count_continuing(namespaces: &[(&str, usize)], duration: Duration) -> Vec<usize> {
        let health = Health::new(Leader::leading());
        let reconciles = namespaces.iter().map(|(namespace, count)| {
            let numbers = 0..*count;
            join_all(numbers.map(|number| continues(health.clone(), namespace, number, duration)))
        });
        let continuing = join_all(reconciles).await;
        let count = |results: &Vec<bool>| results.iter().filter(|continues| **continues).count();
        continuing.iter().map(count).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reconciles_beyond_the_limits_end() {
        let slow = 2 * SLOW_RECONCILE;
        assert_eq!(count_continuing(&[("team", 64)], slow).await, [8]);
        let namespaces = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, 8));
        let counts = count_continuing(&namespaces, slow).await;
        assert_eq!(counts, [8, 8, 8, 8, 8, 8, 0, 0]);
        let counts = count_continuing(&[("busy", 60), ("team", 4)], slow).await;
        assert_eq!(counts, [8, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn reconciles_that_are_not_slow_have_no_limit() {
        let counts = count_continuing(&[("team", 64)], SLOW_RECONCILE / 2).await;
        assert_eq!(counts, [64]);
    }
}
