//! Resync intervals that the operator requests from metacontroller. Metacontroller does not watch the objects that the operator creates, so
//! the resource is reconciled at these intervals.

use alustan_core::metacontroller::{Pace, pace};
use k8s_openapi::jiff::SignedDuration;

use super::stack::stalled;
use crate::fixtures::{self, Edit as _};
use crate::world::{Observation, PodEvent, World};

const AN_HOUR: SignedDuration = SignedDuration::from_hours(1);

impl World {
    /// Returns the resync interval that the operator requests from metacontroller for the current observation.
    fn pace(&mut self) -> Pace {
        let seen = self.observe(0);
        let (Observation { seen, image }, decision) = self.decide(seen);
        pace(self.tf(), &seen, &image, &decision, AN_HOUR, false)
    }

    fn is_polled_soon(&mut self) -> bool {
        self.pace() != Pace::AtRest(AN_HOUR)
    }

    /// Reconciles until nothing changes. Asserts that the resync interval is short whenever a build or pod progresses.
    fn poll(&mut self) -> &mut Self {
        for _ in 0..100 {
            let soon = self.is_polled_soon();
            self.reconcile();
            let query_started = std::mem::take(&mut self.memory.query_started);
            let built = self.advance_builds(None);
            let ran = self.advance_pod(0, PodEvent::Progress);
            let unseen = (built || ran) && !soon;
            assert!(!unseen, "nobody looks at it: {:?}", self.status());
            if self.tf.is_none() || !(soon || query_started) {
                return self;
            }
        }
        panic!("it is at work for ever: {:?}", self.status());
    }
}

#[test]
fn polling_follows_apply_change_and_destroy_to_the_end() {
    let mut world = World::new();
    world.poll();
    assert!(world.is_ready(), "{:?}", world.status());
    world.edit(|tf| tf.with("/variables", serde_json::json!({"size": 7})));
    world.poll();
    assert_eq!(world.run_number(), 2);
    world.delete().poll();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn due_drift_check_is_polled_soon() {
    let mut world = World::applied();
    let due = world.reconcile().decision.requeue_at.unwrap();
    assert!(!world.is_polled_soon());
    world.now = due;
    assert!(world.is_polled_soon());
    let before = world.run_number();
    world.poll();
    assert_eq!(world.run_number(), before + 1);
    assert!(world.is_ready());
}

#[test]
fn resource_with_unready_dependency_is_polled_at_intervals() {
    let soon = Pace::AtRest(SignedDuration::from_secs(10));
    let mut world = World::new();
    world.stack.dependencies = vec![stalled("network")];
    world.settle();
    assert_eq!(world.reason(), "DependencyNotReady");
    assert_eq!(world.pace(), soon);
}

#[test]
fn pending_suspended_or_unreachable_resource_is_at_rest() {
    let mut world = World::with(fixtures::terraform().with("/approval/mode", "Manual"));
    world.poll();
    assert!(world.approve(), "{:?}", world.status());
    world.poll();
    assert!(world.is_ready(), "{:?}", world.status());

    let mut suspended = World::with(fixtures::terraform().with("/suspend", true));
    suspended.poll();
    assert_eq!(suspended.reason(), "Suspended");

    let mut unreachable = World::new();
    unreachable.git_up = false;
    unreachable.poll();
    assert!(!unreachable.is_ready());
}

#[test]
fn resource_far_back_in_the_queue_is_polled_as_at_rest() {
    let mut world = World::new();
    world.has_free_slot = false;
    world.settle();
    assert_eq!(world.reason(), "Queued");
    let seen = world.observe(0);
    let (Observation { seen, image }, decision) = world.decide(seen);
    let pace = |is_far| pace(world.tf(), &seen, &image, &decision, AN_HOUR, is_far);
    assert_eq!(pace(true), Pace::AtRest(AN_HOUR));
    assert_eq!(pace(false), Pace::AtWork, "it may be the next");
}
