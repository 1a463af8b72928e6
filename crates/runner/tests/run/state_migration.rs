//! Migration of a state to another backend: if the user allows the migration, the runner copies the state and keeps the original.

use std::fs;

use alustan_api::report::{FailureClass, RunResult};
use alustan_api::run::{BackendInputs, Bootstrap, Lineage, RunKind};
use serde_json::{Value, json};

use crate::s3::Bucket;
use crate::world::World;

const MODULE: &str = "resource \"terraform_data\" \"a\" { input = \"x\" }\n";
const CHANGED: &str = "resource \"terraform_data\" \"a\" { input = \"y\" }\n";

fn managed() -> BackendInputs {
    World::new(MODULE).inputs.backend
}

fn backend_of(kind: &str, config: Value) -> BackendInputs {
    BackendInputs {
        kind: Some(kind.into()),
        managed: None,
        config: serde_json::from_value(config).unwrap(),
        ..managed()
    }
}

fn local(world: &World, name: &str) -> BackendInputs {
    let path = world.path(name).display().to_string();
    backend_of("local", json!({ "path": path }))
}

fn s3(bucket: &Bucket, key: &str) -> BackendInputs {
    let mut config = bucket.config();
    config.insert("key".into(), key.into());
    backend_of("s3", serde_json::to_value(config).unwrap())
}

/// Returns the state in `backend`. For the managed backend, returns the entry of the current version in the pointer instead of the state.
fn state(world: &World, bucket: &Bucket, backend: &BackendInputs) -> Option<Value> {
    let text = |name: &str| backend.config.get(name).and_then(Value::as_str);
    match backend.kind.as_deref() {
        Some("http") => {
            let current = serde_json::to_value(world.pointer().current).unwrap();
            (!current.is_null()).then_some(current)
        }
        Some("s3") => bucket.get(text("key")?),
        _ => {
            let read = fs::read(text("path")?).ok()?;
            serde_json::from_slice(&read).ok()
        }
    }
}

/// Changes the backend of the resource to `next`, and allows the migration.
fn migrate_to(world: &mut World, next: &BackendInputs) {
    world.inputs.migrate = Some(world.inputs.backend.clone());
    world.inputs.backend = next.clone();
}

#[test]
fn migration_copies_the_state_and_keeps_the_original() {
    let bucket = Bucket::serve();
    let shape = World::new("");
    let pairs = [
        (managed(), s3(&bucket, "a")),
        (s3(&bucket, "b"), managed()),
        (s3(&bucket, "c"), s3(&bucket, "d")),
        (local(&shape, "e"), s3(&bucket, "f")),
    ];
    for (from, to) in pairs {
        let mut world = World::new(MODULE);
        world.inputs.backend = from.clone();
        let first = world.run(RunKind::Apply).expect(RunResult::Done).clone();
        let before = state(&world, &bucket, &from).unwrap();
        migrate_to(&mut world, &to);
        let ran = world.run(RunKind::Apply);
        let report = ran.expect(RunResult::NoChanges);
        assert_eq!(report.lineage, first.lineage);
        assert_eq!(report.moved_from, first.state_address);
        assert_ne!(report.state_address, first.state_address);
        assert!(ran.stderr.contains("is unchanged"), "{}", ran.logs());
        let record = world.record();
        assert_eq!(record.state_address, report.state_address);
        assert_eq!(record.lineage, Lineage::Of(first.lineage.unwrap()));
        assert_eq!(state(&world, &bucket, &from).unwrap(), before);
        let copy = state(&world, &bucket, &to).unwrap();
        assert_eq!(copy["lineage"], before["lineage"]);
        assert_eq!(copy["serial"], before["serial"]);

        // Later runs use the new address and migrate nothing, although migration is still allowed.
        world.write_module("main.tf", CHANGED);
        let report = world.run(RunKind::Apply).expect(RunResult::Done).clone();
        assert_eq!(
            (report.changes.unwrap().change, report.moved_from),
            (1, None)
        );
        assert_eq!(state(&world, &bucket, &from).unwrap(), before);
        world.inputs.migrate = None;
        world.run(RunKind::Destroy).expect(RunResult::Done);
        assert_eq!(state(&world, &bucket, &from).unwrap(), before);
    }
}

#[test]
fn backend_change_without_migrate_is_refused() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.inputs.backend = s3(&bucket, "a");
    world.run(RunKind::Apply).expect(RunResult::Done);
    world.inputs.backend = s3(&bucket, "b");
    for kind in [
        RunKind::Apply,
        RunKind::Plan,
        RunKind::Drift,
        RunKind::Destroy,
    ] {
        let ran = world.run(kind);
        let message = ran.expect_failure(FailureClass::User, "BackendChanged");
        let way_out = match kind {
            RunKind::Destroy => "Nothing was destroyed",
            _ => "{\"spec\":{\"backend\":{\"migrate\":true}}}",
        };
        for part in [&bucket.place("a"), &bucket.place("b"), way_out] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }
    }
    assert!(bucket.get("b").is_none());
    assert_eq!(
        world.record().state_address.as_deref(),
        Some(bucket.place("a").as_str())
    );
}

/// If a run ends between the copy and the first change of objects, both addresses have the same state, and the run record keeps the old
/// address.
#[test]
fn run_that_ends_after_the_copy_keeps_the_old_address() {
    let bucket = Bucket::serve();
    let half_way = || {
        let mut world = World::new(MODULE);
        world.run(RunKind::Apply).expect(RunResult::Done);
        bucket.remove("a");
        migrate_to(&mut world, &s3(&bucket, "a"));
        world.before_engine("plan", "exit 1");
        let ran = world.run(RunKind::Apply);
        ran.expect_failure(FailureClass::Module, "PlanFailed");
        assert!(bucket.has("a"), "{}", ran.logs());
        let noted = world.record().state_address.unwrap();
        assert!(noted.starts_with("secret://"), "{noted}");
        world.before_engine("never", "true");
        world
    };
    // The next run completes the migration.
    let mut world = half_way();
    let report = world
        .run(RunKind::Apply)
        .expect(RunResult::NoChanges)
        .clone();
    assert_eq!(
        report.state_address.as_deref(),
        Some(bucket.place("a").as_str())
    );

    // The user reverts the change of the backend, applies at the old address and migrates later.
    let mut world = half_way();
    let old = world.inputs.migrate.take().unwrap();
    let new = std::mem::replace(&mut world.inputs.backend, old);
    world.write_module("main.tf", CHANGED);
    world.run(RunKind::Apply).expect(RunResult::Done);
    migrate_to(&mut world, &new);
    world.run(RunKind::Apply).expect(RunResult::NoChanges);

    // On deletion of the resource, the run uses the backend of the pin, which is the old backend.
    let mut world = half_way();
    world.inputs.backend = world.inputs.migrate.take().unwrap();
    world.run(RunKind::Destroy).expect(RunResult::Done);
}

#[test]
fn failed_migration_changes_nothing() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.run(RunKind::Apply).expect(RunResult::Done);
    migrate_to(&mut world, &s3(&bucket, "a"));
    world.before_engine("state", "if [ $2 = push ]; then exit 1; fi");
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::Module, "MigrationFailed");
    assert!(!bucket.has("a"));
    assert_eq!(world.record().attempted, 1);
}

#[test]
fn plan_for_approval_uses_the_copied_state() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.run(RunKind::Apply).expect(RunResult::Done);
    migrate_to(&mut world, &s3(&bucket, "a"));
    world.write_module("main.tf", CHANGED);
    world.inputs.approval.manual = true;
    let report = world.run(RunKind::Plan).expect(RunResult::Changes).clone();
    let changes = report.changes.as_ref().unwrap();
    assert_eq!((changes.add, changes.change, changes.destroy), (0, 1, 0));
    world.approve(&report);
    let done = world.run(RunKind::Apply).expect(RunResult::Done).clone();
    assert_eq!(
        done.state_address.as_deref(),
        Some(bucket.place("a").as_str())
    );
    assert_eq!(
        bucket.get("a").unwrap()["lineage"],
        json!(done.lineage.unwrap())
    );
}

#[test]
fn other_state_at_the_new_address_is_not_changed() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.run(RunKind::Apply).expect(RunResult::Done);
    let other = json!({"version": 4, "serial": 9, "lineage": "of-others",
        "outputs": {"x": {"value": 1, "type": "number"}}, "resources": []});
    bucket.put("a", &other);
    migrate_to(&mut world, &s3(&bucket, "a"));
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "StateOwnershipConflict");
    let way = format!("secret://team/web-state to {}", bucket.place("a"));
    for part in [way.as_str(), "of-others"] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!(bucket.get("a"), Some(other));
}

#[test]
fn state_missing_at_both_addresses_is_reported_as_lost() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.inputs.backend = s3(&bucket, "a");
    world.run(RunKind::Apply).expect(RunResult::Done);
    bucket.remove("a");
    migrate_to(&mut world, &s3(&bucket, "b"));
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "StateLost");
    assert!(
        message.contains(&format!("neither at {}", bucket.place("a"))),
        "{message}"
    );
    assert!(!bucket.has("b"));
}

/// Returns a backend in `bucket`. Its bootstrap creates the bucket if the bucket is missing.
fn with_bootstrap(server: &Bucket, bucket: &str) -> BackendInputs {
    let mut backend = s3(server, "a");
    backend.config.insert("bucket".into(), bucket.into());
    let credentials = [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let credentials = credentials.map(|(name, value)| (name.to_owned(), value.to_owned()));
    BackendInputs {
        environment: credentials.into(),
        bootstrap: Some(Bootstrap {
            bucket: bucket.to_owned(),
            region: "us-east-1".to_owned(),
            table: None,
            endpoint: Some(server.url()),
        }),
        ..backend
    }
}

#[test]
fn bucket_is_bootstrapped_once_and_on_migration() {
    let server = Bucket::serve();
    let mut world = World::new(MODULE);
    world.inputs.backend = with_bootstrap(&server, "store");
    world.run(RunKind::Apply).expect(RunResult::Done);
    assert_eq!(server.head_requests(), 1, "the bucket is checked once");
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert_eq!(server.head_requests(), 1, "it is not checked again");

    // The fake S3 server has one bucket and refuses to create another, so the bootstrap fails.
    migrate_to(&mut world, &with_bootstrap(&server, "elsewhere"));
    let ran = world.run(RunKind::Apply);
    let report = ran.report.as_ref().unwrap();
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.reason, "BootstrapFailed", "{}", ran.logs());
    assert!(
        failure.message.contains("create bucket elsewhere"),
        "{}",
        failure.message
    );
}

/// An unsaved state belongs to the old address, so it must be pushed there before the migration.
#[test]
fn unsaved_state_prevents_migration() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.inputs.backend = s3(&bucket, "a");
    world.run(RunKind::Apply).expect(RunResult::Done);
    let mut unsaved = bucket.get("a").unwrap();
    unsaved["serial"] = json!(9);
    world.keep_unsaved(&unsaved.to_string());
    migrate_to(&mut world, &s3(&bucket, "b"));
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "MigrationFailed");
    assert!(message.contains(&bucket.place("a")), "{message}");
    assert!(!bucket.has("b") && world.unsaved_state().is_some());

    world.inputs.backend = s3(&bucket, "a");
    world.inputs.migrate = None;
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert!(bucket.get("a").unwrap()["serial"].as_u64() >= Some(9));
    migrate_to(&mut world, &s3(&bucket, "b"));
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
    assert!(bucket.has("b"));
}

#[test]
fn lock_at_the_old_address_delays_migration() {
    let bucket = Bucket::serve();
    let mut world = World::new(MODULE);
    world.inputs.backend = s3(&bucket, "a");
    world.run(RunKind::Apply).expect(RunResult::Done);
    let lock = json!({"ID": "0c1d6e8f-5a31-4a5b-9a5e-3c9d2b1f7a60", "Operation": "OperationTypeApply",
        "Info": "", "Who": "ann@laptop", "Version": "1.11.4", "Path": "store/a",
        "Created": "2026-11-20T08:15:00.5Z"});
    bucket.put("a.tflock", &lock);
    migrate_to(&mut world, &s3(&bucket, "b"));
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert!(message.contains("ann@laptop"), "{message}");
    assert!(!bucket.has("b"));
    bucket.remove("a.tflock");
    world.run(RunKind::Apply).expect(RunResult::NoChanges);
}

/// Returns a `local` backend with the states of all workspaces in the folder of the test. Workspace `other` exists.
fn in_workspace(world: &World, name: Option<&str>) -> BackendInputs {
    let folder = world.path("workspaces");
    fs::create_dir_all(folder.join("other")).unwrap();
    let mut backend = local(world, "default.tfstate");
    let folder = folder.display().to_string();
    backend.config.insert("workspace_dir".into(), folder.into());
    backend.workspace = name.map(str::to_owned);
    backend
}

#[test]
fn missing_workspace_is_created_and_destroyed_in() {
    let mut world = World::new(MODULE);
    world.inputs.backend = in_workspace(&world, Some("staging"));
    let ran = world.run(RunKind::Apply);
    let report = ran.expect(RunResult::Done);
    let address = report.state_address.as_deref().unwrap();
    assert!(address.ends_with("/default.tfstate#staging"), "{address}");
    let file = world.path("workspaces/staging/terraform.tfstate");
    assert!(file.is_file() && !world.path("default.tfstate").exists());
    world.run(RunKind::Drift).expect(RunResult::NoChanges);
    world.run(RunKind::Destroy).expect(RunResult::Done);
    let state: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(state["resources"], json!([]));
}

#[test]
fn state_moves_to_another_workspace_only_with_permission() {
    let mut world = World::new(MODULE);
    world.inputs.backend = in_workspace(&world, None);
    let first = world.run(RunKind::Apply).expect(RunResult::Done).clone();
    for name in [Some("staging"), Some("prod"), None] {
        let next = in_workspace(&world, name);
        let before = std::mem::replace(&mut world.inputs.backend, next.clone());
        let ran = world.run(RunKind::Apply);
        if name.is_some() {
            ran.expect_failure(FailureClass::User, "BackendChanged");
        }
        world.inputs.backend = before;
        migrate_to(&mut world, &next);
        let ran = world.run(RunKind::Apply);
        let moved = ran.expect(RunResult::NoChanges);
        assert_eq!(moved.lineage, first.lineage, "{name:?}");
        world.inputs.migrate = None;
    }
}

#[test]
fn workspace_variable_is_refused_for_the_managed_backend() {
    let mut world = World::new(MODULE);
    world.vars.insert("TF_WORKSPACE".into(), "staging".into());
    let ran = world.run(RunKind::Apply);
    let message = ran.expect_failure(FailureClass::User, "WorkspaceUnsupported");
    assert!(message.contains("managed has one workspace"), "{message}");
    world.vars.insert("TF_WORKSPACE".into(), "default".into());
    world.run(RunKind::Apply).expect(RunResult::Done);
}

/// The run record contains the backend block of the module, so a later run can read the state after the block has changed.
#[test]
fn state_migrates_from_the_backend_of_the_module() {
    let mut world = World::new("");
    let module = |world: &World, name: &str| {
        let path = world.path(name).display().to_string();
        format!("terraform {{\n  backend \"local\" {{ path = \"{path}\" }}\n}}\n{MODULE}")
    };
    let own = BackendInputs {
        kind: None,
        write_block: false,
        managed: None,
        ..managed()
    };
    let managed = std::mem::replace(&mut world.inputs.backend, own.clone());
    world.write_module("main.tf", &module(&world, "a"));
    let first = world.run(RunKind::Apply).expect(RunResult::Done).clone();
    world.write_module("main.tf", &module(&world, "b"));
    let ran = world.run(RunKind::Apply);
    ran.expect_failure(FailureClass::User, "BackendChanged");
    migrate_to(&mut world, &own);
    let moved = world
        .run(RunKind::Apply)
        .expect(RunResult::NoChanges)
        .clone();
    assert_eq!(
        (moved.lineage, moved.moved_from),
        (first.lineage.clone(), first.state_address)
    );
    // Second migration, to the managed backend.
    world.write_module("main.tf", MODULE);
    migrate_to(&mut world, &managed);
    let moved = world
        .run(RunKind::Apply)
        .expect(RunResult::NoChanges)
        .clone();
    assert_eq!(moved.lineage, first.lineage);
    assert_eq!(
        moved.state_address.as_deref(),
        Some("secret://team/web-state")
    );
    assert!(world.record().own_backend.is_none());
}

#[test]
fn credentials_of_the_old_backend_are_not_used_or_printed() {
    let mut world = World::new(MODULE);
    world.run(RunKind::Apply).expect(RunResult::Done);
    let new = local(&world, "b");
    migrate_to(&mut world, &new);
    let old = world.inputs.migrate.as_mut().unwrap();
    old.environment = [("OLD_TOKEN".to_owned(), "not-for-others".to_owned())].into();
    world.before_engine("plan", "echo token=$OLD_TOKEN; echo not-for-others");
    let ran = world.run(RunKind::Apply);
    ran.expect(RunResult::NoChanges);
    assert!(ran.stdout.contains("token=\n"), "{}", ran.logs());
    assert!(!ran.logs().contains("not-for-others"), "{}", ran.logs());
}
