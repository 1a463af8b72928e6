//! `kubectl alustan restore` in cases in which it must not change anything.

use alustan_api::labels::{self, Component};
use alustan_api::names;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use super::{create_run_pod, create_secret, get, run};
use crate::space::{Space, resource};

/// Creates a Secret with the name of the run record of `web`. Its labels name the resource `owner` and the uid `uid`.
async fn record(space: &Space, owner: &str, uid: &str) {
    let record = json!({"number": 7, "phase": "Recorded"}).to_string();
    space
        .create::<Secret>(json!({
            "metadata": {
                "name": names::record("web"), "labels": labels::of(owner, uid, Component::Record),
            },
            "stringData": {"record": record, "key": "key"},
        }))
        .await;
}

async fn is_marked(space: &Space) -> bool {
    let api = space.api::<Secret>();
    let record = api.get(&names::record("web")).await.unwrap();
    record.annotations().contains_key(labels::RESTORE_TO)
}

#[tokio::test]
async fn restore_without_secrets_names_the_missing_object() {
    let space = Space::new().await;
    let error = run(&space, "restore web").await.failure();
    assert!(error.contains("Terraform web not found"), "{error}");
    space.apply(&resource("web")).await.unwrap();
    let error = run(&space, "restore web").await.failure();
    assert!(error.contains("Secret web-run not found"), "{error}");
    assert!(error.contains("docs/backup.md"), "{error}");
}

#[tokio::test]
async fn restore_of_the_current_record_changes_nothing() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    let uid = get(&space, "web").await.uid().unwrap();
    record(&space, "web", &uid).await;
    let output = run(&space, "restore web").await.success();
    assert!(output.contains("nothing to restore"), "{output}");
    assert!(!is_marked(&space).await);
}

#[tokio::test]
async fn restore_refuses_the_record_of_another_resource() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    space.apply(&resource("db")).await.unwrap();
    let uid = get(&space, "db").await.uid().unwrap();
    record(&space, "db", &uid).await;
    let error = run(&space, "restore web").await.failure();
    assert!(
        error.contains("Secret web-run belongs to Terraform db"),
        "{error}"
    );
    assert!(error.contains("keep the Secret"), "{error}");
    assert!(!is_marked(&space).await);

    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    create_secret(&space, &names::record("web"), json!({"record": "mine"})).await;
    let error = run(&space, "restore web").await.failure();
    assert!(
        error.contains("not a run record of the operator"),
        "{error}"
    );
    assert!(!is_marked(&space).await);
}

#[tokio::test]
async fn restore_refuses_while_a_pod_of_an_earlier_run_lives() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    record(&space, "web", "uid-before").await;
    create_run_pod(&space, 7).await;
    let error = run(&space, "restore web").await.failure();
    assert!(error.contains("pod web-apply-7-x"), "{error}");
    assert!(!is_marked(&space).await);
}
