//! Write permissions by field manager: spec and status, fields of other field managers, finalizers, and compare-and-swap of the run record.
//! The tests send the same patches as the operator (`apply.rs` and `status.rs` of the controller).

use alustan_api::labels::Component;
use alustan_api::run::{Output, Outputs, RunRecord, key};
use alustan_api::{FIELD_MANAGER, FINALIZER, Terraform, names};
use alustan_core::objects::outputs::{self, SelectedOutputs};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::space::{Space, resource, with};

/// Field manager of the operator's finalizers.
const FINALIZER_MANAGER: &str = "terraform.alustan.io/finalizer";

fn head(uid: &Value) -> Value {
    json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {"name": "web", "uid": uid},
    })
}

fn condition(kind: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": "Test", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

async fn report(space: &Space, uid: &Value, manager: &str, status: Value) -> Value {
    let mut body = head(uid);
    body["status"] = status;
    let parameters = PatchParams::apply(manager).force().validation_strict();
    let raw = space.raw();
    let written = raw
        .patch_status("web", &parameters, &Patch::Apply(&body))
        .await;
    serde_json::to_value(written.unwrap()).unwrap()
}

async fn finalizers(space: &Space, uid: &Value, finalizers: &[&str]) -> Result<Value, kube::Error> {
    let mut body = head(uid);
    body["metadata"]["finalizers"] = json!(finalizers);
    let parameters = PatchParams::apply(FINALIZER_MANAGER).force();
    let raw = space.raw();
    let written = raw.patch("web", &parameters, &Patch::Apply(&body)).await?;
    Ok(serde_json::to_value(written).unwrap())
}

fn status_of(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn spec_and_status_are_written_separately() {
    let space = Space::new().await;
    let mut web = resource("web");
    web["status"] = json!({"state": "Success", "message": "I say so"});
    let stored = space.apply(&web).await.unwrap();
    assert_eq!(stored.get("status"), None, "a user wrote the status");
    assert_eq!(stored["metadata"]["generation"], 1);

    let uid = &stored["metadata"]["uid"];
    let mut body = head(uid);
    body["spec"] = json!({"retry": {"limit": 99}});
    body["status"] = json!({"state": "Building", "message": "building"});
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let raw = space.raw();
    let reported = raw
        .patch_status("web", &parameters, &Patch::Apply(&body))
        .await;
    let reported = serde_json::to_value(reported.unwrap()).unwrap();
    assert_eq!(reported["status"]["state"], "Building");
    assert_eq!(reported["spec"], stored["spec"], "a status wrote the spec");
    assert_eq!(reported["metadata"]["generation"], 1);

    let edited = with(resource("web"), "/retry/limit", Some(json!(7)));
    let edited = space.apply(&edited).await.unwrap();
    assert_eq!(edited["metadata"]["generation"], 2);
    assert_eq!(edited["status"], reported["status"]);
    let annotated = json!({"metadata": {"annotations": {"alustan.io/reconcile-at": "now"}}});
    let annotated = raw
        .patch("web", &PatchParams::default(), &Patch::Merge(&annotated))
        .await;
    assert_eq!(annotated.unwrap().metadata.generation, Some(2));
}

#[tokio::test]
async fn status_apply_keeps_conditions_of_other_managers() {
    let space = Space::new().await;
    let uid = space.apply(&resource("web")).await.unwrap()["metadata"]["uid"].take();
    let foreign = json!({"conditions": [condition("example.com/Audited")]});
    report(&space, &uid, "somebody-else", foreign).await;
    let ours = json!({
        "state": "Drifted", "message": "m", "observedGeneration": 1,
        "conditions": [condition("Ready"), condition("InSync")],
        "drift": {"since": "2026-01-01T00:00:00Z", "add": 0, "change": 1, "destroy": 0},
    });
    let both = report(&space, &uid, FIELD_MANAGER, ours).await;
    assert_eq!(both["status"]["conditions"].as_array().unwrap().len(), 3);
    let less = json!({
        "state": "Success", "message": "m", "conditions": [condition("Ready")],
    });
    let object = report(&space, &uid, FIELD_MANAGER, less.clone()).await;
    let kinds: Vec<_> = object["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["example.com/Audited", "Ready"]);
    assert_eq!(
        object["status"].get("drift"),
        None,
        "what we no longer say is gone"
    );
    let again = report(&space, &uid, FIELD_MANAGER, less).await;
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(
        version(&object),
        version(&again),
        "the same status is no write"
    );
}

#[tokio::test]
async fn finalizers_of_other_managers_are_kept() {
    let space = Space::new().await;
    let mut web = resource("web");
    web["metadata"]["finalizers"] = json!(["example.com/mine"]);
    let stored = space.apply(&web).await.unwrap();
    let uid = &stored["metadata"]["uid"];
    let kept = finalizers(&space, uid, &[FINALIZER]).await.unwrap();
    assert_eq!(
        kept["metadata"]["finalizers"],
        json!(["example.com/mine", FINALIZER])
    );
    assert_eq!(kept["spec"], stored["spec"]);
    assert_eq!(kept["metadata"]["generation"], 1);
    let without = finalizers(&space, uid, &[]).await.unwrap();
    assert_eq!(
        without["metadata"]["finalizers"],
        json!(["example.com/mine"])
    );
    let nobody = finalizers(&space, uid, &[]).await.unwrap();
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&without), version(&nobody));
}

#[tokio::test]
async fn deleted_resource_is_removed_with_its_last_finalizer() {
    let space = Space::new().await;
    let uid = space.apply(&resource("web")).await.unwrap()["metadata"]["uid"].take();
    finalizers(&space, &uid, &[FINALIZER]).await.unwrap();
    let raw = space.raw();
    raw.delete("web", &DeleteParams::foreground())
        .await
        .unwrap();
    let waiting = raw.get("web").await.unwrap().metadata;
    assert!(waiting.deletion_timestamp.is_some());
    finalizers(&space, &uid, &[]).await.unwrap();
    // The finalizer of foreground deletion stays, because this server has no garbage collector.
    let object = raw.get_opt("web").await.unwrap();
    let finalizers = object.and_then(|object| object.metadata.finalizers);
    assert!(
        finalizers
            .as_ref()
            .is_none_or(|finalizers| !finalizers.contains(&FINALIZER.to_owned())),
        "{finalizers:?}"
    );
}

#[tokio::test]
async fn deleted_resource_is_not_created_again() {
    let space = Space::new().await;
    let uid = space.apply(&resource("web")).await.unwrap()["metadata"]["uid"].take();
    let raw = space.raw();
    raw.delete("web", &DeleteParams::default()).await.unwrap();
    for wanted in [&[FINALIZER][..], &[]] {
        let refused = finalizers(&space, &uid, wanted).await.unwrap_err();
        assert_eq!(status_of(refused), 409);
    }
    let mut body = head(&uid);
    body["status"] = json!({"state": "Success"});
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let refused = raw
        .patch_status("web", &parameters, &Patch::Apply(&body))
        .await;
    assert_eq!(status_of(refused.unwrap_err()), 404);
    assert_eq!(raw.get_opt("web").await.unwrap(), None);

    // A patch with the uid of the deleted resource must not change a new resource of the same name.
    let other = space.apply(&resource("web")).await.unwrap();
    let refused = finalizers(&space, &uid, &[FINALIZER]).await.unwrap_err();
    assert_eq!(status_of(refused), 422);
    let untouched = raw.get("web").await.unwrap();
    assert_eq!(
        untouched.metadata.resource_version.as_deref(),
        other["metadata"]["resourceVersion"].as_str()
    );
}

fn record(number: i64) -> Value {
    let record = RunRecord {
        number,
        ..RunRecord::default()
    };
    let bytes = serde_json::to_vec(&record).unwrap();
    serde_json::to_value(k8s_openapi::ByteString(bytes)).unwrap()
}

async fn swap(api: &Api<Secret>, version: &str, data: Value) -> Result<Secret, kube::Error> {
    let body = json!({"metadata": {"resourceVersion": version}, "data": data});
    let name = names::record("web");
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&body))
        .await
}

fn version(secret: &Secret) -> String {
    secret.metadata.resource_version.clone().unwrap()
}

#[tokio::test]
async fn one_of_two_concurrent_record_swaps_succeeds() {
    let space = Space::new().await;
    let stored = space.apply(&resource("web")).await.unwrap();
    let tf: Terraform = serde_json::from_value(stored).unwrap();
    let api = space.api::<Secret>();
    let made = alustan_core::objects::secrets::record(
        &tf,
        &RunRecord::default(),
        &alustan_api::run::History::default(),
    );
    let labels = made.metadata.labels.clone().unwrap();
    assert_eq!(
        labels["app.kubernetes.io/component"],
        Component::Record.as_str()
    );
    let made = api.create(&PostParams::default(), &made).await.unwrap();
    let twice = api.create(&PostParams::default(), &made).await;
    assert!(twice.is_err(), "a record is made once");

    let seen = version(&made);
    let (one, other) = futures::join!(
        swap(
            &api,
            &seen,
            json!({key::RECORD: record(1), key::INPUTS: record(1)})
        ),
        swap(&api, &seen, json!({key::RECORD: record(2)})),
    );
    let (winner, loser) = match (one, other) {
        (Ok(winner), Err(loser)) | (Err(loser), Ok(winner)) => (winner, loser),
        both => panic!("{both:?}"),
    };
    assert_eq!(status_of(loser), 409);
    let now = api.get(&names::record("web")).await.unwrap();
    assert_eq!(version(&now), version(&winner));

    let dropped = json!({key::RECORD: record(3), key::INPUTS: null});
    let now = swap(&api, &version(&now), dropped).await.unwrap();
    let data = now.data.unwrap();
    assert!(!data.contains_key(key::INPUTS), "inputs leave the record");
    assert!(data.contains_key(key::HISTORY), "other keys stay");
}

/// Unchanged outputs cause no write. Removed outputs, labels and annotations are deleted. Labels of other clients
/// stay.
#[tokio::test]
async fn apply_of_outputs_changes_only_outputs_and_own_metadata() {
    let space = Space::new().await;
    let wanted = json!({"labels": {"example.com/team": "infra"}});
    let web = with(resource("web"), "/outputs", Some(wanted));
    let mut tf: Terraform = serde_json::from_value(space.apply(&web).await.unwrap()).unwrap();
    let output = |value: &str| Output {
        value: value.into(),
        sensitive: false,
    };
    let mut chosen = SelectedOutputs {
        outputs: Outputs::from([("a", "1"), ("b", "2")].map(|(k, v)| (k.to_owned(), output(v)))),
        annotations: [("example.com/a".to_owned(), "1".to_owned())].into(),
    };
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let (secrets, maps) = (space.api::<Secret>(), space.api::<ConfigMap>());
    let apply = async |tf: &Terraform, chosen: &SelectedOutputs| {
        let secret = outputs::secret(tf, chosen);
        let map = outputs::config_map(tf, "told".to_owned(), chosen);
        let (secret, map) = (Patch::Apply(secret), Patch::Apply(map));
        let secret = secrets.patch("web-outputs", &parameters, &secret).await;
        let map = maps.patch("told", &parameters, &map).await;
        (secret.unwrap(), map.unwrap())
    };
    apply(&tf, &chosen).await;
    let theirs = json!({"metadata": {"labels": {"example.com/theirs": "yes"}}});
    let (merge, theirs) = (PatchParams::default(), Patch::Merge(&theirs));
    secrets.patch("web-outputs", &merge, &theirs).await.unwrap();
    let map = maps.patch("told", &merge, &theirs).await.unwrap();
    let secret = secrets.get("web-outputs").await.unwrap();
    let (same_secret, same_map) = apply(&tf, &chosen).await;
    assert_eq!(secret.resource_version(), same_secret.resource_version());
    assert_eq!(map.resource_version(), same_map.resource_version());
    assert_eq!(same_map.labels()["example.com/team"], "infra");

    tf.spec.outputs = None;
    chosen.outputs.remove("b");
    chosen.annotations.clear();
    let (secret, map) = apply(&tf, &chosen).await;
    assert_eq!(secret.data.as_ref().unwrap().len(), 1);
    assert_eq!(map.data.as_ref().unwrap().len(), 1);
    for meta in [&secret.metadata, &map.metadata] {
        let labels = meta.labels.as_ref().unwrap();
        assert!(!labels.contains_key("example.com/team"), "{labels:?}");
        assert_eq!(labels["example.com/theirs"], "yes");
        assert_eq!(meta.annotations, None);
    }
}
