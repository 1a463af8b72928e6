use alustan_api::report::RunResult;
use alustan_api::run::{RunKind, RunPhase, key};
use alustan_state::fake::Fault;

use crate::world::{REPORT, World};

#[test]
fn a_second_pod_leaves_a_claimed_run_untouched() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    world.inputs.scripts.plan = Some(format!("cat {}; exit 0", gate.path().display()));
    world.start(RunKind::Drift);
    let first = world.pod();
    world.wait_for_phase(RunPhase::Planning);
    let waiting = gate.wait();
    let before = world.secrets.get(REPORT);

    // The second pod gets its own volumes, and uses the API server of the first pod.
    let mut other = World::new("");
    other.start(RunKind::Drift);
    std::fs::copy(world.path("kubeconfig"), other.path("kubeconfig")).unwrap();
    let ran = other.finish(other.pod_with_uid("uid-of-another"));
    assert_eq!(ran.code, 0, "{}", ran.logs());
    assert_eq!(
        ran.stderr,
        "alustan: not executing run 1 of web-run: the run is claimed by pod pod-of-uid-1 (uid uid-1)\n"
    );
    assert_eq!(ran.stdout, "");
    assert_eq!(world.secrets.get(REPORT), before);
    drop(waiting);
    world.finish(first).expect(RunResult::NoChanges);
}

/// Another version of the operator may serialize the progress of a new run differently.
#[test]
fn progress_with_other_bytes_is_read_before_the_claim() {
    let mut world = World::new("");
    world.start(RunKind::Drift);
    let mut data = world.secrets.get(REPORT).unwrap().data;
    let mut progress = data.remove(key::PROGRESS).unwrap();
    progress.push(b' ');
    world.secrets.put(REPORT, [(key::PROGRESS, progress)]);
    let pod = world.pod();
    world.finish(pod).expect(RunResult::NoChanges);
    let claim = [
        "get web-run",
        "patch web-report",
        "get web-report",
        "patch web-report",
    ];
    assert_eq!(world.calls()[..4], claim);
}

#[test]
fn run_with_another_number_is_not_claimed() {
    let mut world = World::new("");
    world.start(RunKind::Drift);
    let before = world.secrets.get(REPORT);
    world.vars.insert("ALUSTAN_RUN".into(), "7".into());
    let ran = world.finish(world.pod());
    assert_eq!(ran.code, 0);
    assert!(
        ran.stderr
            .contains("not executing run 7 of web-run: the current run is 1")
    );
    assert_eq!(world.secrets.get(REPORT), before);
}

#[test]
fn run_with_changed_inputs_is_not_claimed() {
    let mut world = World::new("");
    world.start(RunKind::Drift);
    let before = world.secrets.get(REPORT);
    // The HMAC that the Job passes to the pod is not the HMAC of the run record.
    world.vars.insert("ALUSTAN_DECISION".into(), "00".into());
    let ran = world.finish(world.pod());
    assert_eq!(ran.code, 0);
    let message =
        "not executing run 1 of web-run: a client other than the operator changed the run record";
    assert!(ran.stderr.contains(message), "{}", ran.stderr);
    assert_eq!(world.secrets.get(REPORT), before);
}

#[test]
fn run_cancelled_before_apply_changes_nothing() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    let gate = world.gate("gate");
    world.inputs.scripts.plan = Some(format!(
        "terraform plan -out=$ALUSTAN_PLAN_FILE >/dev/null; cat {}; exit 2",
        gate.path().display()
    ));
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    world.cancel();
    drop(waiting);
    let ran = world.finish(pod);
    ran.expect(RunResult::Cancelled);
    assert!(!ran.stdout.contains("Apply"), "{}", ran.logs());
    assert!(world.pointer().current.is_none());
    assert_eq!(world.record().attempted, 0);
}

#[test]
fn run_cancelled_during_apply_completes() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    world.write_module("main.tf", &format!(
        "resource \"terraform_data\" \"a\" {{\n  provisioner \"local-exec\" {{ command = \"cat {}\" }}\n}}\n",
        gate.path().display()
    ));
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    assert_eq!(world.record().phase, RunPhase::Applying);
    world.cancel();
    drop(waiting);
    world.finish(pod).expect(RunResult::Done);
    assert!(world.pointer().current.is_some());
}

#[test]
fn run_succeeds_despite_lost_api_writes_and_responses() {
    for fault in [Fault::Lost, Fault::AnswerLost] {
        let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
        // The writes 0, 2, 4, 6 and 8 fail. With `Lost`, the first attempt of each write of the run is lost, and the second attempt succeeds.
        for write in [0, 2, 4, 6, 8] {
            world.secrets.fail(write, fault);
        }
        world.run(RunKind::Apply).expect(RunResult::Done);
        assert!(world.record().lock.is_none());
        assert_eq!(world.pointer().current.unwrap().version, 1);
    }
}
