//! State locks that block a run, in backends other than `managed`. The runner releases a lock if the holder of the lock has certainly ended.

use std::fs;

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{Lineage, RunKind, RunPhase};
use serde_json::json;

use crate::s3::Bucket;
use crate::world::World;

const LOCK: &str = "team/web.tfstate.tflock";
const ID: &str = "3d93d31b-0f0c-0d2b-bd8c-e7e2d8a5a2b1";

fn world(bucket: &Bucket) -> World {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.inputs.backend.kind = Some("s3".into());
    world.inputs.backend.managed = None;
    world.inputs.backend.config = bucket.config();
    world
}

/// Creates the lock that an engine on `host` leaves if it ends without unlocking the state.
fn lock(bucket: &Bucket, host: &str) {
    bucket.put(
        LOCK,
        &json!({"ID": ID, "Operation": "OperationTypeApply", "Info": "",
            "Who": format!("alustan@{host}"), "Version": "1.11.4",
            "Created": "2026-01-02T03:04:05.123456789Z", "Path": "store/team/web.tfstate"}),
    );
}

#[test]
fn lock_of_an_ended_pod_of_the_resource_is_released() {
    let bucket = Bucket::serve();
    let mut world = world(&bucket);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert!(!bucket.has(LOCK) && bucket.has("team/web.tfstate"));
    world.earlier_pods = vec!["web-apply-2-fghij".into(), "web-apply-1-abcde".into()];
    for kind in [RunKind::Apply, RunKind::Destroy] {
        world.write_module("main.tf", "resource \"terraform_data\" \"b\" {}\n");
        lock(&bucket, "web-apply-1-abcde");
        let ran = world.run(kind);
        let report = ran.expect(RunResult::Done);
        assert_eq!(report.lock, None);
        let message =
            format!("by web-apply-1-abcde, a pod of this resource that has ended (lock id {ID})");
        assert!(ran.stderr.contains(&message), "{}", ran.logs());
        assert!(!bucket.has(LOCK));
    }
}

/// A lock of an ended engine remains if the response to a lock request is lost and the engine repeats the request.
#[test]
fn the_lock_of_an_earlier_engine_of_this_pod_is_released() {
    let bucket = Bucket::serve();
    let mut world = world(&bucket);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    lock(&bucket, host.trim());
    let ran = world.run(RunKind::Apply);
    assert_eq!(ran.expect(RunResult::Done).lock, None);
    let message = format!("an engine of this pod that has ended (lock id {ID})");
    assert!(ran.stderr.contains(&message), "{}", ran.logs());
    assert!(!bucket.has(LOCK));

    // With scripts, the lock is kept: a script may run several engines at a time, so the holder of the lock may still be running.
    world.inputs.scripts.apply = Some("terraform apply -auto-approve".into());
    lock(&bucket, host.trim());
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert!(bucket.has(LOCK));
}

#[test]
fn lock_of_another_holder_is_reported_and_kept() {
    let bucket = Bucket::serve();
    let mut world = world(&bucket);
    world.earlier_pods = vec!["web-apply-1-abcde".into()];
    lock(&bucket, "web-apply-1-abcd");
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    let lock = ran.report.unwrap().lock.unwrap();
    assert_eq!(
        (lock.id.as_str(), lock.who.as_str()),
        (ID, "alustan@web-apply-1-abcd")
    );
    assert_eq!(lock.at.to_string(), "2026-01-02T03:04:05.123456789Z");
    assert_eq!(lock.operation, "OperationTypeApply");
    assert!(bucket.has(LOCK));
    assert_eq!(world.record().phase, RunPhase::Reported);
    // A drift check does not lock the state, so a lock of another holder does not block a drift check.
    world.run(RunKind::Drift).expect(RunResult::Changes);
}

#[test]
fn lock_that_blocks_a_script_is_released() {
    let bucket = Bucket::serve();
    let mut world = world(&bucket);
    world.inputs.scripts.apply =
        Some("terraform apply -auto-approve 2> >(sed 's/^/03:04:05 STDERR tofu: /' >&2)".into());
    world.earlier_pods = vec!["web-apply-1-abcde".into()];
    lock(&bucket, "web-apply-1-abcde");
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert!(!bucket.has(LOCK));
    lock(&bucket, "somewhere-else");
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert_eq!(
        ran.report.unwrap().lock.unwrap().who,
        "alustan@somewhere-else"
    );
}

#[test]
fn lock_that_cannot_be_released_is_reported() {
    let bucket = Bucket::serve();
    let mut world = world(&bucket);
    world.inputs.scripts.init = Some("true".into());
    world.inputs.scripts.apply = Some(format!(
        "echo 'Error: Error acquiring the state lock'; echo 'Lock Info:'; echo '  ID: {ID}'; \
         echo '  Who: alustan@web-apply-1-abcde'; exit 1"
    ));
    world.earlier_pods = vec!["web-apply-1-abcde".into()];
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert_eq!(ran.stderr.matches("failed to release the lock").count(), 1);
    assert_eq!(ran.report.unwrap().lock.unwrap().id, ID);
}

#[test]
fn lock_of_a_managed_state_is_in_the_report() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.start(RunKind::Apply);
    let lock = world.lock_by("somebody@elsewhere");
    let ran = world.finish(world.pod());
    assert_eq!(ran.expect(RunResult::Failed).lock, Some(lock));
}

#[test]
fn approval_stays_valid_after_a_blocking_lock() {
    let bucket = Bucket::serve();
    let mut world = world(&bucket);
    world.inputs.approval.manual = true;
    let report = world.run(RunKind::Plan).report.unwrap();
    world.approve(&report);
    lock(&bucket, "somewhere-else");
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    let record = world.record();
    assert_eq!((record.attempted, record.begun), (0, 0));
    assert_eq!(
        (record.lineage, record.state_address),
        (Lineage::Unknown, None)
    );
    assert_eq!(record.phase, RunPhase::Reported);
    bucket.remove(LOCK);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!((world.record().attempted, world.record().begun), (3, 3));

    world.inputs.approval.manual = false;
    lock(&bucket, "somewhere-else");
    let ran = world.run(RunKind::Destroy);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert_eq!((world.record().attempted, world.record().begun), (3, 3));
}

#[test]
fn stale_plan_does_not_count_as_an_apply() {
    let mut world = World::with_local_backend("resource \"terraform_data\" \"a\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.write_module("main.tf", "resource \"terraform_data\" \"b\" {}\n");
    // Another client writes the state between plan and apply.
    let state = world.path("local.tfstate").display().to_string();
    world.before_engine(
        "apply",
        &format!("sed -i 's/\"serial\": [0-9]*/\"serial\": 77/' {state}"),
    );
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Transient, "PlanStale");
    assert_eq!((world.record().attempted, world.record().begun), (1, 1));
}

#[test]
fn lock_error_in_a_provisioner_keeps_the_apply_recorded() {
    let mut world = World::new(
        "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    \
         command = \"echo 'Error: Error acquiring the state lock' >&2; exit 1\"\n  }\n}\n",
    );
    world.run(RunKind::Apply).expect(RunResult::Failed);
    assert_eq!((world.record().attempted, world.record().begun), (1, 1));
}
