use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{RunKind, RunPhase};

use crate::world::{World, until};

#[test]
fn managed_state_lock_of_another_holder_fails_the_run() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.start(RunKind::Apply);
    let lock = world.lock_by("somebody@elsewhere");
    let ran = world.finish(world.pod());
    let message = ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert!(message.contains("somebody@elsewhere"), "{message}");
    assert_eq!(world.record().lock, Some(lock));
    assert_eq!(world.record().phase, RunPhase::Reported);
}

#[test]
fn engine_does_not_overwrite_a_concurrently_changed_state() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    let gate = world.gate("gate");
    world.inputs.scripts.apply = Some(format!(
        "cat {}; terraform apply -auto-approve",
        gate.path().display()
    ));
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    world.secrets.put(
        "web-state",
        [("pointer", br#"{"current":null,"previous":null}"#.to_vec())],
    );
    drop(waiting);
    let ran = world.finish(pod);
    ran.expect_failure(FailureClass::Module, "ScriptFailed");
    assert!(
        ran.stderr
            .contains("the state was changed by another client"),
        "{}",
        ran.logs()
    );
    assert!(world.pointer().current.is_none());
}

/// Returns `size` bytes that do not compress.
fn noise(size: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.extend(seed.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Returns a test environment with a module whose state is `size` bytes larger than the state of an empty resource.
fn large(size: usize) -> World {
    let world = World::new(
        "resource \"terraform_data\" \"a\" {\n  input = sensitive(filebase64(\"${path.module}/noise\"))\n}\n",
    );
    // The state contains the file `noise` twice (as `input` and as `output`), in base64.
    std::fs::write(world.path("module/noise"), noise(size / 2 * 3 / 4)).unwrap();
    world
}

#[test]
fn module_without_objects_has_no_state() {
    let mut world = World::new("");
    for kind in [RunKind::Apply, RunKind::Drift, RunKind::Apply] {
        world.run(kind).expect(RunResult::NoChanges);
    }
    assert_eq!(world.pointer(), alustan_state::store::Pointer::default());
    assert_eq!(world.record().lineage, alustan_api::run::Lineage::Unknown);
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn state_of_1_mib_fits_into_the_default_slots() {
    let mut world = large(1024 * 1024);
    world.run(RunKind::Apply).expect(RunResult::Done);
    let version = world.pointer().current.unwrap();
    assert!(
        version.size > 1024 * 1024 && version.slots.len() < 3,
        "{version:?}"
    );
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn state_of_30_mb_receives_the_requested_slots() {
    let mut world = large(30_000_000);
    world.start(RunKind::Apply);
    let pod = world.pod();
    until("more slots are asked for", || {
        world.record().slots_wanted > 3
    });
    world.grow_slots(world.record().slots_wanted);
    world.finish(pod).expect(RunResult::Done);
    let version = world.pointer().current.unwrap();
    assert!(
        version.size > 30_000_000 && version.slots.len() > 10,
        "{}",
        version.size
    );
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
}

#[test]
fn previous_state_version_can_be_restored_manually() {
    let mut world = World::new("resource \"terraform_data\" \"a\" { input = \"one\" }\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.write_module(
        "main.tf",
        "resource \"terraform_data\" \"a\" { input = \"two\" }\n\
         resource \"terraform_data\" \"b\" {}\n",
    );
    world.run(RunKind::Apply).expect(RunResult::Done);
    let before = world.pointer();
    // Swaps the current and the previous version of the state, as in docs/operations.md: jq '{current: .previous, previous: .current}'.
    let data = world.secrets.get("web-state").unwrap().data;
    let pointer: serde_json::Value = serde_json::from_slice(&data["pointer"]).unwrap();
    let swapped =
        serde_json::json!({"current": pointer["previous"], "previous": pointer["current"]});
    let data = [
        ("pointer", swapped.to_string().into_bytes()),
        ("data", data["data"].clone()),
    ];
    world.secrets.put("web-state", data);

    let ran = world.run(RunKind::Drift);
    let changes = ran.expect(RunResult::Changes).changes.clone().unwrap();
    assert_eq!((changes.add, changes.change, changes.destroy), (1, 1, 0));
    assert_eq!(world.pointer().current, before.previous);
    assert_eq!(world.pointer().previous, before.current);
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    assert_eq!(
        world.pointer().previous,
        before.previous,
        "the way back is gone"
    );
}

/// Executes runs of three kinds, and asserts that each run fails with reason `StateLost` before the engine starts. Returns the message of the last
/// run.
fn fails_as_lost(world: &mut World) -> String {
    let started = world.path("started");
    world.program(
        "terraform",
        &format!("#!/bin/sh\ntouch {}\n", started.display()),
    );
    let mut message = String::new();
    for kind in [RunKind::Apply, RunKind::Drift, RunKind::Destroy] {
        let attempted = world.record().attempted;
        let ran = world.run(kind);
        ran.expect_failure(FailureClass::User, "StateLost")
            .clone_into(&mut message);
        assert!(!started.exists(), "{kind}: {}", ran.logs());
        assert_eq!(world.record().attempted, attempted);
    }
    std::fs::remove_file(world.path("bin/terraform")).unwrap();
    message
}

/// Instructions in the failure message for starting with an empty state.
const WAY_OUT: &str = "(1) save the Secrets, which may contain an earlier version of the state: \
    `kubectl get secrets -n team -l alustan.io/terraform=web -o json >web.json`; (2) `kubectl \
    annotate tf web -n team alustan.io/abandon=true`; (3) delete the resource; (4) `kubectl delete \
    secrets -n team -l alustan.io/terraform=web,app.kubernetes.io/component=state`; (5) create the \
    resource again";

#[test]
fn lost_state_is_not_treated_as_empty() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.secrets.remove("web-state");
    let message = fails_as_lost(&mut world);
    for part in ["web-state", "Nothing was changed", "backup", WAY_OUT] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    // The controller creates an empty pointer Secret for a new resource.
    world.secrets.put("web-state", []);
    let report = world.run(RunKind::Apply);
    let changes = report.expect(RunResult::Done).changes.clone();
    assert_eq!(changes.unwrap().add, 1);
}

#[test]
fn restored_state_belongs_to_the_resource() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    let state = world.secrets.get("web-state").unwrap().data;
    world.secrets.remove("web-state");
    fails_as_lost(&mut world);
    let keys = ["pointer", "data"];
    world
        .secrets
        .put("web-state", keys.map(|key| (key, state[key].clone())));
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert!(ran.stdout.contains("1 destroyed"), "{}", ran.logs());
}

#[test]
fn state_with_a_missing_slot_is_lost() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    // The first version is in the pointer Secret. The second is in a slot.
    world.write_module("main.tf", "resource \"terraform_data\" \"b\" {}\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    let slot = world.pointer().current.unwrap().slots[0].clone();
    assert_eq!(slot, "web-state-slot-0");
    // The controller recreates a missing slot as an empty Secret.
    world.secrets.put(&slot, []);
    let message = fails_as_lost(&mut world);
    assert!(
        message.contains(&slot) && message.contains(WAY_OUT),
        "{message}"
    );
    world.secrets.remove(&slot);
    fails_as_lost(&mut world);
}
