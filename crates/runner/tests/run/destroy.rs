use alustan_api::report::RunResult;
use alustan_api::run::RunKind;

use crate::world::World;

#[test]
fn destroy_removes_all_objects() {
    let mut world = World::new("");
    world.write_module("main.tf", &format!(
        "resource \"terraform_data\" \"a\" {{\n  input = \"{0}\"\n  provisioner \"local-exec\" {{\n    when = destroy\n    command = \"echo gone >> ${{self.output}}\"\n  }}\n}}\n",
        world.path("count").display()
    ));
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.run(RunKind::Destroy).expect(RunResult::Done);
    assert_eq!(world.read("count"), "gone\n");
    assert!(world.record().lock.is_none());
    world.run(RunKind::Destroy).expect(RunResult::Done);
    assert_eq!(world.read("count"), "gone\n");
}

#[test]
fn destroy_without_state_succeeds() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert!(
        ran.stderr.contains("no state exists; nothing to destroy"),
        "{}",
        ran.logs()
    );
}

#[test]
fn destroy_of_an_empty_state_succeeds() {
    let mut world = World::with_local_backend("resource \"terraform_data\" \"a\" {}\n");
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert!(
        ran.stdout.contains("Destroy complete!")
            || ran.stdout.contains("No objects need to be destroyed"),
        "{}",
        ran.logs()
    );
}

#[test]
fn number_of_last_apply_is_kept_after_destroy() {
    let mut world = World::new("resource \"terraform_data\" \"a\" {}\n");
    world.run(RunKind::Drift).expect(RunResult::Changes);
    assert_eq!(world.record().attempted, 0, "a drift check is no apply");
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert_eq!(world.record().attempted, 2, "the last one changed nothing");
    world.run(RunKind::Destroy).expect(RunResult::Done);
    let record = world.record();
    assert_eq!((record.number, record.attempted), (4, 2));
}

#[test]
fn destroy_uses_and_redacts_environment_of_deleted_secret() {
    let mut world = World::new("");
    world.inputs.scripts.destroy =
        Some("echo as $USER_OF_DB on $PLACE; terraform destroy -auto-approve".into());
    world.write_module("main.tf", &format!(
        "resource \"terraform_data\" \"a\" {{\n  provisioner \"local-exec\" {{\n    when = destroy\n    command = \"echo $USER_OF_DB >> {}\"\n  }}\n}}\n",
        world.path("seen").display()
    ));
    world.run(RunKind::Apply).expect(RunResult::Done);
    let given = [
        ("USER_OF_DB", "alice-of-the-base"),
        ("PLACE", "north-of-the-lake"),
        ("ALUSTAN_WORK_DIR", "/nowhere"),
    ];
    world
        .inputs
        .environment
        .extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
    // The variable `PLACE` is set in the pod and in the inputs of the run. The value from the inputs takes precedence.
    world.vars.insert("PLACE".into(), "south".into());
    let ran = world.run(RunKind::Destroy);
    ran.expect(RunResult::Done);
    assert_eq!(world.read("seen"), "alice-of-the-base\n");
    assert!(
        ran.stdout.contains("as (redacted) on (redacted)"),
        "{}",
        ran.logs()
    );
    assert!(!ran.logs().contains("alice-of-the-base"), "{}", ran.logs());
}
