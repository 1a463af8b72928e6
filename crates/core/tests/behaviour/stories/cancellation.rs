//! Cancellation of the active run by a user: annotation `alustan.io/cancel-run`.

use alustan_api::State;
use alustan_api::report::{FailureClass, RunResult, UnsavedPlace};
use alustan_api::run::RunKind;
use alustan_core::step::Step;
use rstest::rstest;
use serde_json::json;

use super::{changed_nothing, step_names};
use crate::fixtures::{Edit as _, failure, terraform};
use crate::world::{PodEvent, ReconcileFaults, Stage, World, condition};

impl World {
    /// Cancels the current run as a user.
    fn cancel_current(&mut self) -> &mut Self {
        let number = self.run_number();
        self.cancel_run(number)
    }

    /// Ends the pod of the cancelled run without a report.
    fn end_killed(&mut self) {
        self.reconcile();
        self.advance_pod(0, PodEvent::Kill);
        self.settle();
    }

    /// Asserts that the resource is stalled with reason `RunCancelled`, and starts no run until a user requests one.
    fn stays_cancelled(&mut self) -> &mut Self {
        let number = self.run_number();
        assert!(self.is_stalled(), "{:?}", self.status());
        assert_eq!(self.reason(), "RunCancelled");
        let message = self.status().message;
        for part in [
            &format!("run {number} ("),
            "was cancelled by a user",
            "not retried automatically",
            "kubectl annotate tf web -n team --overwrite alustan.io/reconcile-at=",
        ] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
        assert!(!message.contains("has no effect"), "{message}");
        self.advance_clock(100_000);
        self.restart().settle();
        assert_eq!((self.run_number(), self.is_stalled()), (number, true));
        self
    }
}

#[rstest]
#[case::before_its_pod_started(Stage::Created)]
#[case::while_planning(Stage::Planning)]
fn cancelled_plan_is_not_repeated_until_requested(#[case] stage: Stage) {
    let mut world = World::new();
    world.run_to(stage).cancel_current();
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        [
            &*format!(
                "SwapRecord {}",
                if stage == Stage::Created {
                    "Starting"
                } else {
                    "Planning"
                }
            ),
            "SwapReport cancel",
            "DeleteJob web-apply-1"
        ]
    );
    world.settle();
    let run = world.status().runs[0].clone();
    assert_eq!(
        (run.result.as_str(), run.reason.as_deref()),
        ("Cancelled", Some("RunCancelled"))
    );
    assert!(world.real.is_empty());
    world.stays_cancelled().request_run().settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn changed_configuration_ends_the_effect_of_a_cancellation() {
    let mut world = World::new();
    world.run_to(Stage::Planning).cancel_current().settle();
    world
        .stays_cancelled()
        .edit(|tf| tf.with_variable("size", 1));
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn plan_that_dies_before_its_report_is_cancelled() {
    let mut world = World::new();
    world.run_to(Stage::Planning).cancel_current().end_killed();
    assert_eq!(world.status().runs[0].result, "Cancelled");
    world.stays_cancelled();
}

#[rstest]
#[case::engine_is_interrupted(PodEvent::Fail(FailureClass::Transient), "ended with exit code 1")]
#[case::runner_is_killed(PodEvent::Kill, "its last changes may be missing in the state")]
fn cancelled_apply_is_interrupted_and_not_repeated(#[case] end: PodEvent, #[case] cause: &str) {
    let mut world = World::new();
    world.run_to(Stage::Applying).cancel_current();
    let steps = world.reconcile().decision.steps;
    assert_eq!(
        step_names(&steps),
        ["SwapRecord Applying", "DeleteJob web-apply-1"]
    );
    let status = world.status();
    assert_eq!(status.state, State::Applying);
    assert!(
        status
            .message
            .contains("is being interrupted, because a user cancelled it"),
        "{}",
        status.message
    );
    assert!(changed_nothing(&world.reconcile()), "once is enough");
    world.advance_pod(0, end);
    world.settle();
    let run = world.status().runs[0].clone();
    assert_eq!(
        (run.result.as_str(), run.reason.as_deref()),
        ("Failed", Some("RunCancelled"))
    );
    let error = run.error.unwrap();
    for part in [
        "run 1 (apply) was cancelled by a user while it changed objects",
        "the next plan shows what is missing",
        cause,
    ] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    world.stays_cancelled().request_run().settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn cancellation_is_completed_after_a_crash_and_without_annotation() {
    let mut world = World::new();
    world.run_to(Stage::Applying).cancel_current();
    world.reconcile_with(ReconcileFaults {
        crash: Some(1),
        stale: None,
    });
    assert!(!world.jobs.is_empty());
    world.edit(|mut tf| {
        tf.metadata.annotations = None;
        tf
    });
    assert_eq!(
        step_names(&world.reconcile().decision.steps),
        ["DeleteJob web-apply-1"]
    );
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.settle();
    world.stays_cancelled();
}

#[test]
fn apply_that_ends_before_the_interrupt_counts() {
    let mut world = World::new();
    world.run_to(Stage::Applying).cancel_current().reconcile();
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.ledger.kinds, [(RunKind::Apply, RunResult::Done)]);
    assert!(
        world
            .status()
            .message
            .contains("annotation alustan.io/cancel-run is \"1\" and has no effect")
    );
}

#[test]
fn interrupted_apply_gets_more_slots_for_its_state() {
    let mut world = World::new();
    world.run_to(Stage::Applying).cancel_current().reconcile();
    let mut record = world.record.clone().unwrap();
    record.record.slots_wanted = 5;
    world.write_record(record);
    world.reconcile();
    let inputs = world.record.as_ref().unwrap().inputs.clone().unwrap();
    assert_eq!(inputs.backend.managed.unwrap().slots.len(), 5);
}

#[test]
fn unsaved_state_of_a_cancelled_apply_is_reported() {
    let mut world = World::new();
    world.run_to(Stage::Applying).cancel_current().reconcile();
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    report.unsaved = Some(UnsavedPlace::Report);
    report.failure = Some(failure(
        FailureClass::Transient,
        "StateNotSaved",
        "it is kept",
    ));
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("StateNotSaved", true)
    );
    assert!(world.status().message.contains("was cancelled by a user"));
}

#[rstest]
#[case::earlier_run("0")]
#[case::later_run("2")]
#[case::other_notation("01")]
#[case::no_number("now\u{1b}[2K")]
fn annotation_with_another_run_has_no_effect(#[case] value: &str) {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.annotated(alustan_api::CANCEL_RUN, value));
    world.reconcile();
    let message = world.status().message;
    let reported = "and has no effect: no run with this number is active";
    assert!(message.contains(reported), "{message}");
    assert!(!message.contains('\u{1b}'), "{message}");
    world.settle();
    assert!(world.is_ready());
    // A later run with this number is another one than the user knew.
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert_eq!(world.run_number(), 2);
    assert!(world.is_ready(), "{:?}", world.status());
    assert!(!world.status().message.contains(reported));
}

#[test]
fn cancelled_drift_check_leaves_ready_until_next_interval() {
    let mut world = World::applied();
    world.start_drift_check().run_to(Stage::Planning);
    world.cancel_current().end_killed();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.status().runs[0].result, "Cancelled");
    assert_eq!(world.run_number(), 2);
    world.start_drift_check();
    assert_eq!(world.run_number(), 3);
}

#[test]
fn cancelled_verification_of_a_correction_is_not_repeated() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.start_drift_check();
    let verifies = |world: &World| world.run_number() == 4;
    while !verifies(&world) {
        world.reconcile();
        world.advance_pod(0, PodEvent::Progress);
    }
    world.cancel_current().settle();
    assert_eq!((world.run_number(), world.is_ready()), (4, true));
}

#[test]
fn cancelled_correction_is_not_repeated_until_requested() {
    let mut world = World::applied();
    world.real.drifted = true;
    world.start_drift_check();
    while world.run_number() < 3 {
        world.reconcile();
        world.advance_pod(0, PodEvent::Progress);
    }
    world.cancel_current().settle();
    world.stays_cancelled().request_run().settle();
    assert!(world.is_ready() && !world.real.drifted);
}

#[test]
fn cancelled_requested_plan_is_not_repeated() {
    let mut world = World::applied();
    world.edit(|tf| tf.annotated(alustan_api::PLAN_AT, "now"));
    world.run_to(Stage::Planning).cancel_current().end_killed();
    assert_eq!((world.run_number(), world.is_ready()), (2, true));
    assert_eq!(world.status().runs[0].result, "Cancelled");
}

#[test]
fn cancelled_first_plan_of_mode_plan_only_is_not_repeated() {
    let mut world = World::with(terraform().with("/mode", "PlanOnly"));
    world.run_to(Stage::Planning).cancel_current().end_killed();
    world.stays_cancelled().request_run().settle();
    assert!(world.is_ready());
}

#[test]
fn cancelled_apply_of_an_approved_plan_needs_a_request() {
    let mut world = World::awaiting();
    world.approve();
    world.run_to(Stage::Planning).cancel_current().settle();
    world.stays_cancelled().request_run().settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[rstest]
#[case::while_planning(Stage::Planning)]
#[case::while_destroying(Stage::Applying)]
fn cancelled_destroy_is_not_repeated_until_requested(#[case] stage: Stage) {
    let mut world = World::applied();
    world.delete().run_to(stage).cancel_current().reconcile();
    assert!(world.jobs.keys().all(|job| job != "web-destroy-2"));
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.settle();
    world.stays_cancelled();
    assert!(world.status().message.contains("alustan.io/abandon=true"));
    world.request_run().settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn deletion_destroys_after_a_cancelled_apply() {
    let mut world = World::new();
    world.run_to(Stage::Applying).delete();
    world.cancel_current().reconcile();
    let message = world.status().message;
    assert!(message.contains("is being interrupted"), "{message}");
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn run_that_suspend_ended_stays_cancelled_after_resume() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.with("/suspend", true)).reconcile();
    world.cancel_current().settle();
    assert_eq!(world.reason(), "Suspended");
    world.edit(|tf| tf.with("/suspend", false)).settle();
    world.stays_cancelled();
}

#[test]
fn correction_is_cancelled_while_git_is_unreachable() {
    let mut world = World::applied();
    world.start_drift_check().run_to(Stage::Planning);
    world.git_up = false;
    world.restart().cancel_current();
    let steps = step_names(&world.reconcile().decision.steps);
    assert!(steps.contains(&"SwapReport cancel".to_owned()), "{steps:?}");
}

/// Module code can write any report. A cancellation that no user requested counts as a failure.
#[test]
fn forged_cancellation_by_a_user_is_an_error() {
    for result in [RunResult::Failed, RunResult::Done] {
        let mut world = World::new();
        world.run_to(Stage::Applying);
        world.advance_pod(0, PodEvent::Fail(FailureClass::Module));
        let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
        report.result = result;
        report.failure = Some(failure(FailureClass::User, "RunCancelled", "by a user"));
        world.reconcile();
        assert_eq!(
            (world.reason().as_str(), world.is_stalled()),
            ("ReportInvalid", false)
        );
    }
}

/// A cancellation removes the failure that the report of the run contains.
#[test]
fn forged_failure_of_a_cancelled_run_is_ignored() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.edit(|tf| tf.with("/suspend", true)).reconcile();
    world.advance_pod(0, PodEvent::Progress);
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    assert_eq!(report.result, RunResult::Cancelled);
    report.failure = Some(failure(FailureClass::User, "StateLost", "forged"));
    world.settle();
    world.edit(|tf| tf.with("/suspend", false)).settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn record_of_a_cancelled_run_names_the_cancellation() {
    let mut world = World::new();
    world.run_to(Stage::Planning).cancel_current().reconcile();
    world.advance_pod(0, PodEvent::Progress);
    let steps = world.reconcile().decision.steps;
    let run = steps.into_iter().find_map(|step| match step {
        Step::RecordRun(run) => Some(run),
        _ => None,
    });
    let status = run.unwrap().status.unwrap();
    assert_eq!(
        json!([status.result, status.reason, status.message]),
        json!([
            "Cancelled",
            "RunCancelled",
            "run 1 (apply) was cancelled by a user before it changed any object"
        ])
    );
    assert_eq!(condition(&world.status(), "Stalled"), "True");
}
