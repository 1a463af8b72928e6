//! Run records and pins that a client other than the operator changes.

use std::process::Child;

use alustan_api::run::key;
use alustan_api::{Terraform, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::server::{Server, operator, spawn_guarded, until};
use crate::space::{Space, resource};

fn start(server: &Server) -> Child {
    let mut program = operator(server).unwrap();
    program
        .args(["--listen", "127.0.0.1:0"])
        .args(["--pod-name", "operator"]);
    spawn_guarded(&mut program, &server.folder().join("operator.log"))
}

fn stop(mut process: Child) {
    drop(process.stdin.take());
    process.wait().unwrap();
}

async fn merge(secrets: &Api<Secret>, name: &str, data: Value) -> Secret {
    let body = json!({"data": data});
    let parameters = PatchParams::default();
    let patch = Patch::Merge(&body);
    secrets.patch(name, &parameters, &patch).await.unwrap()
}

/// Waits until condition `Ready` of `web` has, or does not have, the reason `RecordForged`.
async fn wait(space: &Space, is_forged: bool) {
    let tfs = space.api::<Terraform>();
    until("the reason RecordForged", async || {
        let status = tfs.get("web").await.unwrap().status.unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "Ready");
        ready
            .filter(|ready| (ready.reason == "RecordForged") == is_forged)
            .map(drop)
            .ok_or_else(|| format!("{ready:?}"))
    })
    .await;
}

#[tokio::test]
async fn changed_record_is_refused_and_a_new_key_signs_existing_ones() {
    let server = Server::of_its_own().await;
    let space = Space::of(&server, json!({})).await;
    let secrets = space.api::<Secret>();
    let system: Api<Secret> = Api::namespaced(space.client.clone(), "alustan-system");
    space.apply(&resource("web")).await.unwrap();
    let process = start(&server);
    let record = names::record("web");
    let data = until("a record", async || {
        secrets
            .get_opt(&record)
            .await
            .unwrap()
            .ok_or_else(|| "there is none".to_owned())
    })
    .await
    .data
    .unwrap();
    let history = data[key::HISTORY].clone();
    wait(&space, false).await;

    let forged = ByteString(br#"{"pending":{"id":"mine"}}"#.to_vec());
    merge(&secrets, &record, json!({key::HISTORY: forged})).await;
    wait(&space, true).await;
    merge(&secrets, &record, json!({key::HISTORY: history.clone()})).await;
    wait(&space, false).await;

    // Simulates a run record of an operator version that signed no records and stored the history under another key of the Secret.
    stop(process);
    let unsigned = json!({
        key::HISTORY: null, key::signature(key::HISTORY): null, key::signature(key::RECORD): null,
        key::UNSIGNED_HISTORY: history,
    });
    merge(&secrets, &record, unsigned.clone()).await;
    system
        .delete("alustan-signing-key", &DeleteParams::default())
        .await
        .unwrap();
    let process = start(&server);
    until("the record to be signed", async || {
        let data = secrets.get(&record).await.unwrap().data.unwrap();
        let is_signed = data.contains_key(&key::signature(key::HISTORY))
            && data.contains_key(&key::signature(key::RECORD))
            && !data.contains_key(key::UNSIGNED_HISTORY);
        is_signed
            .then_some(())
            .ok_or_else(|| format!("{:?}", data.keys()))
    })
    .await;
    until("all records to be signed", async || {
        let data = system
            .get("alustan-signing-key")
            .await
            .unwrap()
            .data
            .unwrap();
        data.contains_key("all-signed")
            .then_some(())
            .ok_or_else(String::new)
    })
    .await;
    wait(&space, false).await;

    // When all records are signed, the operator adds the entry `all-signed` to the Secret of its signing key. From then on, it refuses
    // unsigned entries.
    merge(&secrets, &record, unsigned).await;
    wait(&space, true).await;
    stop(process);
}
