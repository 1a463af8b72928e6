//! Rule 5, and "a run cannot happen twice": start, progress and end of runs.

use alustan_api::State;
use alustan_api::run::{RunKind, RunPhase};
use alustan_core::observed::Ownership;
use alustan_core::step::Step;
use rstest::rstest;

use super::{is_quiet, words};
use crate::fixtures::{Edit as _, terraform};
use crate::world::{Act, Look, Stage, World};

#[test]
fn new_resource_gets_finalizer_and_run_record_first() {
    let mut world = World::new();
    let looked = world.look_once();
    assert_eq!(
        words(&looked.decision.steps),
        ["AddFinalizer", "CreateRecord"]
    );
    assert_eq!(world.status().state, State::Pending);
    assert_eq!(world.status().message, "Awaiting processing");
}

#[test]
fn one_job_plans_and_applies_that_plan() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    world.look_once();
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
        let looked = world.look(Look {
            crash: Some(0),
            stale: None,
        });
        world.memory.asked = false;
        world.observe(0);
        if let Some(start) = looked.decision.start {
            break start;
        }
        world.room = false;
        world.look_once();
    };
    assert_eq!(
        words(&start.steps),
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
    let looked = world.look_once();
    assert!(looked.decision.steps.is_empty() && looked.decision.start.is_none());
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
    let looked = world.look_once();
    assert!(looked.decision.start.is_none());
    assert_eq!(
        world.status().message,
        "waiting for the pod of the previous run to end"
    );
    world.act(0, Act::Progress);
    assert!(world.look_once().started);
}

#[test]
fn next_run_waits_for_pod_of_deleted_job() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let pod = world.pods[0].clone();
    world.delete_job("web-apply-1");
    world.pods[0] = pod;
    world.edit(|tf| tf.with_variable("size", 1));
    assert!(world.look_once().decision.start.is_none());
    world.act(0, Act::Progress);
    assert!(world.look_once().started);
}

#[test]
fn report_is_recorded_and_removed_with_the_inputs() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let looked = world.look_once();
    assert_eq!(
        words(&looked.decision.steps),
        [
            "CheckRecord",
            "Ensure Secret web-outputs",
            "SwapRecord Recorded",
            "SwapReport close"
        ]
    );
    assert!(world.is_ready());
    let record = world.record.clone().unwrap();
    assert_eq!(record.record.phase, RunPhase::Recorded);
    assert!(record.inputs.is_none() && record.report.is_none() && record.outputs.is_none());
    assert!(is_quiet(&world.look_once()));
}

#[rstest]
#[case::after_run_record(6)]
#[case::after_run_report(7)]
fn pin_and_job_are_created_after_controller_crash(#[case] writes: usize) {
    let mut world = World::until(|world| !world.images.is_empty());
    world.room = false;
    world.settle();
    world.room = true;
    world.look(Look {
        crash: Some(writes),
        stale: None,
    });
    assert_eq!(
        (world.run_number(), world.pin.is_none(), world.jobs.len()),
        (1, true, 0)
    );
    let looked = world.look_once();
    assert_eq!(
        words(&looked.decision.steps),
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
    world.look(Look {
        stale: Some(2),
        crash: None,
    });
    assert_eq!((world.run_number(), world.jobs.len()), (1, 1));
    assert!(world.pin == pin);
}

#[test]
fn run_without_slot_waits_with_reason_queued() {
    let mut world = World::until(|world| !world.images.is_empty());
    world.room = false;
    world.settle();
    assert_eq!(
        (world.status().state, world.reason().as_str()),
        (State::Pending, "Queued")
    );
    assert_eq!(world.run_number(), 0);
    world.room = true;
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn larger_state_gets_more_slots_and_access_to_them() {
    let mut world = World::new();
    world.run_to(Stage::Applying);
    let mut record = world.record.clone().unwrap();
    record.record.slots_wanted = 5;
    world.store(record);
    let looked = world.look_once();
    let words = words(&looked.decision.steps);
    let role = words
        .iter()
        .position(|word| word == "Ensure Role web-runner");
    let swap = words.iter().position(|word| word == "SwapRecord Applying");
    assert!(
        words.contains(&"Ensure Secret web-state-slot-4".to_owned()),
        "{words:?}"
    );
    assert!(role.is_some() && role < swap, "{words:?}");
    let inputs = world.record.as_ref().unwrap().inputs.clone().unwrap();
    assert_eq!(inputs.backend.managed.unwrap().slots.len(), 5);
    assert!(is_quiet(&world.look_once()), "asked once, given once");
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
    world.look_once();
    assert_eq!(world.reason(), "OutputsOwnershipConflict");
    assert!(world.status().message.contains("Secret web-outputs exists"));
    assert!(!world.objects.contains("web-outputs"));
    world.outputs.secret = Ownership::Absent;
    world.run_until_rest();
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
        let looked = world.look_once();
        let started = looked.decision.start.filter(|_| looked.started);
        let started = started.map(|start| start.steps).unwrap_or_default();
        let all = looked.decision.steps.iter().chain(&started);
        order.extend(all.filter_map(|step| match step {
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
        world.act(0, Act::Progress);
    }
    assert_eq!(order, ["swap", "job"]);
}
