//! Resources restored from a backup: their uids differ from the uids in the labels of their Secrets.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::Arc;

use alustan_api::labels::{self, Component};
use alustan_api::run::{History, Lineage, RunRecord, key};
use alustan_api::{KEPT, Terraform, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::cli::run;
use crate::server::{Server, operator, spawn_guarded, until};
use crate::space::{Space, resource};

/// Uid of the resource in the backup.
const BEFORE: &str = "7a2d6c1e-0000-4000-8000-000000000000";

/// Returns the API server that all tests of this file share, with one operator.
async fn server() -> Arc<Server> {
    static SHARED: OnceCell<(Arc<Server>, Child)> = OnceCell::const_new();
    let (server, _process) = SHARED.get_or_init(start).await;
    server.clone()
}

async fn start() -> (Arc<Server>, Child) {
    let server = Server::of_its_own().await;
    let mut program = operator(&server).unwrap();
    program.args(["--listen", "127.0.0.1:0"]);
    let process = spawn_guarded(&mut program, &server.folder().join("operator.log"));
    (server, process)
}

/// Creates or replaces a Secret.
async fn secret(space: &Space, uid: &str, name: &str, component: Component, data: Value) {
    let secret = json!({
        "metadata": {"name": name, "labels": labels::of("web", uid, component)},
        "stringData": data,
    });
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let api = space.api::<Secret>();
    let parameters = PostParams::default();
    match api.create(&parameters, &secret).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            api.replace(name, &parameters, &secret).await.unwrap()
        }
        created => created.unwrap(),
    };
}

/// Creates the Secrets in a backup of resource `web` with `uid`, signed by another operator.
async fn restore_backup(space: &Space, uid: &str) {
    let run = json!({
        "kind": "apply", "trigger": "created", "job": "web-apply-7", "image": "evil@sha256:0",
        "tag": "t", "configHash": "c", "traceId": "abc", "protocol": 5, "revision": null,
        "context": null, "startedAt": "2026-01-01T00:00:00Z",
    });
    let record = json!({
        "number": 7, "run": run, "phase": "Starting", "attempted": 6, "attemptedBefore": 6,
        "stateMade": true, "lineage": {"of": "l"},
    });
    let inputs = json!({"serviceAccount": "admin"});
    let history = json!({"pending": {
        "id": "p", "run": 6, "configHash": "c", "judgedBy": "", "because": [],
        "since": "2026-01-01T00:00:00Z",
    }});
    let data = json!({
        key::RECORD: record.to_string(), key::signature(key::RECORD): "00",
        key::INPUTS: inputs.to_string(), key::signature(key::INPUTS): "00",
        key::HISTORY: history.to_string(), key::signature(key::HISTORY): "00",
        key::KEY: "the key of the resource",
    });
    secret(space, uid, &names::record("web"), Component::Record, data).await;
    let progress = json!({
        "number": 7, "traceId": "abc", "phase": "Applying", "began": true, "lineage": {"of": "l"},
    });
    let data = json!({key::PROGRESS: progress.to_string(), key::LEFTOVER: "an unsaved state"});
    secret(space, uid, &names::report("web"), Component::Report, data).await;
    let data = json!({"pin": "{}", key::signature("pin"): "00"});
    secret(space, uid, &names::pin("web"), Component::Pin, data).await;
    let data = json!({"pointer": "a pointer"});
    secret(space, uid, &names::state("web"), Component::State, data).await;
    let data = json!({"data": "a state"});
    let slot = names::state_slot("web", 0);
    secret(space, uid, &slot, Component::State, data).await;
    let data = json!({"a": "b"});
    let outputs = names::outputs("web");
    secret(space, uid, &outputs, Component::Outputs, data).await;
    space
        .create::<ServiceAccount>(json!({"metadata": {
            "name": names::runner("web"), "labels": labels::of("web", uid, Component::Run),
        }}))
        .await;
    space
        .create::<PersistentVolumeClaim>(json!({
            "metadata": {
                "name": names::cache("web"), "labels": labels::of("web", uid, Component::Cache),
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .await;
    space
        .create::<ConfigMap>(json!({"metadata": {
            "name": "outputs", "labels": labels::of("web", uid, Component::Outputs),
        }}))
        .await;
}

/// Returns reason and message of condition `Ready`.
async fn ready(space: &Space) -> (String, String) {
    let tf = space.api::<Terraform>().get("web").await.unwrap();
    let conditions = tf.status.unwrap_or_default().conditions;
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready");
    ready
        .map(|ready| (ready.reason, ready.message))
        .unwrap_or_default()
}

/// Waits for a reason of condition `Ready`. Returns its message.
async fn reason(space: &Space, wanted: &str) -> String {
    until(&format!("the reason {wanted}"), async || {
        let (reason, message) = ready(space).await;
        if reason == wanted {
            Ok(message)
        } else {
            Err(format!("{reason}: {message}"))
        }
    })
    .await
}

fn data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret
        .data
        .clone()
        .unwrap_or_default()
        .into_iter()
        .map(|(key, ByteString(value))| (key, value))
        .collect()
}

async fn data_of(secrets: &Api<Secret>, name: String) -> BTreeMap<String, Vec<u8>> {
    data(&secrets.get(&name).await.unwrap())
}

/// Returns the uid in the labels of an object.
fn of(object: &impl ResourceExt) -> String {
    object.labels()[labels::UID].clone()
}

#[tokio::test]
async fn restore_binds_records_and_state_to_a_new_uid() {
    let space = Space::of(&server().await, json!({})).await;
    restore_backup(&space, BEFORE).await;
    let mut web = resource("web");
    web["metadata"]["annotations"] = json!({KEPT: BEFORE});
    space.apply(&web).await.unwrap();
    let how = format!("kubectl alustan restore web -n {}", space.namespace);
    let message = reason(&space, "RestoreRequired").await;
    assert!(
        message.contains("Secret web-run") && message.contains(&how),
        "{message}"
    );
    assert!(
        !message.contains("remove") && !message.contains("delete "),
        "{message}"
    );

    let output = run(&space, "restore web").await;
    for part in [
        "run 7 of ",
        "was active at the time of the backup",
        "an unsaved state",
    ] {
        assert!(output.stderr.contains(part), "no {part:?} in {output:?}");
    }
    let output = output.success();
    assert!(output.contains("run numbers continue after 7"), "{output}");

    let tf = space.api::<Terraform>().get("web").await.unwrap();
    let uid = tf.uid().unwrap();
    assert_eq!(tf.annotations()[KEPT], uid);
    let secrets = space.api::<Secret>();
    let get = async |name: String| secrets.get(&name).await.unwrap();
    let record = get(names::record("web")).await;
    assert_eq!(of(&record), uid);
    assert!(!record.annotations().contains_key(labels::RESTORE_TO));
    let entries = data(&record);
    assert_eq!(entries[key::KEY], b"the key of the resource");
    assert!(!entries.contains_key(key::INPUTS));
    let own: RunRecord = serde_json::from_slice(&entries[key::RECORD]).unwrap();
    assert_eq!((own.number, own.attempted, own.begun), (7, 7, 7));
    assert_eq!(own.lineage, Lineage::Of("l".to_owned()));
    assert!(own.run.is_none() && own.state_made);
    let history: History = serde_json::from_slice(&entries[key::HISTORY]).unwrap();
    assert_eq!(history.restored.unwrap().open_run, Some(7));
    assert!(history.pending.is_none());

    let report = get(names::report("web")).await;
    assert_eq!(of(&report), uid);
    assert_eq!(data(&report)[key::LEFTOVER], b"an unsaved state");
    for (name, entry, content) in [
        (names::state("web"), "pointer", "a pointer"),
        (names::state_slot("web", 0), "data", "a state"),
        (names::outputs("web"), "a", "b"),
    ] {
        let secret = get(name.clone()).await;
        assert_eq!(of(&secret), uid, "{name}");
        assert_eq!(data(&secret)[entry], content.as_bytes(), "{name}");
    }
    let claims = space.api::<PersistentVolumeClaim>();
    assert_eq!(of(&claims.get(&names::cache("web")).await.unwrap()), uid);
    let maps = space.api::<ConfigMap>();
    assert_eq!(of(&maps.get("outputs").await.unwrap()), uid);
    let pin = secrets.get_opt(&names::pin("web")).await.unwrap();
    assert!(pin.is_none(), "derived again");
    let accounts = space.api::<ServiceAccount>();
    let account = accounts.get_opt(&names::runner("web")).await.unwrap();
    assert!(account.is_none(), "derived again");
    reason(&space, "RepositoryUnreachable").await;
    let output = run(&space, "restore web").await.success();
    assert!(output.contains("nothing to restore"), "{output}");
}

#[tokio::test]
async fn restore_continues_after_a_crash_that_left_the_report_bound() {
    let space = Space::of(&server().await, json!({})).await;
    restore_backup(&space, BEFORE).await;
    space.apply(&resource("web")).await.unwrap();
    reason(&space, "RestoreRequired").await;
    let uid = space.api::<Terraform>().get("web").await.unwrap().uid();
    let progress = json!({"number": 7, "traceId": "abc", "phase": "Reported", "began": true});
    let data = json!({key::PROGRESS: progress.to_string(), key::LEFTOVER: "an unsaved state"});
    let name = names::report("web");
    secret(&space, &uid.unwrap(), &name, Component::Report, data).await;
    run(&space, "restore web").await.success();
    let secrets = space.api::<Secret>();
    let record = data_of(&secrets, names::record("web")).await;
    let history: History = serde_json::from_slice(&record[key::HISTORY]).unwrap();
    let open_run = history.restored.unwrap().open_run;
    assert_eq!(open_run, None, "run 7 has reported");
    let report = data_of(&secrets, name).await;
    assert_eq!(report[key::LEFTOVER], b"an unsaved state");
}

#[tokio::test]
async fn restore_waits_until_the_original_resource_is_deleted() {
    let old = Space::of(&server().await, json!({})).await;
    let new = Space::of(&server().await, json!({})).await;
    old.apply(&resource("web")).await.unwrap();
    let resources: Api<Terraform> = old.api();
    let uid = resources.get("web").await.unwrap().uid().unwrap();
    reason(&old, "RepositoryUnreachable").await;
    restore_backup(&new, &uid).await;
    new.apply(&resource("web")).await.unwrap();
    let message = reason(&new, "StateConflict").await;
    let owner = "a Terraform resource in another namespace, which still exists";
    assert!(
        message.contains(owner) && !message.contains(&old.namespace),
        "{message}"
    );
    assert!(message.contains("keep the Secrets"), "{message}");
    let error = run(&new, "restore web").await.failure();
    assert!(
        error.contains("StateConflict") && error.contains(owner),
        "{error}"
    );
    let state = new.api::<Secret>().get(&names::state("web")).await.unwrap();
    assert_eq!(of(&state), uid);

    let gone = DeleteParams::default();
    resources.delete("web", &gone).await.unwrap();
    let uid = new.api::<Terraform>().get("web").await.unwrap().uid();
    until("the restore", async || {
        let state = new.api::<Secret>().get(&names::state("web")).await.unwrap();
        let is_bound = state.labels().get(labels::UID) == uid.as_ref();
        let why = ready(&new).await;
        is_bound.then_some(()).ok_or_else(|| format!("{why:?}"))
    })
    .await;
}

/// Deletes the resource `web` and waits until it is gone.
async fn delete(space: &Space) {
    let resources = space.api::<Terraform>();
    let parameters = DeleteParams::default();
    resources.delete("web", &parameters).await.unwrap();
    until("the resource to go", async || {
        let tf = resources.get_opt("web").await.unwrap();
        tf.map_or(Ok(()), |tf| Err(format!("{:?}", tf.status)))
    })
    .await;
}

#[tokio::test]
async fn pushed_state_outlives_a_resource_that_applied_nothing() {
    let space = Space::of(&server().await, json!({})).await;
    space.apply(&resource("web")).await.unwrap();
    reason(&space, "RepositoryUnreachable").await;
    let tf = space.api::<Terraform>().get("web").await.unwrap();
    let pointer = json!({"pointer": json!({"current": {"version": 1}}).to_string()});
    let (uid, name) = (tf.uid().unwrap(), names::state("web"));
    secret(&space, &uid, &name, Component::State, pointer).await;
    delete(&space).await;
    let secrets = space.api::<Secret>();
    let state = secrets.get(&name).await.unwrap();
    assert_eq!(state.labels()[labels::ORPHANED], "true");
    let record = secrets.get_opt(&names::record("web")).await.unwrap();
    assert!(record.is_none());
}

#[tokio::test]
async fn restored_resource_waits_for_its_secrets() {
    let space = Space::of(&server().await, json!({})).await;
    let mut web = resource("web");
    web["metadata"]["annotations"] = json!({KEPT: BEFORE});
    space.apply(&web).await.unwrap();
    let message = reason(&space, "RestoreRequired").await;
    assert!(message.contains("restore the Secrets web-run"), "{message}");
    let record = space.api::<Secret>().get_opt(&names::record("web")).await;
    assert!(record.unwrap().is_none());
    restore_backup(&space, BEFORE).await;
    until("the Secrets to be seen", async || {
        let (_, message) = ready(&space).await;
        message
            .contains("is the run record of an earlier resource")
            .then_some(())
            .ok_or(message)
    })
    .await;
    run(&space, "restore web").await.success();
}

#[tokio::test]
async fn record_of_a_new_resource_is_replaced_by_that_of_a_backup() {
    let space = Space::of(&server().await, json!({})).await;
    space.apply(&resource("web")).await.unwrap();
    reason(&space, "RepositoryUnreachable").await;
    restore_backup(&space, BEFORE).await;
    reason(&space, "RestoreRequired").await;
    let output = run(&space, "restore web").await.success();
    assert!(output.contains("run numbers continue after 7"), "{output}");
    reason(&space, "RepositoryUnreachable").await;
}
