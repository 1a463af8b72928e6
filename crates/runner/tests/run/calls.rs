//! Requests of a run to the API server. Each test compares the complete sequence, so that an additional request fails the test.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use alustan_api::report::RunResult;
use alustan_api::run::RunKind;

use crate::world::World;

const CLAIM: [&str; 2] = ["get web-run", "patch web-report"];
const OPEN_STATE: [&str; 1] = ["get web-state"];
const BEGIN: [&str; 1] = ["patch web-report"];
/// Requests before the first change of a run: a read of the slot for the next version of the state, and a write by which the run claims the
/// pointer.
const BEGIN_STATE: [&str; 2] = ["get web-state-slot-0", "patch web-state"];
/// Writes of a new version of the state: first the slot, then the pointer. The slot is necessary because the pointer Secret contains the data of the
/// previous version.
const WRITE_TO_SLOT: [&str; 2] = ["patch web-state-slot-0", "patch web-state"];
const REPORT: [&str; 1] = ["patch web-report"];
/// Requests of an apply or a destroy that changes objects, after an earlier apply of the same resource.
const LATER_CHANGE: [&[&str]; 6] = [
    &CLAIM,
    &OPEN_STATE,
    &BEGIN_STATE,
    &BEGIN,
    &WRITE_TO_SLOT,
    &REPORT,
];

fn world() -> World {
    World::new(
        "resource \"terraform_data\" \"a\" { input = \"one\" }\n\
         output \"a\" { value = terraform_data.a.output }\n",
    )
}

fn assert_calls(world: &World, what: &str, expected: &[&[&str]]) {
    let expected = expected.concat();
    let calls = world.calls();
    assert_eq!(
        calls,
        expected,
        "{what} sends {} requests instead of {}",
        calls.len(),
        expected.len()
    );
}

#[test]
fn apply_sends_a_fixed_sequence_of_requests() {
    let mut world = world();
    world.run(RunKind::Apply).expect(RunResult::Done);
    let write = ["patch web-state"];
    let expected = [&CLAIM[..], &OPEN_STATE, &BEGIN, &write, &REPORT];
    assert_calls(&world, "the first apply", &expected);

    world.write_module("main.tf", "resource \"terraform_data\" \"b\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_calls(&world, "the next apply", &LATER_CHANGE);

    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    let expected = [&CLAIM[..], &OPEN_STATE, &["get web-state-slot-0"], &REPORT];
    assert_calls(&world, "an apply without changes", &expected);
}

#[test]
fn script_engines_lock_the_state_by_one_request_each() {
    let mut world = world();
    let apply = "terraform apply -auto-approve -input=false";
    world.inputs.scripts.apply = Some(format!("{apply} && {apply}"));
    world.run(RunKind::Apply).expect(RunResult::Done);
    let lock = ["patch web-report"];
    let write = ["patch web-state"];
    let expected = [
        &CLAIM[..],
        &OPEN_STATE,
        &BEGIN,
        &lock,
        &write,
        &lock,
        &REPORT,
    ];
    assert_calls(&world, "a script with two applies", &expected);
}

#[test]
fn drift_check_sends_a_fixed_sequence_of_requests() {
    let mut world = world();
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.calls();
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    let expected = [&CLAIM[..], &OPEN_STATE, &REPORT];
    assert_calls(&world, "a drift check", &expected);
}

#[test]
fn destroy_sends_a_fixed_sequence_of_requests() {
    let mut world = world();
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.calls();
    world.run(RunKind::Destroy).expect(RunResult::Done);
    assert_calls(&world, "a destroy", &LATER_CHANGE);
}

/// The API server refuses every other request with the same verb and Secret. A write of the report is retried after a read.
#[test]
fn apply_succeeds_by_few_retries_of_429_and_500() {
    let mut world = world();
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.calls();
    world.is_overloaded.store(true, Ordering::SeqCst);
    world.write_module("main.tf", "resource \"terraform_data\" \"b\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.pointer().current.unwrap().version, 2);
    let mut counts = BTreeMap::<_, usize>::new();
    for call in world.calls() {
        *counts.entry(call).or_default() += 1;
    }
    let expected = [
        ("get web-report", 6),
        ("get web-run", 2),
        ("get web-state", 2),
        ("get web-state-slot-0", 2),
        ("patch web-report", 6),
        ("patch web-state", 4),
        ("patch web-state-slot-0", 2),
    ];
    let expected = expected.map(|(call, count)| (call.to_owned(), count));
    assert_eq!(counts, BTreeMap::from(expected));
}
