//! Advances a world until it converges.

use k8s_openapi::jiff::Timestamp;

use super::{Act, Look, World};

/// Result of [`World::run_until_rest`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// Whether the resource is stalled: not retried until a user changes something.
    pub(crate) stalled: bool,
}

impl World {
    /// Advances a new world until `reached` is true.
    pub(crate) fn until(reached: impl Fn(&Self) -> bool) -> Self {
        Self::until_in(Self::new(), reached)
    }

    /// Advances `world` until `reached` is true.
    pub(crate) fn until_in(mut world: Self, reached: impl Fn(&Self) -> bool) -> Self {
        for _ in 0..100 {
            world.look(Look::default());
            if reached(&world) {
                return world;
            }
            if !world.advance_builds(None) {
                world.act(0, Act::Progress);
            }
            if reached(&world) {
                return world;
            }
        }
        panic!("it never comes to that: {:?}", world.status());
    }

    /// Reconciles, and lets builds and pods progress, until nothing changes without an advance of the clock. Returns the requeue time.
    pub(crate) fn settle(&mut self) -> Option<Timestamp> {
        for _ in 0..100 {
            let looked = self.tf.is_some().then(|| self.look(Look::default()));
            let wrote = looked.as_ref().is_some_and(|looked| looked.wrote);
            let asked = std::mem::take(&mut self.memory.asked);
            let built = self.advance_builds(None);
            let ran = self.act(0, Act::Progress);
            if !(wrote || asked || built || ran) {
                return looked?.decision.requeue_at;
            }
        }
        panic!("the world does not come to rest: {:?}", self.status());
    }

    /// Advances the clock from one requeue time to the next, without failures, until the resource is ready, stalled or gone.
    pub(crate) fn run_until_rest(&mut self) -> Rest {
        for _ in 0..40 {
            let next = self.settle();
            if self.tf.is_none() || (self.is_ready() && !self.is_deleted()) {
                return Rest { stalled: false };
            }
            let Some(next) = next else {
                let stalled = self.is_stalled();
                return Rest { stalled };
            };
            self.now = next.max(self.now);
        }
        panic!("no rest within 40 waits: {:?}", self.status());
    }
}
