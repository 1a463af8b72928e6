//! Advances the simulation until the resource converges.

use k8s_openapi::jiff::Timestamp;

use super::{PodEvent, ReconcileFaults, World};

/// Result of [`World::run_until_converged`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convergence {
    /// Whether the resource is stalled: not retried until a user changes something.
    pub(crate) stalled: bool,
}

impl World {
    /// Creates a simulated cluster and advances it until `reached` is true.
    pub(crate) fn until(reached: impl Fn(&Self) -> bool) -> Self {
        Self::until_in(Self::new(), reached)
    }

    /// Advances `world` until `reached` is true.
    pub(crate) fn until_in(mut world: Self, reached: impl Fn(&Self) -> bool) -> Self {
        for _ in 0..100 {
            world.reconcile_with(ReconcileFaults::default());
            if reached(&world) {
                return world;
            }
            if !world.advance_builds(None) {
                world.advance_pod(0, PodEvent::Progress);
            }
            if reached(&world) {
                return world;
            }
        }
        panic!("it never comes to that: {:?}", world.status());
    }

    /// Reconciles, and advances builds and pods, until nothing changes without an advance of the clock. Returns the requeue time.
    pub(crate) fn settle(&mut self) -> Option<Timestamp> {
        for _ in 0..100 {
            let reconciled = self
                .tf
                .is_some()
                .then(|| self.reconcile_with(ReconcileFaults::default()));
            let wrote = reconciled
                .as_ref()
                .is_some_and(|reconciled| reconciled.wrote);
            let query_started = std::mem::take(&mut self.memory.query_started);
            let built = self.advance_builds(None);
            let ran = self.advance_pod(0, PodEvent::Progress);
            if !(wrote || query_started || built || ran) {
                return reconciled?.decision.requeue_at;
            }
        }
        panic!("the world does not come to rest: {:?}", self.status());
    }

    /// Advances the clock from one requeue time to the next, without failures, until the resource is ready, stalled or gone.
    pub(crate) fn run_until_converged(&mut self) -> Convergence {
        for _ in 0..40 {
            let next = self.settle();
            if self.tf.is_none() || (self.is_ready() && !self.is_deleted()) {
                return Convergence { stalled: false };
            }
            let Some(next) = next else {
                let stalled = self.is_stalled();
                return Convergence { stalled };
            };
            self.now = next.max(self.now);
        }
        panic!("no rest within 40 waits: {:?}", self.status());
    }
}
