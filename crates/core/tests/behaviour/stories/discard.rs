//! Discarded plans: annotation `alustan.io/discard-plan`.

use alustan_api::report::RunResult;
use alustan_api::run::RunKind;
use alustan_api::{DISCARD_PLAN, PLAN_AT, State};

use super::changed_nothing;
use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World, condition};

impl World {
    /// Discards the pending plan, and asserts that the resource is stalled. Returns the id of the plan.
    fn discarded(&mut self) -> String {
        let id = self.discard_plan().unwrap();
        self.settle();
        assert!(self.is_stalled(), "{:?}", self.status());
        assert_eq!(self.reason(), "PlanDiscarded");
        id
    }

    fn approve_plan(&mut self, id: &str) -> &mut Self {
        self.ledger.approve(id);
        self.edit(|tf| tf.with("/approval/plan", id))
    }

    fn pending_plan(&self) -> Option<String> {
        let plan = self.status().plan.filter(|plan| plan.pending_approval);
        plan.and_then(|plan| plan.id)
    }
}

#[test]
fn discarded_plan_is_neither_applied_nor_made_again() {
    let mut world = World::awaiting();
    let id = world.discarded();
    let message = world.status().message;
    for part in [
        &format!("plan {id} of run 1 was discarded by a user: +0 ~1 -0"),
        "it cannot be approved",
        "alustan.io/reconcile-at",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!(world.pending_plan(), None);
    world.approve_plan(&id).settle();
    let message = world.status().message;
    assert!(
        message.contains("spec.approval.plan names this plan and has no effect"),
        "{message}"
    );
    world.advance_clock(100_000);
    world.commit_outside().restart().settle();
    assert!(world.is_stalled() && world.real.is_empty());
    assert_eq!(world.run_number(), 1);
    assert!(changed_nothing(&world.reconcile()));
}

#[test]
fn new_plan_after_a_discard_has_another_id() {
    let mut world = World::awaiting();
    let id = world.discarded();
    world.approve_plan(&id).request_run().settle();
    let second = world.pending_plan().unwrap();
    assert_ne!(second, id);
    let message = world.status().message;
    assert!(
        message.contains(&format!(
            "plan {id} was discarded, and its approval has no effect"
        )),
        "{message}"
    );
    assert!(world.real.is_empty());
    assert_ne!(world.discarded(), id);
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert!(world.approve());
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn requested_plan_after_a_discard_is_retried_after_a_failure() {
    let mut world = World::awaiting();
    world.discarded();
    world.request_run().run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Kill);
    world.run_until_converged();
    assert!(world.pending_plan().is_some(), "{:?}", world.status());
}

#[test]
fn requested_plan_after_a_discard_is_made_after_a_failed_build() {
    let mut world = World::awaiting();
    world.discarded();
    world.lose_images();
    world.edit(|tf| tf.annotated(PLAN_AT, "now"));
    world.run_until_converged();
    assert_eq!(world.reason(), "PlanDiscarded");
    world.request_run().run_until_converged();
    assert!(world.pending_plan().is_some(), "{:?}", world.status());
}

#[test]
fn discard_of_another_plan_has_no_effect() {
    let mut world = World::awaiting();
    let id = world.pending_plan();
    world.edit(|tf| tf.annotated(DISCARD_PLAN, "cafe")).settle();
    assert_eq!(world.pending_plan(), id);
    let message = world.status().message;
    assert!(
        message.contains(
            "annotation alustan.io/discard-plan is \"cafe\" and has no effect: no plan with this \
             id waits for approval"
        ),
        "{message}"
    );
    world.approve();
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn discarded_correction_leaves_ready_and_drift_checks() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    world.real.drifted = true;
    world.start_drift_check().settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.discard_plan();
    world.settle();
    let runs = world.run_number();
    assert!(world.is_ready());
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Drifted, "PlanDiscarded")
    );
    assert_eq!(condition(&world.status(), "InSync"), "False");
    world.start_drift_check().settle();
    assert_eq!(world.run_number(), runs + 1, "the same drift");
    assert_eq!(world.reason(), "PlanDiscarded");
    // A check that fails is repeated as a check.
    world.start_drift_check();
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Kill);
    world.run_until_converged();
    assert_eq!(world.reason(), "PlanDiscarded");
    let plans = world.ledger.kinds.iter();
    let plans = plans.filter(|(kind, _)| *kind == RunKind::Plan);
    assert_eq!(plans.count(), 2);
    world.real.drifted = false;
    world.start_drift_check().settle();
    assert_eq!(world.reason(), "Applied");
}

#[test]
fn discard_stops_a_run_that_is_about_to_apply_the_plan() {
    let mut world = World::awaiting();
    let id = world.pending_plan().unwrap();
    world.approve();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.annotated(DISCARD_PLAN, &id)).settle();
    assert!(world.real.is_empty());
    assert_eq!(
        world.ledger.kinds.last(),
        Some(&(RunKind::Apply, RunResult::Cancelled))
    );
    assert_eq!(world.reason(), "PlanDiscarded");
}

#[test]
fn discard_during_the_apply_of_the_plan_has_no_effect() {
    let mut world = World::awaiting();
    let id = world.pending_plan().unwrap();
    world.approve();
    world.run_to(Stage::Applying);
    world.edit(|tf| tf.annotated(DISCARD_PLAN, &id));
    world.reconcile();
    let message = world.status().message;
    assert!(message.contains("no plan with this id waits"), "{message}");
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn discarded_destroy_plan_keeps_the_resource_until_requested() {
    let mut world = World::with(terraform().with("/approval/destroy", "Manual"));
    world.settle();
    world.delete().settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.discarded();
    let message = world.status().message;
    assert!(message.contains("alustan.io/abandon=true"), "{message}");
    world.advance_clock(100_000);
    world.settle();
    assert!(world.is_stalled() && !world.real.is_empty());
    world.request_run().settle();
    assert!(world.approve());
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}
