//! Resources that were applied before a test: run record and pin suffice to destroy them, without a repository, a
//! registry or a node.

use alustan_api::labels::{self, Component};
use alustan_api::run::key;
use alustan_api::{FINALIZER, names};
use alustan_core::signature::{self, SIGNED};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::server::until;
use crate::space::{Space, resource};

fn secret(tf: &DynamicObject, name: &str, component: Component, data: &[(&str, Value)]) -> Secret {
    let (of, uid) = (tf.name_any(), tf.uid().unwrap());
    let data = data.iter().map(|(key, value)| {
        let bytes = value.to_string().into_bytes();
        ((*key).to_owned(), ByteString(bytes))
    });
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels::of(&of, &uid, component)),
            ..ObjectMeta::default()
        },
        data: Some(data.collect()),
        ..Secret::default()
    }
}

/// Returns the signing key of the operator.
pub(crate) async fn signing_key(client: &Client) -> Vec<u8> {
    let api: Api<Secret> = Api::namespaced(client.clone(), "alustan-system");
    let secret = until("the signing key", async || {
        api.get_opt("alustan-signing-key")
            .await
            .unwrap()
            .ok_or_else(|| "the operator has not created it".to_owned())
    });
    secret.await.data.unwrap()["key"].0.clone()
}

/// Signs all entries of `secret` that the operator verifies.
fn sign(secret: &mut Secret, uid: &str, signing_key: &[u8]) {
    let data = secret.data.get_or_insert_default();
    for entry in SIGNED {
        if let Some(content) = data.get(entry) {
            let signature = signature::of(signing_key, uid, entry, &content.0);
            data.insert(key::signature(entry), ByteString(signature.into_bytes()));
        }
    }
}

/// Creates run record and pin for `tf`, as after an apply. `signing_key` is the key of a running operator.
pub(crate) async fn leave_record_and_pin(
    secrets: &Api<Secret>,
    tf: &DynamicObject,
    signing_key: Option<&[u8]>,
) {
    let name = tf.name_any();
    let inputs = json!({
        "path": "", "variables": {"size": 1}, "scripts": {},
        "backend": {"writeBlock": true, "config": {}, "environment": {}},
        "timeouts": {"plan": 60, "apply": 60, "destroy": 60},
    });
    let pin = json!({
        "number": 1, "image": "127.0.0.1:1/team/infra@sha256:0", "tag": "0",
        "spec": resource(&name)["spec"], "inputs": inputs,
    });
    let record = [
        (
            "record",
            json!({"number": 1, "attempted": 1, "phase": "Recorded"}),
        ),
        (key::HISTORY, json!({})),
        ("key", json!("key")),
    ];
    let record = secret(tf, &names::record(&name), Component::Record, &record);
    let pin = secret(tf, &names::pin(&name), Component::Pin, &[("pin", pin)]);
    for mut made in [record, pin] {
        if let Some(signing_key) = signing_key {
            sign(&mut made, &tf.uid().unwrap(), signing_key);
        }
        secrets.create(&PostParams::default(), &made).await.unwrap();
    }
}

/// Simulates the runner: writes a report of success for the destroy run `number` of the resource `name`.
///
/// # Errors
/// If the report does not exist, because the operator has already read it and deleted its Secret.
pub(crate) async fn reports(
    secrets: &Api<Secret>,
    name: &str,
    number: i64,
) -> Result<(), kube::Error> {
    let now = "2026-01-01T00:00:00Z";
    let report = json!({
        "number": number, "kind": "destroy", "result": "Done", "trigger": "", "job": "",
        "startedAt": now, "finishedAt": now,
    });
    let report = ByteString(report.to_string().into_bytes());
    let reported = Patch::Merge(json!({"data": {"report": report}}));
    let edit = PatchParams::default();
    let name = names::report(name);
    secrets.patch(&name, &edit, &reported).await.map(drop)
}

impl Space {
    /// Creates a resource `name` with run record and pin, as after an apply. The deletion of the resource starts a destroy run. No other
    /// run starts, because the git repository is unreachable. Must be called before an operator starts.
    pub(crate) async fn applied(&self, name: &str) {
        let mut made = resource(name);
        made["metadata"]["finalizers"] = json!([FINALIZER]);
        made["spec"]["retry"] = json!({"minBackoff": "1s", "maxBackoff": "2s"});
        self.apply(&made).await.unwrap();
        let tf = self.raw().get(name).await.unwrap();
        leave_record_and_pin(&self.api(), &tf, None).await;
    }
}
