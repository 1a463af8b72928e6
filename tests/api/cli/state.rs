//! `kubectl alustan state pull`, `state push` and `unlock` with the `managed` backend.

use std::fmt::Write;

use alustan_api::labels::{COMPONENT, Component, UID};
use alustan_api::names;
use alustan_api::run::{RunRecord, key};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{create_run_pod, create_secret, run};
use crate::space::{Space, resource, with};

/// Creates a resource whose last run has ended, with empty Secrets for the managed state.
async fn at_rest() -> Space {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    for slot in 0..3 {
        create_secret(&space, &names::state_slot("web", slot), json!({})).await;
    }
    create_secret(&space, &names::state("web"), json!({})).await;
    let record =
        json!({"number": 3, "phase": "Recorded", "stateMade": true, "lineage": {"of": "l"}});
    create_secret(
        &space,
        &names::record("web"),
        json!({"record": record.to_string()}),
    )
    .await;
    space
}

async fn record(space: &Space) -> RunRecord {
    let secret = space
        .api::<Secret>()
        .get(&names::record("web"))
        .await
        .unwrap();
    serde_json::from_slice(&secret.data.unwrap()[key::RECORD].0).unwrap()
}

/// Changes fields of the run record.
async fn change_record(space: &Space, change: Value) {
    let mut record = serde_json::to_value(record(space).await).unwrap();
    for (name, value) in change.as_object().unwrap() {
        record[name] = value.clone();
    }
    let patch = json!({"stringData": {"record": record.to_string()}});
    let api = space.api::<Secret>();
    api.patch(
        &names::record("web"),
        &PatchParams::default(),
        &Patch::Merge(&patch),
    )
    .await
    .unwrap();
}

fn lock(id: &str) -> Value {
    json!({
        "id": id, "operation": "OperationTypeApply", "who": "alustan@web-apply-3-x",
        "at": "2026-01-01T00:00:00Z",
    })
}

/// Writes a state to a file. Returns its path and text.
fn state(space: &Space, lineage: &str, serial: u64, noise: &str) -> (String, String) {
    let file = space
        .server
        .folder()
        .join(format!("{}-{serial}.tfstate", space.namespace));
    let state = json!({
        "version": 4, "serial": serial, "lineage": lineage, "resources": [],
        "outputs": {"noise": {"value": noise}},
    });
    std::fs::write(&file, state.to_string()).unwrap();
    (file.to_str().unwrap().to_owned(), state.to_string())
}

/// Returns hexadecimal digits that do not compress.
fn noise(mut seed: u64, size: usize) -> String {
    let mut noise = String::new();
    while noise.len() < size {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        write!(noise, "{:08x}", seed >> 32).unwrap();
    }
    noise
}

#[tokio::test]
async fn state_is_pushed_and_pulled_and_the_previous_one_kept() {
    let space = at_rest().await;
    let none = run(&space, "state pull web").await;
    assert!(none.stderr.contains("web has no state"), "{none:?}");
    assert_eq!(none.success(), "");

    let (first, text) = state(&space, "l", 1, "a");
    let output = run(&space, &format!("state push web {first}"))
        .await
        .success();
    assert!(
        output.contains("is now version 1: serial 1, lineage l"),
        "{output}"
    );
    assert_eq!(run(&space, "state pull web").await.success(), text);
    let (second, text) = state(&space, "l", 2, "b");
    run(&space, &format!("state push web {second}"))
        .await
        .success();
    assert_eq!(run(&space, "state pull web").await.success(), text);

    let why = run(&space, &format!("state push web {first}"))
        .await
        .failure();
    assert!(
        why.contains("cannot push") && why.contains("lower than the serial 2"),
        "{why}"
    );
    assert_eq!(run(&space, "state pull web").await.success(), text);
    assert_eq!(record(&space).await.lock, None, "the lock is given back");

    let pointer = space
        .api::<Secret>()
        .get(&names::state("web"))
        .await
        .unwrap();
    let pointer: Value = serde_json::from_slice(&pointer.data.unwrap()["pointer"].0).unwrap();
    assert_eq!(pointer["current"]["serial"], 2);
    assert_eq!(pointer["previous"]["serial"], 1);

    let forced = run(&space, &format!("state push web {first} --force")).await;
    forced.success();
    let (foreign, _) = state(&space, "m", 9, "c");
    let why = run(&space, &format!("state push web {foreign}"))
        .await
        .failure();
    assert!(why.contains("the lineage m of the file differs"), "{why}");
    let output = run(&space, &format!("state push web {foreign} --force")).await;
    assert!(
        output
            .stderr
            .contains("StateOwnershipConflict unless spec.backend.adopt"),
        "{output:?}"
    );
    output.success();
}

#[tokio::test]
async fn large_state_adds_slots_and_records_their_number() {
    let space = at_rest().await;
    let mut last = String::new();
    for serial in 1..=2 {
        let (file, text) = state(&space, "l", serial, &noise(serial, 4 * 1024 * 1024));
        run(&space, &format!("state push web {file}"))
            .await
            .success();
        last = text;
    }
    assert!(run(&space, "state pull web").await.success() == last);
    let wanted = record(&space).await.slots_wanted;
    assert!(wanted >= 6, "{wanted}");
    let slots = space.api::<Secret>();
    let slot = slots
        .get(&names::state_slot("web", wanted - 1))
        .await
        .unwrap();
    assert_eq!(
        slot.metadata.labels.unwrap()[COMPONENT],
        Component::State.as_str()
    );
}

#[tokio::test]
async fn state_push_adopts_a_local_state_before_the_first_run() {
    let space = Space::new().await;
    let suspended = with(resource("web"), "/suspend", Some(json!(true)));
    space.apply(&suspended).await.unwrap();
    let record = json!({"number": 0, "phase": "Starting"}).to_string();
    create_secret(&space, &names::record("web"), json!({"record": record})).await;
    let (file, text) = state(&space, "l", 1, "a");
    run(&space, &format!("state push web {file}"))
        .await
        .success();
    assert_eq!(run(&space, "state pull web").await.success(), text);
}

#[tokio::test]
async fn state_push_is_refused_while_a_run_has_unsaved_state() {
    let space = at_rest().await;
    let unsaved = json!({key::LEFTOVER: "sealed"});
    create_secret(&space, &names::report("web"), unsaved).await;
    let (file, _) = state(&space, "l", 1, "a");
    let push = format!("state push web {file}");
    let why = run(&space, &push).await.failure();
    assert!(why.contains("an earlier run has an unsaved state"), "{why}");
    run(&space, &format!("{push} --force")).await.success();
}

#[tokio::test]
async fn state_of_an_earlier_resource_is_not_overwritten() {
    let space = at_rest().await;
    let labels = json!({"metadata": {"labels": {UID: "of-an-earlier-one"}}});
    let labels = Patch::Merge(&labels);
    let edit = PatchParams::default();
    let secrets = space.api::<Secret>();
    secrets
        .patch(&names::state("web"), &edit, &labels)
        .await
        .unwrap();
    let (file, _) = state(&space, "l", 1, "a");
    let why = run(&space, &format!("state push web {file} --force"))
        .await
        .failure();
    assert!(why.contains(r#""adopt":true"#), "{why}");
    let pointer = secrets.get(&names::state("web")).await.unwrap();
    assert!(pointer.data.is_none(), "{pointer:?}");
    assert_eq!(record(&space).await.lock, None, "the lock is given back");
}

#[tokio::test]
async fn state_push_is_refused_during_a_run_or_while_locked() {
    let space = at_rest().await;
    let (file, _) = state(&space, "l", 1, "a");
    let push = format!("state push web {file} --force");
    change_record(&space, json!({"phase": "Applying"})).await;
    let why = run(&space, &push).await.failure();
    assert!(
        why.contains("run 3 of ") && why.contains("is active (Applying)"),
        "{why}"
    );

    change_record(&space, json!({"phase": "Recorded", "lock": lock("l-1")})).await;
    let why = run(&space, &push).await.failure();
    let unlock = format!("kubectl alustan unlock web l-1 -n {}", space.namespace);
    assert!(
        why.contains("alustan@web-apply-3-x") && why.contains(&unlock),
        "{why}"
    );
    assert_eq!(run(&space, "state pull web").await.success(), "");
    assert_eq!(record(&space).await.lock.unwrap().id, "l-1");
}

#[tokio::test]
async fn lost_state_is_replaced_only_with_force() {
    let space = at_rest().await;
    let (file, text) = state(&space, "l", 4, "a");
    let secrets = space.api::<Secret>();
    for name in [names::state("web"), names::state_slot("web", 1)] {
        secrets
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
    }
    let why = run(&space, "state pull web").await.failure();
    assert!(
        why.contains("Secret web-state with the state pointer"),
        "{why}"
    );
    let why = run(&space, &format!("state push web {file}"))
        .await
        .failure();
    assert!(why.contains("the current state is lost"), "{why}");
    run(&space, &format!("state push web {file} --force"))
        .await
        .success();
    assert_eq!(run(&space, "state pull web").await.success(), text);
}

#[tokio::test]
async fn file_without_a_state_is_not_pushed() {
    let space = at_rest().await;
    let file = space
        .server
        .folder()
        .join(format!("{}.txt", space.namespace));
    std::fs::write(&file, "{\"version\": 4}").unwrap();
    let push = format!("state push web {}", file.display());
    let why = run(&space, &push).await.failure();
    assert!(why.contains("is not a Terraform state"), "{why}");
    let why = run(&space, "state push web /nowhere").await.failure();
    assert!(why.contains("cannot read /nowhere: "), "{why}");
}

#[tokio::test]
async fn unlock_is_refused_while_a_pod_of_a_run_exists() {
    let space = at_rest().await;
    let why = run(&space, "unlock web l-1").await.failure();
    assert!(why.contains("is not locked\n"), "{why}");

    change_record(&space, json!({"lock": lock("l-1")})).await;
    let why = run(&space, "unlock web l-2").await.failure();
    assert!(
        why.contains("not locked with id l-2") && why.contains("lock l-1"),
        "{why}"
    );

    create_run_pod(&space, 3).await;
    let why = run(&space, "unlock web l-1").await.failure();
    assert!(
        why.contains("pod web-apply-3-x") && why.contains("has not terminated"),
        "{why}"
    );
    assert_eq!(record(&space).await.lock.unwrap().id, "l-1");

    let pods = space.api::<Pod>();
    let now = DeleteParams::default().grace_period(0);
    pods.delete("web-apply-3-x", &now).await.unwrap();
    let output = run(&space, "unlock web l-1").await.success();
    assert!(
        output.contains("lock l-1 of ") && output.contains("released"),
        "{output}"
    );
    assert_eq!(record(&space).await.lock, None);
}

#[tokio::test]
async fn state_commands_for_other_backends_name_the_engine_command() {
    let space = Space::new().await;
    let backend = json!({"provider": "aws", "s3": "store", "region": "us-east-1"});
    let web = with(resource("web"), "/backend", Some(backend));
    space.apply(&web).await.unwrap();
    let why = run(&space, "unlock web l-1").await.failure();
    assert!(why.contains("terraform force-unlock l-1"), "{why}");
    assert!(why.contains("https://127.0.0.1:1/team/infra"), "{why}");
    let why = run(&space, "state pull web").await.failure();
    assert!(why.contains("`terraform state`"), "{why}");
}
