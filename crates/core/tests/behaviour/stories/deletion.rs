//! Rule 13: on deletion of a resource, the operator destroys the real objects with the configuration in the pin. Only then does it remove
//! the finalizer.

use alustan_api::report::FailureClass;
use alustan_api::run::{RunKind, RunPhase};
use alustan_api::{RECONCILE_AT, State};
use rstest::rstest;

use super::{changed_nothing, step_names};
use crate::fixtures::Edit as _;
use crate::world::{PodEvent, ReconcileFaults, Stage, World};

#[test]
fn destroy_completes_before_resource_is_released() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Applying);
    assert_eq!(world.last_run(), (RunKind::Destroy, "deleted".to_owned()));
    assert_eq!(
        (world.status().state, world.is_ready()),
        (State::Destroying, false)
    );
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
    assert!(world.record.is_none() && world.pin.is_none() && world.jobs.is_empty());
    assert!(!world.objects.iter().any(|name| name.contains("-state")));
}

#[test]
fn resource_without_apply_is_released_immediately() {
    let mut world = World::until(|world| world.record.is_some());
    world.delete();
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        ["SwapRecord Starting", "CleanUp", "RemoveFinalizer"]
    );
    assert!(world.tf.is_none());
}

#[test]
fn resource_without_record_is_released_immediately() {
    let mut world = World::new();
    world.reconcile_with(ReconcileFaults {
        crash: Some(1),
        stale: None,
    });
    assert!(world.record.is_none(), "only the finalizer is there");
    world.delete();
    world.reconcile();
    assert!(world.tf.is_none());
}

#[test]
fn unobserved_record_prevents_release() {
    let mut world = World::until(|world| world.record.is_some());
    world.delete();
    let reconciled = world.reconcile_with(ReconcileFaults {
        stale: Some(9),
        crash: None,
    });
    assert_eq!(step_names(&reconciled.decision.steps), ["CreateRecord"]);
    assert!(world.tf.is_some());
}

#[test]
fn completed_destroy_survives_repeated_controller_crashes() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Reported);
    // The controller crashes after it has written the run record and before it updates the status.
    world.reconcile_with(ReconcileFaults {
        stale: None,
        crash: Some(1),
    });
    assert!(world.status().last_applied.is_some());
    while world.record.is_some() {
        world.reconcile_with(ReconcileFaults {
            stale: None,
            crash: Some(4),
        });
    }
    assert!(world.record.is_none() && world.pin.is_none() && world.tf.is_some());
    world.settle();
    assert!(world.tf.is_none());
}

#[test]
fn destroy_runs_with_pin_and_without_record() {
    let mut world = World::applied();
    world.record = None;
    world.jobs.clear();
    world.ledger.forget_runs();
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

/// Returns a world in which the image exists and the first run is due.
fn before_first_run() -> World {
    World::until(|world| !world.images.is_empty() && world.jobs.is_empty())
}

/// Deletes the resource, and reconciles until the clean-up has started. The operator ends before it deletes an object.
fn start_clean_up(world: &mut World) {
    world.delete();
    world.reconcile_with(ReconcileFaults {
        crash: Some(1),
        stale: None,
    });
    assert!(world.own_record.cleaned_up);
}

#[test]
fn run_decided_before_clean_up_does_not_start() {
    let mut world = before_first_run();
    let (observation, decision) = loop {
        let seen = world.observe(0);
        let (observation, decision) = world.decide(seen);
        if decision.start.is_some() {
            break (observation, decision);
        }
        world.execute(ReconcileFaults::default(), &observation, decision);
    };
    start_clean_up(&mut world);
    world.execute(ReconcileFaults::default(), &observation, decision);
    assert!(world.jobs.is_empty() && world.pin.is_none());
    assert_eq!(world.run_number(), 0);
}

#[test]
fn outdated_resource_starts_no_run_during_clean_up() {
    let mut world = before_first_run();
    let outdated = world.tf().clone();
    start_clean_up(&mut world);
    let deleted = world.tf.replace(outdated);
    for _ in 0..4 {
        let seen = world.observe(0);
        let (_, decision) = world.decide(seen);
        assert!(decision.start.is_none() && decision.steps.is_empty());
        assert!(decision.requeue_at.is_some());
    }
    world.tf = deleted;
    world.run_until_released();
}

#[test]
fn stale_record_prevents_release() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete();
    for age in 1..6 {
        world.reconcile_with(ReconcileFaults {
            stale: Some(age),
            crash: None,
        });
        assert!(world.tf.is_some() && world.record.is_some() && world.pin.is_some());
    }
}

#[test]
fn resource_with_only_foreign_finalizers_gets_no_writes() {
    let mut world = World::applied();
    world.delete();
    world.tf.as_mut().unwrap().metadata.finalizers = Some(vec![
        alustan_api::FINALIZER.to_owned(),
        "example.com/theirs".to_owned(),
    ]);
    world.run_until_released();
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty());
    assert!(changed_nothing(&world.reconcile()));
}

#[test]
fn apply_is_not_interrupted_by_deletion() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete();
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty());
    assert!(
        world
            .status()
            .message
            .contains("is applying and is not interrupted")
    );
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
    assert_eq!(world.ledger.kinds.len(), 2, "apply, then destroy");
}

#[test]
fn planning_run_is_cancelled_by_deletion() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.delete();
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        [
            "SwapRecord Planning",
            "SwapReport cancel",
            "DeleteJob web-apply-1"
        ]
    );
    assert!(changed_nothing(&world.reconcile()), "once is enough");
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
    assert_eq!(world.ledger.kinds.len(), 1, "nothing to destroy");
}

#[test]
fn unclaimed_run_is_cancelled_by_deletion() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    world.delete();
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        [
            "SwapRecord Starting",
            "SwapReport cancel",
            "DeleteJob web-apply-1"
        ]
    );
    world.reconcile();
    assert!(world.tf.is_none(), "{:?}", world.status());
}

#[test]
fn drift_check_is_cancelled_before_destroy() {
    let mut world = World::applied();
    world.reconcile_after_requeue();
    world.run_to(Stage::Planning);
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[rstest]
#[case::before_it_began(Stage::Created)]
#[case::while_planning(Stage::Planning)]
#[case::while_applying(Stage::Applying)]
fn lost_destroy_is_retried(#[case] stage: Stage) {
    let mut world = World::applied();
    world.delete().run_to(stage);
    world.advance_pod(0, PodEvent::Kill);
    world.reconcile();
    assert_eq!(world.status().state, State::Failed);
    world.run_until_converged();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn failing_destroy_stalls_and_names_abandon() {
    let mut world = World::applied();
    world.delete();
    for _ in 0..2 {
        world.run_to(Stage::Applying);
        world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
        world.reconcile();
        world.advance_pod(0, PodEvent::Progress);
        world.advance_clock(60);
    }
    world.reconcile();
    assert!(world.is_stalled());
    let message = world.status().message;
    assert!(
        message.contains("kubectl annotate tf web -n team alustan.io/abandon=true"),
        "{message}"
    );
    world
        .edit(|tf| tf.annotated(RECONCILE_AT, "again"))
        .settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_without_pin_stalls_with_pin_lost() {
    let mut world = World::applied();
    world.pin = None;
    world.delete().settle();
    assert!(world.is_stalled());
    assert_eq!(world.reason(), "PinLost");
    assert!(world.status().message.contains("web-pin is missing"));
    let state = "the state is in Secrets of this namespace: kubectl get secrets -n team";
    assert!(world.status().message.contains(state));
}

#[test]
fn destroy_needs_neither_repository_nor_registry_nor_secrets() {
    let mut world = World::applied();
    world.git_up = false;
    world.registry_up = false;
    world.regcred = false;
    world.restart().delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn destroy_prefers_live_values_over_pin() {
    let mut world = World::applied();
    world.delete().edit(|tf| {
        tf.with_script("destroy", "make destroy")
            .with_variable("force", true)
            .with("/timeouts/destroy", "5m")
    });
    world.run_to(Stage::Planning);
    let inputs = world.record.as_ref().unwrap().inputs.clone().unwrap();
    assert_eq!(inputs.scripts.destroy.as_deref(), Some("make destroy"));
    assert_eq!(inputs.variables["force"], true);
    assert_eq!(inputs.variables["size"], 0);
    assert_eq!(inputs.timeouts.destroy, 300);
}

#[test]
fn pin_of_a_run_that_never_started_is_not_used() {
    let mut world = World::applied();
    world.has_free_slot = false;
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    world.has_free_slot = true;
    // The controller crashes after nine writes: it has written run record, report and pin of run 2, and has not created the Job of run 2.
    world.reconcile_with(ReconcileFaults {
        crash: Some(9),
        stale: None,
    });
    assert_eq!(
        world.record.as_ref().unwrap().record.phase,
        RunPhase::Starting
    );
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

impl World {
    /// Reconciles until the operator removes its finalizer. The resource continues to exist, because it has a finalizer of another
    /// controller.
    fn run_until_released(&mut self) {
        for _ in 0..50 {
            let reconciled = self.reconcile();
            if step_names(&reconciled.decision.steps).contains(&"RemoveFinalizer".to_owned()) {
                return;
            }
            self.advance_pod(0, PodEvent::Progress);
        }
        panic!("not released: {:?}", self.status())
    }
}
