//! Ownership of a state: a run does not change a state that belongs to another owner until the resource adopts the state.

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{Lineage, RunKind, RunRecord, key};
use serde_json::{Value, json};

use crate::s3::Bucket;
use crate::world::{RECORD, World};

const MODULE: &str = "resource \"terraform_data\" \"a\" { input = \"x\" }\n";
const OTHER: &str = "resource \"terraform_data\" \"b\" { input = \"x\" }\n";

const ADOPT: &str = "set spec.backend.adopt: true to adopt this state; the first plan then waits \
                     for approval: kubectl patch tf web -n team --type merge -p \
                     '{\"spec\":{\"backend\":{\"adopt\":true}}}'";

fn worlds() -> [World; 2] {
    [World::new(MODULE), World::with_local_backend(MODULE)]
}

fn lineage_of(world: &World) -> String {
    if let Some(version) = world.pointer().current {
        return version.lineage.unwrap();
    }
    let state: Value = serde_json::from_str(&world.read("local.tfstate")).unwrap();
    state["lineage"].as_str().unwrap().to_owned()
}

/// Returns a test environment whose backend contains a state of another owner.
fn occupied(mut world: World) -> World {
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.forget_record();
    world
}

#[test]
fn state_of_another_owner_is_not_changed() {
    for world in worlds() {
        let mut world = occupied(world);
        let lineage = lineage_of(&world);
        world.write_module("main.tf", OTHER);
        for kind in [
            RunKind::Apply,
            RunKind::Plan,
            RunKind::Drift,
            RunKind::Destroy,
        ] {
            let ran = world.run(kind);
            let message = ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
            let way_out = match kind {
                RunKind::Destroy => "spec.deletionPolicy: Orphan",
                _ => ADOPT,
            };
            for part in [&lineage, "and 1 resources and outputs", way_out] {
                assert!(message.contains(part), "no {part:?} in {message}");
            }
            assert!(!ran.stdout.contains("Plan:"), "{}", ran.logs());
        }
        let record = world.record();
        assert_eq!((record.attempted, record.lineage), (0, Lineage::Unknown));
        // A destroy plan does not adopt the state.
        world.inputs.approval.destroy = true;
        let ran = world.run(RunKind::Plan);
        let message = ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
        assert!(
            message.ends_with("spec.deletionPolicy: Orphan") && !message.contains("adopt"),
            "{message}"
        );
        world.inputs.approval.destroy = false;
        // A destroy with `adopt` does not adopt the state either: the resource has created no objects that the destroy could delete.
        world.inputs.adopt = true;
        let ran = world.run(RunKind::Destroy);
        ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
    }
}

#[test]
fn state_is_adopted_after_its_first_plan_is_approved() {
    for world in worlds() {
        let mut world = occupied(world);
        let lineage = lineage_of(&world);
        world.write_module("main.tf", OTHER);
        world.inputs.adopt = true;
        world.run(RunKind::Drift).expect(RunResult::Changes);
        let ran = world.run(RunKind::Apply);
        let report = ran.expect(RunResult::Changes).clone();
        let because = &report.asks.as_ref().unwrap().because;
        assert_eq!(
            because[..],
            ["the plan adopts a state that this resource did not create"]
        );
        assert_eq!(world.record().lineage, Lineage::Unknown);
        world.approve(&report);
        let ran = world.run(RunKind::Apply);
        let done = ran.expect(RunResult::Done);
        assert_eq!(done.lineage.as_ref(), Some(&lineage));
        assert_eq!(world.record().lineage, Lineage::Of(lineage));
        // After the adoption, the state belongs to the resource, and its plans need no approval.
        world.inputs.approval.approved = None;
        world.write_module("main.tf", MODULE);
        world.run(RunKind::Apply).expect(RunResult::Done);
        world.run(RunKind::Destroy).expect(RunResult::Done);
    }
}

#[test]
fn state_without_changes_is_adopted_without_approval() {
    for world in worlds() {
        let mut world = occupied(world);
        world.inputs.adopt = true;
        world.run(RunKind::Drift).expect(RunResult::NoChanges);
        world.run(RunKind::Apply).expect(RunResult::NoChanges);
        let lineage = lineage_of(&world);
        assert_eq!(world.record().lineage, Lineage::Of(lineage));
    }
}

#[test]
fn state_created_by_the_first_run_belongs_to_the_resource() {
    let mut world = World::with_local_backend(MODULE);
    world.watch_engine();
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    let first = [
        "apply",
        "init",
        "output",
        "plan",
        "show -json",
        "state pull",
        "state pull",
    ];
    assert_eq!(world.engine_calls(), first);
    assert_eq!(ran.report.unwrap().lineage, Some(lineage_of(&world)));
    assert_eq!(world.record().lineage, Lineage::Of(lineage_of(&world)));
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert_eq!(world.engine_calls(), ["init", "output", "plan"]);

    // After a change of the state address, the run checks the owner again: the state at the new address belongs to another resource.
    let mut other = occupied(World::with_local_backend(MODULE));
    let elsewhere = world.inputs.backend.config["path"].clone();
    std::fs::remove_file(other.path("local.tfstate")).unwrap();
    other.run(RunKind::Apply).expect(RunResult::Done);
    other.run(RunKind::Apply).expect(RunResult::NoChanges);
    other.inputs.backend.config.insert("path".into(), elsewhere);
    let ran = other.run(RunKind::Apply);
    ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
}

#[test]
fn replaced_managed_state_is_refused() {
    let mut world = World::new(MODULE);
    let report = world.run(RunKind::Apply).report.unwrap();
    assert_eq!(report.lineage, Some(lineage_of(&world)));
    assert_eq!(world.record().lineage, Lineage::Of(lineage_of(&world)));
    let mut other = World::new(MODULE);
    other.run(RunKind::Apply).expect(RunResult::Done);
    for secret in ["web-state", "web-state-slot-0"] {
        let data = other.secrets.get(secret).unwrap().data;
        let data = ["pointer", "data"]
            .into_iter()
            .filter_map(|key| Some((key, data.get(key)?.clone())));
        world.secrets.put(secret, data);
    }
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
    let ours = report.lineage.unwrap();
    assert!(
        message.contains(&lineage_of(&world))
            && message.contains(&format!("the state of this resource has lineage {ours}")),
        "{message}"
    );
}

#[test]
fn replaced_state_in_other_backends_is_refused() {
    let bucket = Bucket::serve();
    let mut in_s3 = World::new(MODULE);
    in_s3.inputs.backend.kind = Some("s3".into());
    in_s3.inputs.backend.managed = None;
    in_s3.inputs.backend.config = bucket.config();
    for mut world in [World::with_local_backend(MODULE), in_s3] {
        let report = world.run(RunKind::Apply).report.unwrap();
        let ours = report.lineage.unwrap();
        assert_eq!(world.record().lineage, Lineage::Of(ours.clone()));
        let other = json!({"version": 4, "serial": 9, "lineage": "of-others",
            "outputs": {"x": {"value": 1, "type": "number"}}, "resources": []});
        std::fs::write(world.path("local.tfstate"), other.to_string()).unwrap();
        if bucket.has("team/web.tfstate") {
            bucket.put("team/web.tfstate", &other);
        }
        for kind in [
            RunKind::Drift,
            RunKind::Plan,
            RunKind::Apply,
            RunKind::Destroy,
        ] {
            let ran = world.run(kind);
            let message = ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
            let whose = format!("the state of this resource has lineage {ours}");
            assert!(
                message.contains("of-others") && message.contains(&whose),
                "{message}"
            );
        }
        let record = world.record();
        assert_eq!((record.attempted, record.begun), (1, 1));
    }
}

#[test]
fn state_that_appears_after_a_failed_apply_is_refused() {
    for mut world in worlds() {
        world.before_engine("apply", "exit 1");
        let ran = world.run(RunKind::Apply);
        ran.expect_failure(FailureClass::Module, "ApplyFailed");
        assert_eq!(world.record().lineage, Lineage::Unknown);
        assert_eq!(world.record().attempted, 1);
    }
    let mut world = World::with_local_backend(MODULE);
    world.before_engine("apply", "exit 1");
    world.run(RunKind::Apply).expect(RunResult::Failed);
    world.watch_engine();
    let mut other = World::with_local_backend(MODULE);
    other.run(RunKind::Apply).expect(RunResult::Done);
    std::fs::copy(other.path("local.tfstate"), world.path("local.tfstate")).unwrap();
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
}

#[test]
fn state_is_owned_after_record_loss_if_an_apply_is_proven() {
    let lose = |world: &World| {
        let record = RunRecord {
            attempted: 1,
            lineage: Lineage::Lost,
            ..RunRecord::default()
        };
        let record = serde_json::to_vec(&record).unwrap();
        world.secrets.put(RECORD, [(key::RECORD, record)]);
    };
    for (world, is_managed) in worlds().into_iter().zip([true, false]) {
        let mut world = occupied(world);
        lose(&world);
        let ran = world.run(RunKind::Apply);
        if !is_managed {
            let message = ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
            let why = "the owner of the state is unknown because the run record was deleted";
            assert!(message.contains(why), "{message}");
            assert_eq!(world.record().lineage, Lineage::Lost);
            world.inputs.applied_before = true;
            world.run(RunKind::Apply).expect(RunResult::NoChanges);
        }
        let lineage = lineage_of(&world);
        assert_eq!(world.record().lineage, Lineage::Of(lineage));
    }
}

#[test]
fn attempted_apply_alone_does_not_prove_ownership() {
    for world in worlds() {
        let mut world = occupied(world);
        world.start(RunKind::Apply);
        let mut record = world.record();
        record.attempted = 1;
        world.write_record(&record);
        let ran = world.finish(world.pod());
        ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
    }
}

#[test]
fn ownership_of_a_script_only_state_is_not_checked() {
    let mut world = World::new("");
    world.inputs.backend.managed = None;
    world.inputs.backend.kind = None;
    world.inputs.backend.write_block = false;
    world.inputs.scripts.init = Some("true".into());
    world.inputs.scripts.plan = Some("exit 2".into());
    world.inputs.scripts.apply = Some("echo '{}' > $ALUSTAN_OUTPUTS_FILE".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.record().lineage, Lineage::New);
}
