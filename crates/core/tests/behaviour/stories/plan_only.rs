//! `spec.mode: PlanOnly`, and plans that annotation `alustan.io/plan-at` requests: no run applies them.

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{RunKind, Trigger};
use alustan_api::{PLAN_AT, RECONCILE_AT, State};
use alustan_core::dependency_graph::readiness;
use alustan_core::observed::Readiness;
use alustan_core::queue::Class;
use rstest::rstest;

use super::{changed_nothing, executed_steps};
use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World, condition};

const MODE: &str = "/mode";

impl World {
    /// Returns a simulated cluster with a resource that has a plan with changes and never applied.
    fn planned() -> Self {
        let mut world = Self::with(terraform().with(MODE, "PlanOnly"));
        world.settle();
        assert_eq!(world.situation(), (State::Planned, "ChangesPlanned"));
        world
    }

    fn set_mode(&mut self, mode: &str) -> &mut Self {
        self.edit(|tf| tf.with(MODE, mode))
    }

    fn request_plan(&mut self, value: &str) -> &mut Self {
        self.edit(|tf| tf.annotated(PLAN_AT, value))
    }

    fn situation(&self) -> (State, &'static str) {
        let reason = alustan_api::Reason::from_stored(&self.reason()).unwrap();
        (self.status().state, reason.as_str())
    }

    /// Returns kind, trigger and result of the newest run in status.
    fn newest(&self) -> (RunKind, String, String) {
        let run = self.status().runs.into_iter().next().unwrap();
        (run.kind, run.trigger, run.result)
    }

    fn applied_nothing_since(&self, count: usize) -> bool {
        let kinds = self.ledger.kinds.iter().skip(count);
        kinds.into_iter().all(|(kind, _)| *kind == RunKind::Drift)
    }
}

#[test]
fn plan_only_resource_reports_its_plan_and_applies_nothing() {
    let world = World::planned();
    assert!(world.is_ready());
    let status = world.status();
    assert_eq!(condition(&status, "InSync"), "False");
    assert_eq!(status.plan.as_ref().unwrap().summary, "+0 ~1 -0");
    assert_eq!(world.ledger.kinds, [(RunKind::Drift, RunResult::Changes)]);
    assert!(world.real.is_empty() && world.pin.is_none());
    assert!(status.last_applied.is_none() && status.drift.is_none());
    for part in [
        "the plan has changes; mode PlanOnly does not apply them: +0 ~1 -0: update null_resource.a",
        "kubectl get secret -n team web-plan",
        r#"-p '{"spec":{"mode":"Apply"}}'"#,
    ] {
        assert!(status.message.contains(part), "{}", status.message);
    }
}

#[test]
fn plan_only_resource_without_changes_is_in_sync() {
    let mut world = World::with(terraform().with(MODE, "PlanOnly"));
    world.real.config = Some(world.wanted_now());
    world.settle();
    assert_eq!(world.situation(), (State::Success, "NoChanges"));
    assert_eq!(condition(&world.status(), "InSync"), "True");
    assert_eq!(world.newest().2, "NoChanges");
    assert!(world.status().plan.is_none());
}

#[test]
fn plan_only_resource_plans_again_for_each_change() {
    let mut world = World::planned();
    let runs = world.run_number();
    world.commit_outside().settle();
    assert_eq!(world.run_number(), runs);
    world.commit(1).settle();
    assert_eq!(world.run_number(), runs + 1);
    assert!(
        world.last_run().1.starts_with("commit "),
        "{:?}",
        world.last_run()
    );
    world.edit(|tf| tf.with_variable("size", 2)).settle();
    assert_eq!(world.last_run(), (RunKind::Drift, "spec".to_owned()));
    world.reconcile_after_requeue();
    assert_eq!(world.last_run(), (RunKind::Drift, "interval".to_owned()));
    world.settle();
    assert_eq!(world.situation(), (State::Planned, "ChangesPlanned"));
    assert!(world.applied_nothing_since(0) && world.real.is_empty());
}

#[test]
fn plan_only_resource_is_idle_between_plans() {
    let mut world = World::planned();
    assert!(changed_nothing(&world.reconcile()));
    let before = world.status();
    world.restart();
    world.git_up = false;
    world.reconcile();
    assert!(world.is_ready(), "{:?}", world.status());
    world.git_up = true;
    world.settle();
    assert_eq!((world.run_number(), world.status()), (1, before));
}

#[test]
fn plan_only_resource_that_never_applied_is_deleted_without_destroy() {
    let mut world = World::planned();
    world.delete();
    world.settle();
    assert!(world.tf.is_none());
    assert!(world.applied_nothing_since(0));
}

#[test]
fn switch_to_plan_only_plans_nothing_for_the_applied_configuration() {
    let mut world = World::applied();
    let runs = world.run_number();
    world.set_mode("PlanOnly").settle();
    assert_eq!(world.run_number(), runs);
    assert_eq!(world.situation(), (State::Success, "Applied"));
    let message = world.status().message;
    assert!(message.contains("mode is PlanOnly"), "{message}");
}

#[test]
fn drift_of_a_plan_only_resource_is_reported_until_the_mode_is_apply() {
    let mut world = World::applied();
    world.set_mode("PlanOnly").settle();
    world.real.drifted = true;
    world.reconcile_after_requeue();
    world.settle();
    assert_eq!(world.situation(), (State::Drifted, "Drifted"));
    let status = world.status();
    assert!(world.is_ready() && status.drift.is_some());
    assert!(
        status.message.contains("does not correct drift"),
        "{}",
        status.message
    );
    assert!(world.real.drifted);
    world.set_mode("Apply").settle();
    assert!(!world.real.drifted);
    assert_eq!(world.situation(), (State::Success, "Applied"));
}

#[rstest]
#[case::auto("Auto", State::Success)]
#[case::manual("Manual", State::AwaitingApproval)]
fn switch_to_apply_applies_the_plan_as_configured(#[case] approval: &str, #[case] state: State) {
    let mut world = World::planned();
    world
        .edit(|tf| tf.with("/approval/mode", approval))
        .settle();
    assert_eq!(world.run_number(), 1);
    world.set_mode("Apply").settle();
    assert_eq!(world.status().state, state);
    if world.approve() {
        world.settle();
    }
    assert_eq!(world.status().state, State::Success);
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn approval_has_no_effect_with_plan_only() {
    let mut world = World::new();
    world
        .edit(|tf| tf.with("/approval/mode", "Manual"))
        .settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.set_mode("PlanOnly");
    assert!(world.approve());
    world.settle();
    assert_eq!(world.situation(), (State::Planned, "ChangesPlanned"));
    assert!(world.real.is_empty());
    let message = world.status().message;
    assert!(
        message.contains("has no effect: mode PlanOnly applies no plan"),
        "{message}"
    );
}

#[rstest]
#[case::planning(Stage::Planning, false)]
#[case::applying(Stage::Applying, true)]
fn switch_to_plan_only_interrupts_no_apply(#[case] stage: Stage, #[case] is_applied: bool) {
    let mut world = World::new();
    world.run_to(stage);
    world.set_mode("PlanOnly").settle();
    assert_eq!(!world.real.is_empty(), is_applied);
    assert!(world.is_ready(), "{:?}", world.status());
    let reason = if is_applied {
        "Applied"
    } else {
        "ChangesPlanned"
    };
    assert_eq!(world.reason(), reason);
}

#[test]
fn switch_to_apply_starts_a_new_retry_budget() {
    let mut world = World::with(terraform().with(MODE, "PlanOnly"));
    world.fail_at(Stage::Planning, FailureClass::Module);
    world
        .advance_clock(10)
        .fail_at(Stage::Planning, FailureClass::Module);
    assert!(world.is_stalled(), "{:?}", world.status());
    world.set_mode("Apply").settle();
    assert_eq!(world.situation(), (State::Success, "Applied"));
}

#[test]
fn deleted_plan_only_resource_that_applied_is_kept() {
    let mut world = World::applied();
    world.set_mode("PlanOnly").settle();
    let runs = world.ledger.kinds.len();
    world.delete();
    world.settle();
    assert_eq!(world.situation(), (State::Stalled, "PlanOnly"));
    let message = world.status().message;
    for part in [
        r#"-p '{"spec":{"mode":"Apply"}}'"#,
        r#"-p '{"spec":{"deletionPolicy":"Orphan"}}'"#,
        "alustan.io/abandon=true",
    ] {
        assert!(message.contains(part), "{message}");
    }
    world.advance_clock(36_000);
    assert!(changed_nothing(&world.reconcile()));
    let mut orphaned = world.clone();
    orphaned.set_orphan(true).settle();
    assert!(orphaned.tf.is_none() && !orphaned.real.is_empty());
    assert_eq!(orphaned.ledger.kinds.len(), runs);
    world.set_mode("Apply").settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn switch_to_plan_only_stops_a_destroy_that_has_not_begun() {
    let mut world = World::applied();
    world.delete();
    world.run_to(Stage::Planning);
    world.set_mode("PlanOnly").settle();
    assert_eq!(world.situation(), (State::Stalled, "PlanOnly"));
    assert!(!world.real.is_empty());
}

#[test]
fn dependents_wait_for_planned_changes() {
    let mut world = World::planned();
    let Readiness::NotReady { reason, .. } = readiness(world.tf()) else {
        panic!("{:?}", readiness(world.tf()));
    };
    assert_eq!(reason, "ChangesPlanned");
    world.set_mode("Apply").settle();
    assert_eq!(readiness(world.tf()), Readiness::Ready);
    world.set_mode("PlanOnly").settle();
    assert_eq!(readiness(world.tf()), Readiness::Ready);
}

#[test]
fn requested_plan_of_an_applied_resource_changes_only_the_history() {
    let mut world = World::applied();
    world.real.drifted = true;
    let (before, runs) = (world.status(), world.run_number());
    world.request_plan("2026-01-01T00:00:00Z");
    let reconciled = world.reconcile();
    assert!(reconciled.started);
    assert_eq!(
        reconciled.decision.start.as_ref().unwrap().class,
        Class::Plan
    );
    assert_eq!(world.status(), before, "while it plans");
    world.settle();
    assert_eq!(world.run_number(), runs + 1, "drift is not corrected");
    let wanted = "plan requested 2026-01-01T00:00:00Z";
    let newest = (RunKind::Drift, wanted.to_owned(), "Changes".to_owned());
    assert_eq!(world.newest(), newest);
    let status = world.status();
    assert_eq!((status.state, &status.drift), (State::Success, &None));
    assert_eq!(status.plan.unwrap().summary, "+0 ~1 -0");
    assert_eq!(status.conditions, before.conditions);
    assert!(world.objects.contains("web-plan"), "{:?}", world.objects);
    world.real.drifted = false;
    world.request_plan("again").settle();
    assert_eq!(world.newest().2, "NoChanges");
}

#[test]
fn requested_plan_keeps_the_pending_plan_and_its_approval() {
    let mut world = World::new();
    world
        .edit(|tf| tf.with("/approval/mode", "Manual"))
        .settle();
    let id = world.status().plan.unwrap().id;
    world.request_plan("now").settle();
    assert_eq!(world.newest().0, RunKind::Drift);
    let status = world.status();
    assert_eq!(status.state, State::AwaitingApproval);
    assert_eq!(status.plan.unwrap().id, id);
    world.approve();
    world.request_plan("again").settle();
    assert_eq!(world.situation(), (State::Success, "Applied"));
    assert_eq!(world.status().plan.unwrap().id, id);
}

#[rstest]
#[case::success(PodEvent::Progress)]
#[case::failure(PodEvent::Fail(FailureClass::Module))]
#[case::lost(PodEvent::Kill)]
fn requested_plan_uses_and_resets_no_retry_budget(#[case] event: PodEvent) {
    let mut world = World::new();
    world.fail_at(Stage::Planning, FailureClass::Module);
    world
        .advance_clock(10)
        .fail_at(Stage::Planning, FailureClass::Module);
    let before = world.status();
    assert!(world.is_stalled(), "{before:?}");
    world.request_plan("now");
    world.run_to(Stage::Planning);
    world.advance_pod(0, event);
    world.settle();
    assert_eq!(world.newest().1, "plan requested now");
    let status = world.status();
    assert_eq!(status.retry, before.retry);
    assert_eq!(
        (status.state, &status.message),
        (State::Stalled, &before.message)
    );
    assert!(world.real.is_empty());
    world.edit(|tf| tf.annotated(RECONCILE_AT, "now")).settle();
    assert_eq!(world.situation(), (State::Success, "Applied"));
}

#[test]
fn requested_plan_waits_for_the_active_run() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.request_plan("now");
    world.reconcile();
    assert_eq!(world.run_number(), 1);
    world.settle();
    assert_eq!(world.ledger.kinds[0], (RunKind::Apply, RunResult::Done));
    assert_eq!(world.newest().2, "NoChanges");
    assert_eq!(world.run_number(), 2);
}

#[test]
fn requested_plan_of_a_suspended_resource_waits_for_the_resume() {
    let mut world = World::applied();
    world.edit(|tf| tf.with("/suspend", true));
    world.request_plan("now").settle();
    assert_eq!(world.run_number(), 1);
    world.edit(|tf| tf.with("/suspend", false)).settle();
    assert_eq!(world.newest().1, "plan requested now");
}

#[test]
fn cancelled_plan_is_repeated() {
    let mut world = World::applied();
    world.request_plan("now");
    world.run_to(Stage::Created);
    world.edit(|tf| tf.with("/suspend", true)).settle();
    world.edit(|tf| tf.with("/suspend", false)).settle();
    assert_eq!(world.newest().2, "NoChanges");
}

#[test]
fn requested_plan_and_requested_run_both_start() {
    let mut world = World::applied();
    world.edit(|tf| tf.annotated(RECONCILE_AT, "now"));
    world.request_plan("now").settle();
    assert_eq!(world.run_number(), 3);
    let record = world.record.as_ref().unwrap();
    assert_eq!(
        record.record.run.as_ref().unwrap().trigger,
        Trigger::Requested
    );
}

#[test]
fn long_request_is_truncated() {
    let mut world = World::applied();
    let long = format!("\u{1b}[2K{}", "x".repeat(100_000));
    world.request_plan(&long).settle();
    let (_, trigger, _) = world.newest();
    assert_eq!(trigger.len(), "plan requested ".len() + 64);
    assert!(!trigger.contains('\u{1b}'));
    assert!(
        changed_nothing(&world.reconcile()),
        "the request is processed"
    );
}

#[test]
fn plan_only_run_creates_no_pin_and_no_disruption_budget() {
    let mut world = World::with(terraform().with(MODE, "PlanOnly"));
    let mut steps = Vec::new();
    for _ in 0..20 {
        steps.extend(executed_steps(&world.reconcile()));
        if !world.advance_builds(None) {
            world.advance_pod(0, PodEvent::Progress);
        }
    }
    assert!(
        steps.contains(&"CreateJob web-drift-1".to_owned()),
        "{steps:?}"
    );
    let unwanted = ["web-pin", "namespace team"];
    let is_unwanted = |step: &&String| unwanted.iter().any(|part| step.contains(part));
    assert_eq!(steps.iter().find(is_unwanted), None);
}
