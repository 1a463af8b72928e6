//! Plans that need approval: only an approved plan is applied.

use alustan_api::report::{FailureClass, RunReport, RunResult};
use alustan_api::run::{RunKind, RunPhase};
use alustan_api::{ApprovalRule, RuleAction};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::world::{Ran, World, text, until};

/// Module that counts its applies in a file.
fn counter(world: &World) -> String {
    format!(
        r#"
        variable "name" {{ default = "none" }}
        resource "terraform_data" "a" {{
          triggers_replace = var.name
          provisioner "local-exec" {{ command = "echo applied >> {0}" }}
          provisioner "local-exec" {{
            when    = destroy
            command = "echo destroyed >> {0}"
          }}
        }}
        output "name" {{ value = var.name }}
        "#,
        "COUNT"
    )
    .replace("COUNT", &world.path("count").display().to_string())
}

fn world() -> World {
    let world = World::new("");
    world.write_module("main.tf", &counter(&world));
    world.secrets.put("web-plan", []);
    world
}

/// Returns a test environment with manual approval.
fn manual() -> World {
    let mut world = world();
    world.inputs.approval.manual = true;
    world.inputs.plan_secret = Some("web-plan".into());
    world
}

fn rule(when: &str, then: RuleAction) -> ApprovalRule {
    ApprovalRule {
        when: when.into(),
        then,
    }
}

fn set_name(world: &mut World, name: &str) {
    world.inputs.variables.insert("name".into(), json!(name));
}

fn plan_text(world: &World, key: &str) -> String {
    let data = world.secrets.get("web-plan").unwrap().data;
    let value = data.get(key).cloned().unwrap_or_default();
    String::from_utf8(value).unwrap()
}

/// Asserts that the plan of the run waits for approval. Returns the plan id.
#[track_caller]
fn expect_pending(ran: &Ran) -> String {
    let asks = ran.expect(RunResult::Changes).asks.clone().unwrap();
    assert!(asks.id.len() == 16 && asks.id.chars().all(|c| c.is_ascii_hexdigit()));
    asks.id
}

/// Runs a plan and approves it.
fn approved(world: &mut World) -> RunReport {
    let ran = world.run(RunKind::Plan);
    expect_pending(&ran);
    let report = ran.report.unwrap();
    world.approve(&report);
    report
}

#[test]
fn plan_waits_for_approval_and_is_applied_unchanged() {
    let mut world = manual();
    set_name(&mut world, "first");
    let ran = world.run(RunKind::Plan);
    let id = expect_pending(&ran);
    let report = ran.report.unwrap();
    assert_eq!(report.changes.as_ref().unwrap().add, 1);
    assert_eq!(report.asks.as_ref().unwrap().because, Vec::<String>::new());
    assert_eq!(world.record().attempted, 0);
    assert_eq!(plan_text(&world, "id"), id);
    let text_for_people = plan_text(&world, "plan.txt");
    assert!(
        text_for_people.contains("# terraform_data.a will be created")
            && !text_for_people.contains('\u{1b}'),
        "{text_for_people}"
    );

    world.approve(&report);
    world.watch_engine();
    let ran = world.run(RunKind::Apply);
    let done = ran.expect(RunResult::Done);
    assert_eq!(
        done.changes.as_ref().unwrap().digest,
        report.changes.unwrap().digest
    );
    assert_eq!(world.engine_calls(), ["apply", "init", "show -json"]);
    assert_eq!(world.read("count"), "applied\n");
    assert_eq!(text(&world.outputs().unwrap(), "name"), "first");
    assert_eq!((world.record().attempted, world.record().begun), (2, 2));

    world.inputs.approval.approved = None;
    let ran = world.run(RunKind::Plan);
    assert!(ran.expect(RunResult::NoChanges).asks.is_none());
    assert_eq!(text(&world.outputs().unwrap(), "name"), "first");
}

#[test]
fn approval_is_valid_for_one_apply() {
    let mut world = manual();
    let broken = counter(&world).replace("echo applied", "exit 3; echo applied");
    world.write_module("main.tf", &broken);
    let first = approved(&mut world);
    // The apply of the approved plan fails before it writes a state. An approval is valid for one apply, so the next apply waits for approval.
    world
        .run(RunKind::Apply)
        .expect_failure(FailureClass::Module, "ApplyFailed");
    world.write_module("main.tf", &counter(&world));
    let ran = world.run(RunKind::Apply);
    assert_ne!(expect_pending(&ran), first.asks.unwrap().id);
    assert_eq!(world.read("count"), "");
    assert!(ran.stderr.contains("not applying plan"), "{}", ran.logs());
    world.approve(&ran.report.unwrap());
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.read("count"), "applied\n");
}

#[test]
fn approval_from_before_a_restore_applies_nothing() {
    let mut world = manual();
    let before = approved(&mut world).asks.unwrap();
    world.inputs.approval.restored = Some(Timestamp::now());
    let ran = world.run(RunKind::Apply);
    assert_ne!(expect_pending(&ran), before.id);
    assert!(ran.stderr.contains("not applying plan"), "{}", ran.logs());
    world.approve(&ran.report.unwrap());
    world.run(RunKind::Apply).expect(RunResult::Done);
}

#[test]
fn lost_plan_is_recreated_and_applied_if_unchanged() {
    for stored in [None, Some("no plan")] {
        let mut world = manual();
        let report = approved(&mut world);
        let file = world.path(&format!("cache/plans/{}.plan", report.number));
        match stored {
            None => std::fs::remove_file(file).unwrap(),
            Some(text) => std::fs::write(file, text).unwrap(),
        }
        let ran = world.run(RunKind::Apply);
        ran.expect(RunResult::Done);
        assert!(
            ran.stderr
                .contains("is not on the cache volume; planning again"),
            "{}",
            ran.logs()
        );
        assert_eq!(world.read("count"), "applied\n");
    }
}

/// Change of the test environment between the approval and the apply of a plan.
type Edit = fn(&mut World);

#[test]
fn only_the_approved_plan_is_applied() {
    let edits: [(&str, Edit); 4] = [
        ("a value", |world| set_name(world, "other")),
        ("a commit of the module", |world| {
            world.context = Some("another".into());
        }),
        ("the state", |world| {
            let lineage = world.pointer().current.unwrap().lineage.unwrap();
            let state = json!({"version": 4, "serial": 90, "lineage": lineage, "outputs": {}, "resources": []});
            world.keep_unsaved(&state.to_string());
        }),
        ("the module and no word of it", |world| {
            std::fs::remove_dir_all(world.path("cache/plans")).unwrap();
            let more = format!(
                "{}\nresource \"terraform_data\" \"b\" {{}}\n",
                counter(world)
            );
            world.write_module("main.tf", &more);
        }),
    ];
    for (what, edit) in edits {
        let mut world = manual();
        world.inputs.approval.manual = false;
        set_name(&mut world, "before");
        world.run(RunKind::Apply).expect(RunResult::Done);
        world.inputs.approval.manual = true;
        set_name(&mut world, "after");
        let first = approved(&mut world);
        edit(&mut world);
        let ran = world.run(RunKind::Apply);
        let id = expect_pending(&ran);
        assert_ne!(id, first.asks.unwrap().id, "{what}");
        assert_eq!(world.read("count"), "applied\n", "{what}: {}", ran.logs());
        let report = ran.report.unwrap();
        assert_eq!(world.record().attempted, 1, "{what}");
        world.approve(&report);
        world.run(RunKind::Apply).expect(RunResult::Done);
        assert!(world.read("count").ends_with("applied\n"), "{what}");
    }
}

#[test]
fn without_an_approval_nothing_is_applied() {
    let mut world = manual();
    let first = expect_pending(&world.run(RunKind::Apply));
    let second = expect_pending(&world.run(RunKind::Apply));
    assert_eq!(first, second, "the same plan has two ids");
    assert_eq!(world.read("count"), "");
    let record = world.record();
    assert_eq!((record.attempted, record.phase), (0, RunPhase::Reported));
    assert!(world.pointer().current.is_none());
}

#[test]
fn matching_rule_requires_approval() {
    let mut world = world();
    world.inputs.approval.rules = vec![
        rule("plan.destroy > 0", RuleAction::Ask),
        rule(
            "plan.resources.exists(r, r.type == 'aws_db_instance')",
            RuleAction::Deny,
        ),
    ];
    set_name(&mut world, "first");
    world.run(RunKind::Apply).expect(RunResult::Done);
    set_name(&mut world, "second");
    let ran = world.run(RunKind::Apply);
    expect_pending(&ran);
    let report = ran.report.unwrap();
    assert_eq!(
        report.asks.as_ref().unwrap().because,
        ["spec.approval.rules[0]: plan.destroy > 0"]
    );
    assert_eq!(world.read("count"), "applied\n");
    world.approve(&report);
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(world.read("count"), "applied\ndestroyed\napplied\n");
}

#[test]
fn rule_with_evaluation_error_requires_approval() {
    let mut world = world();
    world.inputs.approval.rules = vec![rule("plan.resources[5].nope", RuleAction::Ask)];
    let ran = world.run(RunKind::Apply);
    expect_pending(&ran);
    let because = &ran.report.unwrap().asks.unwrap().because[0];
    assert!(
        because.starts_with("spec.approval.rules[0] cannot be evaluated ("),
        "{because}"
    );
}

#[test]
fn slow_rule_does_not_delay_pod_termination() {
    let mut world = world();
    // The slowest expression within the limits of length and depth: 48,400 comparisons.
    let digits = format!("[{}]", ["0"; 220].join(","));
    let when = format!("{digits}.all(x, {digits}.all(y, x + y + x + y < 1))");
    world.inputs.approval.rules = vec![rule(&when, RuleAction::Ask)];
    world.watch_engine();
    world.start(RunKind::Apply);
    let pod = world.pod();
    // No engine process runs after `show -json`, while the runner evaluates the approval rule, which takes a long time.
    until("the plan is read", || {
        world.read("calls").contains("show -json") && !pod.has_children()
    });
    pod.terminate();
    let ran = world.finish(pod);
    ran.expect_failure(FailureClass::Transient, "Interrupted");
    assert_eq!(world.record().attempted, 0);
}

#[test]
fn deny_rule_overrides_an_approval() {
    let mut world = manual();
    world.inputs.approval.manual = false;
    set_name(&mut world, "first");
    world.run(RunKind::Apply).expect(RunResult::Done);
    set_name(&mut world, "second");
    world.inputs.approval.manual = true;
    approved(&mut world);
    let deny = rule(
        "plan.resources.exists(r, r.action in ['delete', 'replace'])",
        RuleAction::Deny,
    );
    world.inputs.approval.rules = vec![rule("true", RuleAction::Ask), deny];
    for kind in [RunKind::Apply, RunKind::Plan] {
        let ran = world.run(kind);
        let message = ran.expect_failure(FailureClass::User, "PlanDenied");
        for part in [
            "spec.approval.rules[1]: plan.resources.exists(",
            "would replace terraform_data.a. Nothing was applied",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(ran.report.unwrap().changes.unwrap().destroy, 1);
    }
    assert_eq!(world.read("count"), "applied\n");
    assert_eq!(world.record().attempted, 1);
    // A deny rule does not prevent a destroy.
    world.inputs.approval.manual = false;
    world.run(RunKind::Destroy).expect(RunResult::Done);
    assert_eq!(world.read("count"), "applied\ndestroyed\n");
}

#[test]
fn destroy_waits_for_approval() {
    let mut world = manual();
    world.inputs.approval.manual = false;
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.inputs.approval.manual = true;
    world.inputs.approval.destroy = true;
    let unapproved = world.run(RunKind::Destroy);
    let id = expect_pending(&unapproved);
    assert_eq!(world.read("count"), "applied\n");
    let ran = world.run(RunKind::Plan);
    assert_eq!(expect_pending(&ran), id, "one plan has two ids");
    let report = ran.report.unwrap();
    let changes = report.changes.clone().unwrap();
    assert_eq!((changes.add, changes.destroy), (0, 1));
    assert!(plan_text(&world, "plan.txt").contains("# terraform_data.a will be destroyed"));

    world.approve(&report);
    world.watch_engine();
    world.run(RunKind::Destroy).expect(RunResult::Done);
    assert_eq!(world.engine_calls(), ["apply", "init", "show -json"]);
    assert_eq!(world.read("count"), "applied\ndestroyed\n");
    let record = world.record();
    assert_eq!((record.attempted, record.begun), (1, 4));

    world.inputs.approval.approved = None;
    world.run(RunKind::Plan).expect(RunResult::NoChanges);
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn failed_destroy_needs_another_approval() {
    let mut world = manual();
    world.inputs.approval.manual = false;
    let stuck = counter(&world).replace("echo destroyed", "exit 3; echo destroyed");
    world.write_module("main.tf", &stuck);
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.inputs.approval.manual = true;
    world.inputs.approval.destroy = true;
    let first = approved(&mut world);
    world
        .run(RunKind::Destroy)
        .expect_failure(FailureClass::Module, "DestroyFailed");
    let again = expect_pending(&world.run(RunKind::Destroy));
    assert_ne!(again, first.asks.unwrap().id);
}

#[test]
fn scripts_apply_only_the_approved_plan_file() {
    let mut world = manual();
    world.inputs.scripts.plan = Some(
        "terraform plan -out=$ALUSTAN_PLAN_FILE -detailed-exitcode && code=0 || code=$?; exit $code".into(),
    );
    world.inputs.scripts.apply = Some("echo own apply; terraform apply $ALUSTAN_PLAN_FILE".into());
    let report = approved(&mut world);
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::Done);
    assert!(
        ran.stdout.contains("own apply") && !ran.stdout.contains("Terraform will perform"),
        "{}",
        ran.logs()
    );
    assert_eq!(world.read("count"), "applied\n");

    // If the plan script creates no plan file, the run fails: an apply would otherwise apply changes that were not reviewed.
    world.inputs.scripts.plan = Some("exit 2".into());
    for kind in [RunKind::Plan, RunKind::Apply] {
        world
            .run(kind)
            .expect_failure(FailureClass::User, "NoPlanFile");
    }
    world.inputs.scripts.plan = None;
    let message = world.run(RunKind::Apply);
    let message = message.expect_failure(FailureClass::User, "NoPlanFile");
    assert!(
        message.starts_with("scripts.apply creates no plan"),
        "{message}"
    );
    world.inputs.scripts.destroy = Some("terraform destroy -auto-approve".into());
    world.approve(&report);
    let message = world.run(RunKind::Destroy);
    let message = message.expect_failure(FailureClass::User, "NoPlanFile");
    assert!(
        message.starts_with("scripts.destroy creates no plan"),
        "{message}"
    );
    assert_eq!(world.read("count"), "applied\n");
}

#[test]
fn plan_text_is_redacted_and_its_secret_is_optional() {
    let mut world = manual();
    world.write_module(
        "main.tf",
        "variable \"token\" { sensitive = true }\n\
         resource \"terraform_data\" \"a\" { input = nonsensitive(var.token) }\n",
    );
    world
        .inputs
        .variables
        .insert("token".into(), json!("hunter22-long"));
    expect_pending(&world.run(RunKind::Plan));
    let shown = plan_text(&world, "plan.txt");
    assert!(
        shown.contains("(redacted)") && !shown.contains("hunter22-long"),
        "{shown}"
    );
    world.secrets.remove("web-plan");
    let ran = world.run(RunKind::Plan);
    expect_pending(&ran);
    let message = "failed to publish the plan in Secret web-plan: Secret web-plan does not exist";
    assert!(ran.stderr.contains(message), "{}", ran.logs());
}

#[test]
fn run_without_approval_calls_no_extra_engine_commands() {
    let mut world = world();
    world.watch_engine();
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(
        world.engine_calls(),
        ["apply", "init", "plan", "show -json"]
    );
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert_eq!(world.engine_calls(), ["init", "plan"]);
    assert!(!world.secrets.writes().contains(&"web-plan".to_owned()));
}
