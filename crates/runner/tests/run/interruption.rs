use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{RunKind, RunPhase};

use crate::world::{Gate, World};

/// Module in which `a` is created at once and the creation of `b` is blocked by `gate`.
fn module(world: &World, gate: &Gate) -> String {
    format!(
        r#"
        resource "terraform_data" "a" {{
          provisioner "local-exec" {{ command = "echo a >> {}" }}
        }}
        resource "terraform_data" "b" {{
          depends_on = [terraform_data.a]
          provisioner "local-exec" {{ command = "cat {}" }}
        }}
        "#,
        world.path("count").display(),
        gate.path().display()
    )
}

/// Puts a shell script `terraform` into the PATH. The script executes the engine as a child process and logs the exit code of the engine.
fn wrap(world: &World) {
    let engine = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join("terraform"))
        .find(|path| path.is_file())
        .unwrap();
    let log = world.path("wrapper").display().to_string();
    world.program(
        "terraform",
        &format!(
            "#!/bin/bash\n{} \"$@\"\ncode=$?\necho \"$1 $code\" >> {log}\nexit $code\n",
            engine.display()
        ),
    );
}

#[test]
fn an_engine_behind_a_shell_gets_one_sigint_and_saves_its_state() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    world.write_module("main.tf", &module(&world, &gate));
    wrap(&world);
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    pod.terminate();
    pod.terminate();
    let ran = world.finish(pod);
    drop(waiting);
    ran.expect_failure(FailureClass::Transient, "Interrupted");
    let log = ran.logs();
    assert_eq!(log.matches("Interrupt received").count(), 1, "{log}");
    assert!(!log.contains("Two interrupts received"), "{log}");
    assert!(
        world.read("wrapper").contains("apply 1\n"),
        "the shell did not see the engine end"
    );
    assert!(world.record().lock.is_none(), "the lock is held");
    assert!(world.pointer().current.unwrap().serial.unwrap_or_default() > 0);

    // The interrupted apply saved its state: the next run does not create `a` again.
    let free = module(&world, &gate).replace(&format!("cat {}", gate.path().display()), "true");
    world.write_module("main.tf", &free);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.read("count"), "a\n");
}

#[test]
fn run_stopped_before_apply_changes_nothing() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    world.inputs.scripts.plan = Some(format!("cat {}; exit 2", gate.path().display()));
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    pod.terminate();
    let ran = world.finish(pod);
    drop(waiting);
    ran.expect_failure(FailureClass::Transient, "Interrupted");
    assert_eq!(world.record().attempted, 0);
    assert_eq!(world.record().phase, RunPhase::Reported);
}

#[test]
fn run_cancelled_and_stopped_is_reported_as_cancelled() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    world.inputs.scripts.plan = Some(format!("cat {}; exit 2", gate.path().display()));
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    world.cancel();
    pod.terminate();
    world.finish(pod).expect(RunResult::Cancelled);
    drop(waiting);
}

#[test]
fn apply_timeout_interrupts_the_engine_and_saves_state() {
    let mut world = World::new("");
    let gate = world.gate("gate");
    world.write_module("main.tf", &module(&world, &gate));
    world.inputs.timeouts.apply = 2;
    world.start(RunKind::Apply);
    let pod = world.pod();
    let waiting = gate.wait();
    let ran = world.finish(pod);
    drop(waiting);
    ran.expect_failure(FailureClass::Module, "TimedOut");
    assert_eq!(
        ran.logs().matches("Interrupt received").count(),
        1,
        "{}",
        ran.logs()
    );
    assert!(world.pointer().current.is_some());
    assert!(world.record().lock.is_none());
}
