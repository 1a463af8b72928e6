//! Rule 13: real objects are destroyed before the resource is released, with the content of the pin.

use alustan_api::report::FailureClass;
use alustan_api::run::{RunKind, RunPhase};
use alustan_api::{RECONCILE_AT, State};
use rstest::rstest;

use super::{is_quiet, words};
use crate::fixtures::Edit as _;
use crate::world::{Act, Look, Stage, World};

#[test]
fn what_was_applied_is_destroyed_before_the_resource_goes() {
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
fn a_resource_for_which_nothing_was_applied_goes_at_once() {
    let mut world = World::until(|world| world.record.is_some());
    world.delete();
    let looked = world.look_once();
    assert_eq!(
        words(&looked.decision.steps),
        ["SwapRecord Starting", "CleanUp", "RemoveFinalizer"]
    );
    assert!(world.tf.is_none());
}

#[test]
fn a_resource_that_has_no_record_yet_goes_at_once() {
    let mut world = World::new();
    world.look(Look {
        crash: Some(1),
        stale: None,
    });
    assert!(world.record.is_none(), "only the finalizer is there");
    world.delete();
    world.look_once();
    assert!(world.tf.is_none());
}

#[test]
fn a_record_that_is_only_not_seen_yet_lets_nothing_go() {
    let mut world = World::until(|world| world.record.is_some());
    world.delete();
    let looked = world.look(Look {
        stale: Some(9),
        crash: None,
    });
    assert_eq!(words(&looked.decision.steps), ["CreateRecord"]);
    assert!(world.tf.is_some());
}

#[test]
fn a_controller_that_dies_again_and_again_does_not_forget_that_all_is_destroyed() {
    let mut world = World::applied();
    world.delete().run_to(Stage::Reported);
    // Crash after the swap, before the status update.
    world.look(Look {
        stale: None,
        crash: Some(1),
    });
    assert!(world.status().last_applied.is_some());
    while world.record.is_some() {
        world.look(Look {
            stale: None,
            crash: Some(4),
        });
    }
    assert!(world.record.is_none() && world.pin.is_none() && world.tf.is_some());
    world.settle();
    assert!(world.tf.is_none());
}

#[test]
fn a_pin_without_a_record_means_that_destroy_runs() {
    let mut world = World::applied();
    world.record = None;
    world.jobs.clear();
    world.ledger.forget_runs();
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn somebody_who_sees_an_old_record_lets_nothing_go() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete();
    for age in 1..6 {
        world.look(Look {
            stale: Some(age),
            crash: None,
        });
        assert!(world.tf.is_some() && world.record.is_some() && world.pin.is_some());
    }
}

#[test]
fn a_resource_that_only_others_keep_is_left_alone() {
    let mut world = World::applied();
    world.delete();
    world.tf.as_mut().unwrap().metadata.finalizers = Some(vec![
        alustan_api::FINALIZER.to_owned(),
        "example.com/theirs".to_owned(),
    ]);
    world.run_until_released();
    let looked = world.look_once();
    assert!(looked.decision.steps.is_empty());
    assert!(is_quiet(&world.look_once()));
}

#[test]
fn an_apply_is_not_cut_short() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.delete();
    let looked = world.look_once();
    assert!(looked.decision.steps.is_empty());
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
fn a_run_that_has_changed_nothing_is_cancelled() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.delete();
    assert_eq!(
        words(&world.look_once().decision.steps),
        [
            "SwapRecord Planning",
            "SwapReport cancel",
            "DeleteJob web-apply-1"
        ]
    );
    assert!(is_quiet(&world.look_once()), "once is enough");
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
    assert_eq!(world.ledger.kinds.len(), 1, "nothing to destroy");
}

#[test]
fn a_run_that_nobody_claimed_is_not_waited_for() {
    let mut world = World::new();
    world.run_to(Stage::Created);
    world.delete();
    assert_eq!(
        words(&world.look_once().decision.steps),
        [
            "SwapRecord Starting",
            "SwapReport cancel",
            "DeleteJob web-apply-1"
        ]
    );
    world.look_once();
    assert!(world.tf.is_none(), "{:?}", world.status());
}

#[test]
fn a_look_for_drift_is_cancelled_and_then_destroy_runs() {
    let mut world = World::applied();
    world.next_look();
    world.run_to(Stage::Planning);
    world.delete().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[rstest]
#[case::before_it_began(Stage::Created)]
#[case::while_planning(Stage::Planning)]
#[case::while_applying(Stage::Applying)]
fn a_destroy_that_is_lost_is_tried_again(#[case] stage: Stage) {
    let mut world = World::applied();
    world.delete().run_to(stage);
    world.act(0, Act::Kill);
    world.look_once();
    assert_eq!(world.status().state, State::Failed);
    world.run_until_rest();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn a_destroy_that_keeps_failing_stalls_and_says_the_way_out() {
    let mut world = World::applied();
    world.delete();
    for _ in 0..2 {
        world.run_to(Stage::Applying);
        world.act(0, Act::Fail(FailureClass::Module));
        world.look_once();
        world.act(0, Act::Progress);
        world.pass(60);
    }
    world.look_once();
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
fn without_a_pin_nobody_knows_how_to_destroy() {
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
fn live_values_count_and_the_pin_fills_the_gaps() {
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
fn a_pin_of_a_run_that_never_began_is_not_used() {
    let mut world = World::applied();
    world.room = false;
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    world.room = true;
    // Crash after the swap, the ninth write.
    world.look(Look {
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
    /// Reconciles until the finalizer of the operator is removed; another one stays.
    fn run_until_released(&mut self) {
        for _ in 0..50 {
            let looked = self.look_once();
            if words(&looked.decision.steps).contains(&"RemoveFinalizer".to_owned()) {
                return;
            }
            self.act(0, Act::Progress);
        }
        panic!("not released: {:?}", self.status())
    }
}
