//! Status fields and conditions, as shown by `kubectl get` and `kubectl describe`, that no other test module covers.

use alustan_api::change_set::{ChangeSet, ResourceChange};
use alustan_api::report::{FailureClass, Undeclared};
use alustan_api::run::StateLock;
use alustan_api::{InventoryStatus, Reason, State};
use alustan_core::model::image::ImageSeen;
use alustan_core::model::summary::differences;
use alustan_core::observed::{Answer, OwnJob};
use alustan_core::status::render::with_failure;
use k8s_openapi::jiff::Timestamp;
use rstest::rstest;

use super::step_names;
use crate::fixtures::{self, Edit as _, at, failure};
use crate::world::{PodEvent, Stage, World, condition};

#[rstest]
#[case::not_deleted(fixtures::terraform(), State::Success, State::Failed)]
#[case::deleted(fixtures::terraform().deleted(at(0)), State::Success, State::Destroying)]
#[case::destroying(fixtures::terraform(), State::Destroying, State::Destroying)]
fn failed_api_call_is_reported_with_its_reason(
    #[case] tf: alustan_api::Terraform,
    #[case] before: State,
    #[case] after: State,
) {
    let status = alustan_api::TerraformStatus {
        state: before,
        run: Some(7),
        ..alustan_api::TerraformStatus::default()
    };
    let status = with_failure(
        &tf,
        status,
        Reason::ApiUnavailable,
        "read Secret x: timeout",
        at(5),
    );
    assert_eq!((status.state, status.run), (after, Some(7)));
    assert_eq!(status.observed_generation, tf.metadata.generation);
    assert_eq!(status.message, "read Secret x: timeout");
    for (kind, wanted) in [
        ("Ready", "False"),
        ("Reconciling", "True"),
        ("Stalled", "False"),
    ] {
        assert_eq!(condition(&status, kind), wanted, "{kind}");
    }
    assert!(
        status
            .conditions
            .iter()
            .all(|condition| condition.reason == "ApiUnavailable")
    );
    assert!(
        status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.message == status.message)
    );
}

#[test]
fn only_condition_ready_has_the_failure_message() {
    let mut world = World::new();
    world.fail_at(Stage::Applying, FailureClass::User);
    assert!(world.is_stalled());
    let stalled = world.status();
    let building = World::until(|world| world.status().state == State::Building).status();
    for (status, kind) in [(stalled, "Stalled"), (building, "Reconciling")] {
        let conditions = &status.conditions;
        let of_kind = |kind: &str| {
            conditions
                .iter()
                .find(|condition| condition.type_ == kind)
                .unwrap()
        };
        assert_eq!(of_kind("Ready").message, status.message);
        assert_eq!(of_kind(kind).status, "True");
        assert_eq!(of_kind(kind).message, "see condition Ready");
        assert_eq!(of_kind(kind).reason, of_kind("Ready").reason);
    }
}

#[test]
fn failed_build_sets_image_ready_false() {
    let mut world = World::until(|world| !world.builds.is_empty());
    world.advance_builds(Some(FailureClass::Module));
    world.reconcile();
    let conditions = world.status().conditions;
    let image = conditions
        .iter()
        .find(|condition| condition.type_ == "ImageReady")
        .unwrap();
    assert_eq!(image.status, "False");
    assert!(
        !image.message.is_empty() && image.reason != "Unknown",
        "{image:?}"
    );
}

#[test]
fn unreachable_registry_sets_image_ready_false() {
    let mut world = World::new();
    world.registry_up = false;
    world.settle();
    let conditions = world.status().conditions;
    let image = conditions
        .iter()
        .find(|condition| condition.type_ == "ImageReady")
        .unwrap();
    assert_eq!(
        (image.status.as_str(), image.reason.as_str()),
        ("False", "RegistryUnreachable")
    );
    // The registry becomes unreachable after the operator has resolved the base image.
    let mut world = World::applied();
    world.registry_up = false;
    world.commit(1).settle();
    assert_eq!(condition(&world.status(), "ImageReady"), "False");
}

#[test]
fn state_lock_is_shown_until_it_is_released() {
    let mut world = World::new();
    world.run_to(Stage::Planning);
    world.advance_pod(0, PodEvent::Fail(FailureClass::Transient));
    let lock = StateLock {
        id: "6f".to_owned(),
        operation: "OperationTypeApply".to_owned(),
        who: "bob@laptop".to_owned(),
        at: Timestamp::UNIX_EPOCH,
    };
    let report = world.record.as_mut().unwrap().report.as_mut().unwrap();
    report.lock = Some(lock);
    world.reconcile();
    let shown = world.status().lock.unwrap();
    assert_eq!(
        (shown.id.as_str(), shown.who.as_str()),
        ("6f", "bob@laptop")
    );
    world.run_until_converged();
    assert!(world.is_ready());
    assert_eq!(world.status().lock, None);
}

#[test]
fn runs_are_numbered_in_status() {
    let mut world = World::applied();
    for size in 1..4 {
        world.edit(|tf| tf.with_variable("size", size));
        world.settle();
        assert_eq!(world.status().run, Some(1 + size));
    }
}

#[test]
fn old_jobs_are_deleted_during_a_run_except_its_own() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Planning);
    let mut seen = world.observe(0);
    let job = |number: i64| OwnJob {
        name: format!("web-apply-{number}"),
        uid: format!("uid-{number}"),
        finished: true,
        lingers: false,
        is_beyond_limit: false,
    };
    seen.jobs = (-3..=2).map(|number| (number, job(number))).collect();
    let (_, decision) = world.decide(seen);
    assert_eq!(
        step_names(&decision.steps),
        ["DeleteJob web-apply--2", "DeleteJob web-apply--3"],
    );
}

#[test]
fn job_with_running_sidecar_is_deleted_after_its_run() {
    let is_deleted = |world: &mut World| {
        let mut seen = world.observe(0);
        let job = OwnJob {
            name: "web-apply-x".to_owned(),
            uid: "uid-x".to_owned(),
            finished: true,
            lingers: true,
            is_beyond_limit: false,
        };
        let number = seen.record.as_ref().unwrap().record.number;
        seen.jobs = [(number, job)].into();
        let (_, decision) = world.decide(seen);
        step_names(&decision.steps).contains(&"DeleteJob web-apply-x".to_owned())
    };
    let mut world = World::applied();
    assert!(is_deleted(&mut world));
    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Planning);
    assert!(!is_deleted(&mut world));
}

#[test]
fn missing_branch_blocks_new_runs() {
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    let seen = world.observe(0);
    let message = "branch main does not exist; set spec.gitRepo.branch";
    let retry_at = world.now;
    let (_, decision) = world.decide_with(seen, |image| ImageSeen {
        source: Answer::Failed {
            failure: failure(FailureClass::User, "BranchNotFound", message),
            last: image.source.value().cloned(),
            retry_at,
        },
        ..image
    });
    assert!(decision.start.is_none());
    assert_eq!(condition(&decision.status, "Stalled"), "True");
    assert!(
        decision.status.message.contains("BranchNotFound")
            || decision.status.message.contains(message)
    );
}

#[test]
fn source_and_image_stay_in_status_during_outage() {
    let mut world = World::applied();
    let before = world.status();
    world.git_up = false;
    world.restart();
    world.reconcile();
    world.reconcile();
    let after = world.status();
    assert_eq!(
        (&after.source, &after.image),
        (&before.source, &before.image)
    );
    assert!(after.source.is_some() && after.image.is_some());
}

#[test]
fn outage_during_drift_check_sets_source_ready_false() {
    let mut world = World::applied();
    world.now = world.reconcile().decision.requeue_at.unwrap();
    world.reconcile();
    world.git_up = false;
    world.restart();
    world.reconcile();
    world.reconcile();
    assert!(world.is_ready());
    assert_eq!(condition(&world.status(), "SourceReady"), "False");
}

/// After a restart of the operator, an unchanged resource causes no write and no second notification.
#[rstest]
#[case::pending_plan(World::with(fixtures::terraform().with("/approval/mode", "Manual")), None)]
#[case::transient_failure(World::new(), Some(FailureClass::Transient))]
#[case::user_failure(World::new(), Some(FailureClass::User))]
fn restart_of_an_unready_resource_writes_nothing(
    #[case] mut world: World,
    #[case] fails: Option<FailureClass>,
) {
    if let Some(class) = fails {
        world.run_to(Stage::Planning);
        world.advance_pod(0, PodEvent::Fail(class));
    }
    world.settle();
    assert!(!world.is_ready());
    world.restart();
    for _ in 0..4 {
        assert!(!world.reconcile().wrote, "{:?}", world.status());
    }
}

#[rstest]
#[case::job_created(Stage::Created)]
#[case::planning(Stage::Planning)]
#[case::applying(Stage::Applying)]
fn active_run_is_in_status_until_it_ends(#[case] stage: Stage) {
    let mut world = World::new();
    world.run_to(stage);
    world.reconcile();
    let active = world.status().active_run.unwrap();
    assert_eq!((active.number, &*active.job), (1, "web-apply-1"));
    world.settle();
    assert_eq!(world.status().active_run, None);
}

#[test]
fn drift_check_of_applied_config_is_no_active_run() {
    let mut world = World::applied();
    world.start_drift_check().run_to(Stage::Planning);
    world.reconcile();
    assert_eq!(world.status().active_run, None);
}

#[test]
fn status_keeps_run_number_after_loss_of_record() {
    let mut world = World::new();
    world.reconcile();
    assert_eq!(world.status().run, None);
    world.reconcile();
    assert_eq!(world.status().run, None);
    let mut world = World::applied();
    world.record = None;
    world.reconcile();
    assert_eq!(world.status().run, Some(1));
}

#[rstest]
#[case::three(3, "+0 ~3 -0: update a.0, update a.1, update a.2")]
#[case::four(4, "+0 ~4 -0: update a.0, update a.1, update a.2, …")]
fn the_first_three_changes_are_named(#[case] count: usize, #[case] wanted: &str) {
    let resources = (0..count).map(|number| ResourceChange {
        address: format!("a.{number}"),
        action: "update".to_owned(),
        ..ResourceChange::default()
    });
    let changes = ChangeSet {
        change: i64::try_from(count).unwrap(),
        resources: resources.collect(),
        ..ChangeSet::default()
    };
    assert_eq!(differences(&changes), wanted);
}

#[test]
fn ready_names_variables_that_the_module_does_not_declare() {
    let mut world = World::applied();
    let mut record = world.record.clone().unwrap();
    record.history.reports[0].undeclared = vec![Undeclared {
        name: "replica".to_owned(),
        similar: Some("replicas".to_owned()),
    }];
    world.write_record(record);
    world.settle();
    let message = world.status().message;
    assert_eq!(
        message,
        "Terraform applied successfully; ignored entries of spec.variables that the module does \
         not declare: replica (did you mean replicas?)"
    );
    assert!(world.is_ready());
}

#[test]
fn inventory_is_that_of_the_last_run_that_read_the_state() {
    let mut world = World::new();
    world.run_to(Stage::Reported);
    let report = |world: &mut World, count| {
        let record = world.record.as_mut().unwrap();
        record.report.as_mut().unwrap().inventory = count;
    };
    report(&mut world, Some(12));
    world.settle();
    let inventory = Some(InventoryStatus { count: 12, run: 1 });
    assert_eq!(world.status().inventory, inventory);

    world.edit(|tf| tf.with_variable("size", 1));
    world.run_to(Stage::Reported);
    report(&mut world, None);
    world.settle();
    assert_eq!(
        (world.status().run, world.status().inventory),
        (Some(2), inventory)
    );

    world.edit(|tf| tf.with_variable("size", 2));
    world.run_to(Stage::Reported);
    report(&mut world, Some(-1));
    world.settle();
    let inventory = Some(InventoryStatus { count: 0, run: 3 });
    assert_eq!(world.status().inventory, inventory);
}
