//! `spec.suspend`: the operator starts no run, and cancels a run that has not begun to apply.

use alustan_api::State;
use alustan_api::report::RunResult;

use super::changed_nothing;
use crate::fixtures::{self, Edit as _};
use crate::world::{Stage, World, condition};

impl World {
    fn suspend(&mut self, suspend: bool) -> &mut Self {
        self.edit(|tf| tf.with("/suspend", suspend))
    }
}

#[test]
fn suspended_resource_starts_nothing_and_names_command() {
    let mut world = World::with(fixtures::terraform().with("/suspend", true));
    world.settle();
    assert!(world.jobs.is_empty() && world.builds.is_empty());
    assert_eq!(world.reason(), "Suspended");
    assert!(world.is_stalled());
    let command = r#"kubectl patch tf web -n team --type merge -p '{"spec":{"suspend":false}}'"#;
    assert!(
        world.status().message.contains(command),
        "{}",
        world.status().message
    );
    assert!(changed_nothing(&world.reconcile()));
    world.suspend(false).settle();
    assert!(world.is_ready());
}

#[test]
fn applied_resource_stays_ready_while_suspended() {
    let mut world = World::applied();
    world.suspend(true).settle();
    assert!(world.is_ready());
    assert_eq!(
        (world.reason().as_str(), world.status().state),
        ("Suspended", State::Success)
    );
    assert_eq!(condition(&world.status(), "ImageReady"), "True");
    world.advance_clock(86_400);
    let reconciled = world.reconcile();
    assert!(changed_nothing(&reconciled) && reconciled.decision.requeue_at.is_none());
}

#[test]
fn suspended_resource_keeps_its_commit_until_it_is_resumed() {
    let mut world = World::applied();
    let before = world.status();
    world.suspend(true).settle();
    world.commit(1).restart();
    (world.git_up, world.registry_up) = (false, false);
    world.settle();
    let status = world.status();
    assert!(world.is_ready(), "{status:?}");
    assert_eq!(
        (&status.source, &status.image),
        (&before.source, &before.image)
    );
    assert_eq!(condition(&status, "SourceReady"), "True");
    (world.git_up, world.registry_up) = (true, true);
    world.suspend(false).settle();
    assert_eq!(world.last_run().1, "commit 0c0ffee..1c0ffee");
}

#[test]
fn suspended_resource_with_a_module_backend_stays_ready() {
    let mut world = World::new();
    world.module_backend = Some("gcs".to_owned());
    world.settle();
    assert!(world.is_ready());
    world.suspend(true).settle();
    assert!(world.is_ready() && world.reason() == "Suspended");
}

#[test]
fn edited_suspended_resource_is_not_ready() {
    let mut world = World::applied();
    world.suspend(true).settle();
    world.restart();
    world.edit(|tf| tf.with_variable("size", 7)).settle();
    assert!(world.is_stalled() && world.reason() == "Suspended");
    assert_eq!(world.run_number(), 1);
    world.edit(|tf| tf.with_variable("size", 0)).settle();
    assert!(world.is_ready());
    world.edit(|tf| tf.with("/gitRepo/branch", "next")).settle();
    assert!(world.is_stalled(), "{:?}", world.status());
}

#[test]
fn resumed_resource_stays_ready_during_repository_query() {
    let mut world = World::applied();
    world.suspend(true).settle();
    world.suspend(false);
    world.git_up = false;
    for _ in 0..3 {
        world.reconcile();
        assert!(world.is_ready(), "{:?}", world.status());
    }
    world.git_up = true;
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.run_number()),
        ("Applied", 1)
    );
}

#[test]
fn deleted_suspended_resource_waits_without_requests() {
    let mut world = World::applied();
    world.suspend(true).settle();
    (world.git_up, world.registry_up) = (false, false);
    world.restart().delete().settle();
    assert_eq!(world.reason(), "Suspended");
    let source = world.status().source.unwrap();
    assert_eq!(source.revision, "0c0ffee0000");
    assert!(changed_nothing(&world.reconcile()));
}

#[test]
fn suspend_cancels_a_planning_run_and_costs_no_retry() {
    let mut world = World::new();
    world.run_to(Stage::Planning).suspend(true);
    world.settle();
    assert_eq!(world.ledger.kinds.last().unwrap().1, RunResult::Cancelled);
    assert!(world.real.is_empty());
    assert!(world.status().retry.is_none());
    world.suspend(false).settle();
    assert!(world.is_ready());
}

#[test]
fn suspend_does_not_interrupt_an_apply() {
    let mut world = World::new();
    world.run_to(Stage::Applying).suspend(true);
    assert_eq!(world.reconcile().decision.status.state, State::Applying);
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.reason(), "Suspended");
}

/// The controller sets `cancel` and the runner sets phase `Applying`, both by compare-and-swap: the first write wins.
#[test]
fn first_of_cancellation_and_apply_wins() {
    let mut cancelled = World::new();
    cancelled.run_to(Stage::Planning).suspend(true);
    cancelled.reconcile();
    cancelled.settle();
    assert!(cancelled.real.is_empty());
    assert_eq!(cancelled.reason(), "Suspended");

    let mut applied = World::new();
    applied.run_to(Stage::Applying);
    // The controller observes an outdated run record, from before phase `Applying`. So its cancellation fails with a conflict.
    applied.suspend(true);
    applied.reconcile_with(crate::world::ReconcileFaults {
        stale: Some(1),
        crash: None,
    });
    applied.settle();
    assert!(applied.is_ready());
    assert_eq!(applied.real.config, Some(applied.wanted_now()));
}
