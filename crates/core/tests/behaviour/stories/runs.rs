//! Rule 5: start, progress and end of runs. No run is executed twice.

use alustan_api::State;
use alustan_api::run::{RunKind, RunPhase};
use alustan_core::observed::{OwnJob, Ownership};
use alustan_core::step::Step;
use rstest::rstest;

use super::{changed_nothing, step_names};
use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, ReconcileFaults, Stage, World};

#[test]
fn new_resource_gets_finalizer_and_run_record_first() {
    let mut world = World::new();
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        ["AddFinalizer", "CreateRecord"]
    );
    assert_eq!(world.status().state, State::Pending);
    assert_eq!(world.status().message, "Awaiting processing");
}

#[test]
fn one_job_plans_and_applies_that_plan() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.reconcile();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Applying, "Running")
    );
    world.settle();
    assert_eq!(world.jobs.keys().collect::<Vec<_>>(), ["web-apply-1"]);
    let status = world.status();
    assert_eq!((status.state, status.run), (State::Success, Some(1)));
    assert_eq!(status.message, "Terraform applied successfully");
    assert_eq!(status.runs[0].trigger, "created");
}

#[test]
fn objects_precede_run_record_and_pin_precedes_job() {
    let mut world = World::until(|world| !world.images.is_empty());
    let start = loop {
        let reconciled = world.reconcile_with(ReconcileFaults {
            crash: Some(0),
            stale: None,
        });
        world.memory.query_started = false;
        let seen = world.observe(0);
        world.decide(seen);
        if let Some(start) = reconciled.decision.start {
            break start;
        }
        world.has_free_slot = false;
        world.reconcile();
    };
    assert_eq!(
        step_names(&start.steps),
        [
            "Ensure Account web-runner",
            "Ensure Role web-runner",
            "Ensure Binding web-runner",
            "Ensure Budget web-runner",
            "Ensure Secret web-state",
            "SwapRecord Starting",
            "SwapReport reset",
            "Ensure Secret web-pin",
            "Ensure Namespace team",
            "CreateJob web-apply-1",
        ]
    );
}

#[test]
fn a_change_during_an_apply_waits_for_it_to_end() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.edit(|tf| tf.with_variable("size", 1));
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.start.is_none());
    world.settle();
    assert_eq!(
        (world.run_number(), world.last_run().1.as_str()),
        (2, "spec")
    );
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn next_run_waits_for_pod_of_previous_run() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    world.edit(|tf| tf.with_variable("size", 1));
    let reconciled = world.reconcile();
    assert!(reconciled.decision.start.is_none());
    assert_eq!(
        world.status().message,
        "waiting for the pod of the previous run to end"
    );
    world.advance_pod(0, PodEvent::Progress);
    assert!(world.reconcile().started);
}

#[test]
fn next_run_waits_for_pod_of_deleted_job() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let pod = world.pods[0].clone();
    world.delete_job("web-apply-1");
    world.pods[0] = pod;
    world.edit(|tf| tf.with_variable("size", 1));
    assert!(world.reconcile().decision.start.is_none());
    world.advance_pod(0, PodEvent::Progress);
    assert!(world.reconcile().started);
}

#[test]
fn report_is_recorded_and_removed_with_the_inputs() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [
            "CheckRecord",
            "Ensure Secret web-outputs",
            "RecordRun web-uid-o-1",
            "SwapRecord Recorded",
            "SwapReport close"
        ]
    );
    assert!(world.is_ready());
    let record = world.record.clone().unwrap();
    assert_eq!(record.record.phase, RunPhase::Recorded);
    assert!(record.inputs.is_none() && record.report.is_none() && record.outputs.is_none());
    assert!(changed_nothing(&world.reconcile()));
}

#[rstest]
#[case::after_run_record(6)]
#[case::after_run_report(7)]
fn pin_and_job_are_created_after_controller_crash(#[case] writes: usize) {
    let mut world = World::until(|world| !world.images.is_empty());
    world.has_free_slot = false;
    world.settle();
    world.has_free_slot = true;
    world.reconcile_with(ReconcileFaults {
        crash: Some(writes),
        stale: None,
    });
    assert_eq!(
        (world.run_number(), world.pin.is_none(), world.jobs.len()),
        (1, true, 0)
    );
    let reconciled = world.reconcile();
    assert_eq!(
        step_names(&reconciled.decision.steps),
        [
            "SwapRecord Starting",
            "SwapReport reset",
            "Ensure Secret web-pin",
            "CreateJob web-apply-1"
        ]
    );
    world.settle();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn stale_record_starts_no_run_and_keeps_the_pin() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    let pin = world.pin.clone();
    world.edit(|tf| tf.with_variable("size", 1));
    world.reconcile_with(ReconcileFaults {
        stale: Some(2),
        crash: None,
    });
    assert_eq!((world.run_number(), world.jobs.len()), (1, 1));
    assert!(world.pin == pin);
}

#[test]
fn run_without_slot_waits_with_reason_queued() {
    let mut world = World::until(|world| !world.images.is_empty());
    world.has_free_slot = false;
    world.settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Pending, "Queued")
    );
    assert_eq!(world.run_number(), 0);
    world.has_free_slot = true;
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn larger_state_gets_more_slots_and_access_to_them() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    let mut record = world.record.clone().unwrap();
    record.record.slots_wanted = 5;
    world.write_record(record);
    let reconciled = world.reconcile();
    let names = step_names(&reconciled.decision.steps);
    let role = names
        .iter()
        .position(|name| name == "Ensure Role web-runner");
    let swap = names.iter().position(|name| name == "SwapRecord Applying");
    assert!(
        names.contains(&"Ensure Secret web-state-slot-4".to_owned()),
        "{names:?}"
    );
    assert!(role.is_some() && role < swap, "{names:?}");
    let inputs = world.record.as_ref().unwrap().inputs.clone().unwrap();
    assert_eq!(inputs.backend.managed.unwrap().slots.len(), 5);
    assert!(
        changed_nothing(&world.reconcile()),
        "asked once, given once"
    );
    world.settle();
    world
        .edit(|tf| tf.with_variable("size", 1))
        .run_to(Stage::Planning);
    let inputs = world.record.as_ref().unwrap().inputs.clone().unwrap();
    assert_eq!(
        inputs.backend.managed.unwrap().slots.len(),
        5,
        "the next run has them, too"
    );
}

#[test]
fn outputs_never_overwrite_a_foreign_secret() {
    let mut world = World::new();
    world.outputs.secret = Ownership::Foreign;
    world.run_to(Stage::Reported);
    world.reconcile();
    assert_eq!(world.reason(), "OutputsOwnershipConflict");
    assert!(world.status().message.contains("Secret web-outputs exists"));
    assert!(!world.objects.contains("web-outputs"));
    world.outputs.secret = Ownership::Absent;
    world.run_until_converged();
    assert!(world.is_ready() && world.objects.contains("web-outputs"));
}

#[test]
fn last_three_finished_jobs_are_kept() {
    let mut world = World::applied();
    for size in 1..6 {
        world.edit(|tf| tf.with_variable("size", size)).settle();
    }
    assert_eq!(
        world.jobs.keys().collect::<Vec<_>>(),
        ["web-apply-4", "web-apply-5", "web-apply-6"]
    );
}

#[test]
fn finished_jobs_beyond_the_limit_of_all_resources_are_deleted() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1)).settle();
    assert_eq!(world.jobs.len(), 2);
    world.jobs_beyond_limit = true;
    world.edit(|tf| tf.with_variable("size", 2));
    world.run_to(Stage::Applying);
    assert_eq!(world.jobs.keys().collect::<Vec<_>>(), ["web-apply-3"]);
    world.settle();
    assert!(world.jobs.is_empty() && world.is_ready());
    assert_eq!(world.run_number(), 3);
}

#[test]
fn job_beyond_the_limit_is_kept_until_its_report_is_recorded() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Planning);
    let mut seen = world.observe(0);
    let record = seen.record.as_ref().unwrap().record.clone();
    let job = OwnJob {
        name: "web-apply-2".to_owned(),
        uid: "uid-2".to_owned(),
        finished: true,
        lingers: false,
        is_beyond_limit: true,
    };
    seen.jobs = [(record.number, job)].into();
    let (_, decision) = world.decide(seen);
    assert!(!step_names(&decision.steps).contains(&"DeleteJob web-apply-2".to_owned()));
}

#[test]
fn request_starts_one_apply_of_an_applied_resource() {
    let mut world = World::applied();
    world
        .edit(|tf| tf.annotated(alustan_api::RECONCILE_AT, "now"))
        .settle();
    assert_eq!(world.last_run(), (RunKind::Apply, "requested".to_owned()));
    world.settle();
    assert_eq!(world.run_number(), 2);
}

#[test]
fn annotation_of_a_new_resource_starts_no_extra_run() {
    let mut world = World::with(terraform().annotated(alustan_api::RECONCILE_AT, "long ago"));
    world.settle();
    assert_eq!(
        (world.run_number(), world.last_run().1.as_str()),
        (1, "created")
    );
}

#[test]
fn job_is_created_once_after_the_run_record() {
    let mut world = World::new();
    let mut order = Vec::new();
    for _ in 0..40 {
        let reconciled = world.reconcile();
        let started = reconciled.decision.start.filter(|_| reconciled.started);
        let started = started.map(|start| start.steps).unwrap_or_default();
        let steps = reconciled.decision.steps.iter().chain(&started);
        order.extend(steps.filter_map(|step| match step {
            Step::SwapRecord(swap)
                if swap.record.run.is_some() && swap.record.phase == RunPhase::Starting =>
            {
                Some("swap")
            }
            Step::CreateJob(job) if job.metadata.name.as_deref() == Some("web-apply-1") => {
                Some("job")
            }
            _ => None,
        }));
        world.advance_builds(None);
        world.advance_pod(0, PodEvent::Progress);
    }
    assert_eq!(order, ["swap", "job"]);
}
