//! Rules 5 and 6: a plan waits for approval if approval is required. An approval is valid once.

use alustan_api::State;
use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::RunKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use rstest::rstest;
use serde_json::json;

use super::{changed_nothing, step_names};
use crate::fixtures::{self, Edit as _};
use crate::world::{PodEvent, Stage, World, condition};

impl World {
    /// Returns a simulated cluster with a plan that waits for approval.
    pub(super) fn awaiting() -> Self {
        let mut world = Self::with(fixtures::terraform().with("/approval/mode", "Manual"));
        world.settle();
        assert_eq!(world.status().state, State::AwaitingApproval);
        world
    }

    fn pending_id(&self) -> String {
        self.status().plan.and_then(|plan| plan.id).unwrap()
    }

    fn kinds(&self) -> Vec<(RunKind, RunResult)> {
        self.ledger.kinds.clone()
    }
}

const PLANNED: (RunKind, RunResult) = (RunKind::Plan, RunResult::Changes);
const APPLIED: (RunKind, RunResult) = (RunKind::Apply, RunResult::Done);

/// Returns a simulated cluster in which a plan that removes every managed object waits for approval.
fn emptying() -> World {
    let mut world = World::applied();
    world.plans_remove_all = true;
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    let plan_run = (RunKind::Apply, RunResult::Changes);
    assert_eq!(world.kinds().last(), Some(&plan_run));
    assert_eq!(world.status().state, State::AwaitingApproval);
    world
}

#[test]
fn plan_that_removes_everything_is_applied_once_approved() {
    let mut world = emptying();
    assert_ne!(world.real.config, Some(world.wanted_now()));
    world.approve();
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.kinds().last(), Some(&APPLIED));
}

#[test]
fn plan_that_removes_everything_is_applied_if_spec_allows_it() {
    let mut world = emptying();
    world.edit(|tf| tf.with("/approval/emptying", "Allow"));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.kinds().last(), Some(&APPLIED));
}

#[test]
fn deletion_needs_no_approval_to_remove_everything() {
    let mut world = World::applied();
    world.plans_remove_all = true;
    world.delete().settle();
    assert!(world.tf.is_none(), "{:?}", world.status());
}

#[test]
fn nothing_is_applied_before_approval() {
    let mut world = World::awaiting();
    assert!(world.real.is_empty());
    assert_eq!(world.kinds(), [PLANNED]);
    let status = world.status();
    assert_eq!(condition(&status, "Ready"), "Unknown");
    assert_eq!(condition(&status, "Reconciling"), "True");
    assert!(status.plan.unwrap().pending_approval);
    let id = world.pending_id();
    for part in [
        &format!("plan {id} waits for approval"),
        "+0 ~1 -0: update null_resource.a",
        &format!(
            r#"kubectl patch tf web -n team --type merge -p '{{"spec":{{"approval":{{"plan":"{id}"}}}}}}'"#
        ),
        "kubectl logs -n team job/web-plan-1",
        "web-plan",
    ] {
        assert!(
            status.message.contains(part),
            "no {part:?} in {}",
            status.message
        );
    }
    world.advance_clock(86_400);
    assert!(
        changed_nothing(&world.reconcile()),
        "it waits without a write"
    );

    world.approve();
    world.run_to(Stage::Planning);
    let message = world.status().message;
    let activity = format!("run 2 (approval {id}) is about to apply the approved plan; logs: ");
    assert!(message.starts_with(&activity), "{message}");
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.kinds(), [PLANNED, APPLIED]);
    assert_eq!(world.last_run(), (RunKind::Apply, format!("approval {id}")));
}

#[test]
fn job_of_the_pending_plan_is_kept_beyond_the_limit() {
    let mut world = World::awaiting();
    world.jobs_beyond_limit = true;
    world.settle();
    assert!(world.jobs.contains_key("web-plan-1"));
    world.approve();
    world.settle();
    assert!(world.jobs.is_empty() && world.is_ready());
}

#[rstest]
#[case::by_a_user(json!("alice@example.com"), Some("alice@example.com"))]
#[case::by_a_field_manager_alone(json!(null), None)]
fn status_shows_approver_and_time(#[case] by: serde_json::Value, #[case] user: Option<&str>) {
    let mut world = World::awaiting();
    world.approve();
    world.edit(|tf| tf.with("/approval/by", by));
    let fields = json!({"f:spec": {"f:approval": {"f:plan": {}}}});
    let entry = ManagedFieldsEntry {
        manager: Some("kubectl-patch".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        time: Some(Time(fixtures::at(5))),
        ..ManagedFieldsEntry::default()
    };
    world.tf.as_mut().unwrap().metadata.managed_fields = Some(vec![entry]);
    let id = world.pending_id();
    world.settle();
    let plan = world.status().plan.unwrap();
    assert!(!plan.pending_approval);
    assert_eq!(plan.id, Some(id));
    assert_eq!(plan.approved_by.as_deref(), user);
    let manager = plan.approval_field_manager.as_deref();
    assert_eq!(manager, Some("kubectl-patch"));
    assert_eq!(plan.approved_at, Some(Time(fixtures::at(5))));
}

#[test]
fn advised_approval_command_clears_earlier_approver() {
    let mut world = World::awaiting();
    let by_null = r#""by":null"#;
    assert!(!world.status().message.contains(by_null));
    world.edit(|tf| tf.with("/approval/by", "alice"));
    world.settle();
    let message = world.status().message;
    assert!(message.contains(by_null), "{message}");
}

#[test]
fn an_approval_of_another_plan_approves_nothing() {
    let mut world = World::awaiting();
    world.edit(|tf| tf.with("/approval/plan", "cafe"));
    world.settle();
    assert_eq!(world.kinds(), [PLANNED]);
    let message = world.status().message;
    assert!(
        message.contains("spec.approval.plan is \"cafe\", which is not this plan"),
        "{message}"
    );
}

#[test]
fn an_approval_is_good_once() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    // The same drift occurs twice. Each correction needs its own approval.
    for _ in 0..2 {
        world.real.drifted = true;
        let next = world.reconcile().decision.requeue_at.unwrap();
        world.now = next;
        world.settle();
        assert!(world.real.drifted, "corrected with an old approval");
        assert_eq!(world.status().state, State::AwaitingApproval);
        assert!(world.is_ready(), "drift alone does not touch Ready");
        let message = world.status().message;
        assert!(
            message.contains("was approved before; an approval is valid once"),
            "{message}"
        );
        world.approve();
        world.settle();
        assert!(!world.real.drifted);
    }
}

#[test]
fn only_commit_to_module_replaces_pending_plan() {
    let mut world = World::awaiting();
    let id = world.pending_id();
    world.commit_outside().settle();
    assert_eq!(
        (world.pending_id(), world.kinds()),
        (id.clone(), vec![PLANNED])
    );
    world.commit(1).settle();
    assert_eq!(world.kinds(), [PLANNED, PLANNED]);
    assert_ne!(world.pending_id(), id);
    world.edit(|tf| tf.with("/approval/plan", id));
    world.settle();
    assert!(
        world.real.is_empty(),
        "an old approval was used for another plan"
    );
}

#[test]
fn outdated_approved_plan_is_replaced_and_needs_approval() {
    let mut world = World::awaiting();
    let id = world.pending_id();
    world.real.drifted = true;
    world.approve();
    world.settle();
    assert_eq!(
        world.kinds(),
        [PLANNED, (RunKind::Apply, RunResult::Changes)]
    );
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert_ne!(world.pending_id(), id);
    world.approve();
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn approval_survives_failure_before_apply_but_not_during_it() {
    let mut world = World::awaiting();
    world.approve();
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Kill);
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());

    let mut world = World::awaiting();
    world.approve();
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
    world.run_until_converged();
    assert_eq!(
        world.status().state,
        State::AwaitingApproval,
        "{:?}",
        world.status()
    );
    assert!(world.real.partial);
}

#[test]
fn plan_without_changes_needs_no_approval() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    // The context changes, but the new plan contains no changes.
    world.edit(|tf| tf.with("/gitRepo/include", json!(["docs"])));
    let config = world.wanted_now();
    world.real.config = Some(config);
    world.edit(|tf| tf.annotated(alustan_api::RECONCILE_AT, "now"));
    world.settle();
    assert_eq!(
        world.kinds().last(),
        Some(&(RunKind::Plan, RunResult::NoChanges))
    );
    assert!(world.is_ready());
    assert!(!world.status().plan.unwrap().pending_approval);
}

#[test]
fn apply_waits_for_approval_until_rules_are_removed() {
    let rule = json!([{ "when": "plan.destroy > 0", "then": "Ask" }]);
    let mut world = World::with(fixtures::terraform().with("/approval/rules", rule));
    world.settle();
    assert_eq!(world.kinds(), [(RunKind::Apply, RunResult::Changes)]);
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.edit(|tf| tf.with("/approval/rules", json!([])));
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.kinds().last(), Some(&APPLIED));
}

#[test]
fn pending_plan_is_applied_after_switch_to_auto_mode() {
    let mut world = World::awaiting();
    world.edit(|tf| tf.with("/approval/mode", "Auto"));
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.kinds(), [PLANNED, APPLIED]);
}

#[test]
fn invalid_rule_stalls_and_names_its_field() {
    let rules = json!([{ "when": "plan.add > 0", "then": "Ask" }, { "when": "plan.add >", "then": "Deny" }]);
    let mut world = World::with(fixtures::terraform().with("/approval/rules", rules));
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("InvalidRule", true)
    );
    let message = world.status().message;
    assert!(message.contains("spec.approval.rules[1].when"), "{message}");
    assert!(world.jobs.is_empty() && world.builds.is_empty());
}

#[test]
fn plan_secret_exists_only_with_manual_approval() {
    for (mode, wanted) in [("Auto", false), ("Manual", true)] {
        let mut world = World::with(fixtures::terraform().with("/approval/mode", mode));
        world.settle();
        assert_eq!(world.objects.contains("web-plan"), wanted, "{mode}");
    }
}

#[test]
fn destroy_does_not_use_pin_of_unapproved_plan() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    let pinned = world.pin.clone().unwrap().image;
    world.commit(1).settle();
    assert_eq!(world.status().state, State::AwaitingApproval);
    world.delete();
    world.reconcile();
    let started = world.reconcile();
    let steps = started.decision.start.map(|start| step_names(&start.steps));
    let attempted = world.record.as_ref().unwrap().record.attempted;
    let pin = world.pin.as_ref().unwrap().of_what_exists(attempted);
    assert_eq!(pin.image, pinned, "{steps:?}");
    world.run_until_converged();
    assert!(world.tf.is_none());
}

#[test]
fn pending_correction_is_dropped_once_drift_is_gone() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    world.real.drifted = true;
    world.now = world.reconcile().decision.requeue_at.unwrap();
    world.settle();
    let plan_id = world.pending_id();
    assert_eq!(world.status().state, State::AwaitingApproval);
    // Drift checks continue. Another drift check that finds the same drift requests no second approval.
    let runs = world.kinds().len();
    world.now = world.reconcile().decision.requeue_at.unwrap();
    world.settle();
    assert_eq!(
        world.kinds()[runs..],
        [(RunKind::Drift, RunResult::Changes)]
    );
    assert_eq!(world.pending_id(), plan_id);

    world.real.drifted = false;
    world.now = world.reconcile().decision.requeue_at.unwrap();
    world.settle();
    assert_eq!(world.status().state, State::Success);
    assert!(!world.status().plan.unwrap().pending_approval);
}

#[test]
fn pending_plan_stays_in_message_after_many_drift_checks() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    world.real.drifted = true;
    for _ in 0..15 {
        world.now = world.reconcile().decision.requeue_at.unwrap();
        world.settle();
    }
    let message = world.status().message;
    assert!(message.contains("update null_resource.a"), "{message}");
    assert!(world.status().plan.unwrap().pending_approval);
}

#[test]
fn planning_run_is_cancelled_once_approval_is_required() {
    for edit in [
        json!({"mode": "Manual"}),
        json!({"rules": [{"when": "true", "then": "Deny"}]}),
    ] {
        let mut world = World::new();
        world.run_to(Stage::Planning);
        world.edit(|tf| tf.with("/approval", edit));
        world.reconcile();
        world.settle();
        assert_eq!(world.kinds()[0], (RunKind::Apply, RunResult::Cancelled));
        assert!(world.real.is_empty(), "applied although somebody had a say");
        assert_eq!(world.status().state, State::AwaitingApproval);
    }
}

#[test]
fn approval_withdrawn_before_apply_approves_nothing() {
    let mut world = World::awaiting();
    let id = world.pending_id();
    world.approve();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.with("/approval/plan", json!(null)));
    world.settle();
    assert!(world.real.is_empty());
    assert_eq!(world.status().state, State::AwaitingApproval);
    assert_eq!(world.pending_id(), id);
}

#[test]
fn approved_plan_id_stays_in_status_after_retry() {
    let mut world = World::awaiting();
    let id = world.pending_id();
    world.approve();
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Kill);
    world.run_until_converged();
    assert!(world.is_ready());
    assert_eq!(world.status().plan.unwrap().id, Some(id));
}

#[test]
fn job_of_pending_plan_is_kept() {
    let mut world = World::awaiting();
    world.approve();
    world.settle();
    world.real.drifted = true;
    for _ in 0..6 {
        world.now = world.reconcile().decision.requeue_at.unwrap();
        world.settle();
    }
    let plan = world
        .record
        .as_ref()
        .unwrap()
        .history
        .pending
        .as_ref()
        .unwrap()
        .run;
    let job = format!("web-plan-{plan}");
    assert!(world.status().message.contains(&job));
    assert!(world.jobs.contains_key(&job), "{:?}", world.jobs.keys());
}

#[test]
fn first_plan_waits_for_its_cache_volume() {
    let mut world = World::with(fixtures::terraform().with("/approval/mode", "Manual"));
    world.run_to(Stage::Created);
    assert!(world.jobs["web-plan-1"].volume);
}
