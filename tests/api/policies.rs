//! What the API server refuses by itself: `deploy/kustomize/base/policies.yaml`.

use alustan_api::Terraform;
use alustan_api::labels::HOLDS_STATE;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::server::{OPERATOR, until};
use crate::space::{Space, resource, with};

/// The refusal of `call`, once the API server knows its policies.
async fn refusal<T>(call: impl AsyncFn() -> Result<T, kube::Error>) -> String {
    until("a refusal", async || match call().await {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message),
        Err(other) => panic!("{other}"),
        Ok(_) => Err("it is allowed".to_owned()),
    })
    .await
}

/// A trial run: nothing is deleted.
fn trial() -> DeleteParams {
    DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    }
}

#[tokio::test]
async fn a_protected_resource_is_not_deleted_before_a_person_says_so() {
    let space = Space::new().await;
    let protected = with(resource("web"), "/deletionProtection", Some(json!(true)));
    space.apply(&protected).await.unwrap();
    let api = space.api::<Terraform>();
    let refused = refusal(async || api.delete("web", &trial()).await).await;
    let command = format!(
        "kubectl patch tf web -n {} --type merge -p '{{\"spec\":{{\"deletionProtection\":false}}}}'",
        space.namespace
    );
    assert!(refused.contains(&command), "{refused}");
    let all = ListParams::default();
    let many = api.delete_collection(&DeleteParams::default(), &all).await;
    assert!(many.is_err());
    let open = json!({"spec": {"deletionProtection": false}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(&open))
        .await
        .unwrap();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    space.apply(&resource("usual")).await.unwrap();
    api.delete("usual", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_namespace_that_holds_state_is_not_deleted_before_a_person_says_so() {
    let space = Space::new().await;
    let api: Api<Namespace> = Api::all(space.client.clone());
    let name = space.namespace.as_str();
    api.delete(name, &trial()).await.expect("it holds nothing");
    let label = |value: Value| json!({"metadata": {"labels": {HOLDS_STATE: value}}});
    let edit = PatchParams::default();
    api.patch(name, &edit, &Patch::Merge(&label(json!("true"))))
        .await
        .unwrap();
    let refused = refusal(async || api.delete(name, &trial()).await).await;
    for command in [
        format!("kubectl get tf -n {name}"),
        format!("kubectl label namespace {name} alustan.io/holds-state-"),
    ] {
        assert!(refused.contains(&command), "no {command:?} in {refused}");
    }
    api.patch(name, &edit, &Patch::Merge(&label(Value::Null)))
        .await
        .unwrap();
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_operator_sets_one_label_of_a_namespace_and_nothing_else() {
    let space = Space::new().await;
    let operator: Api<Namespace> = Api::all(space.server.client_as(OPERATOR).await);
    let name = space.namespace.as_str();
    let edit = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let patch = async |metadata: Value| {
        let patch = json!({ "metadata": metadata });
        operator.patch(name, &edit, &Patch::Merge(&patch)).await
    };
    let other = "pod-security.kubernetes.io/enforce";
    let widened = refusal(async || patch(json!({"labels": {other: "privileged"}})).await).await;
    assert!(widened.contains("and no other"), "{widened}");
    let noted = refusal(async || patch(json!({"annotations": {"x": "y"}})).await).await;
    assert!(noted.contains("and nothing else"), "{noted}");
    patch(json!({"labels": {HOLDS_STATE: "true"}}))
        .await
        .unwrap();
    patch(json!({"labels": {HOLDS_STATE: null}})).await.unwrap();

    let people: Api<Namespace> = Api::all(space.client.clone());
    let label = json!({"metadata": {"labels": {other: "baseline"}}});
    people
        .patch(name, &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    let removed = refusal(async || patch(json!({"labels": {other: null}})).await).await;
    assert!(removed.contains("and no other"), "{removed}");
}

#[tokio::test]
async fn the_engines_own_backend_for_secrets_is_allowed_with_a_warning() {
    let space = Space::new().await;
    let folder = tempfile::tempdir().unwrap();
    let create = |backend: Value| {
        let mut tf = with(resource("web"), "/backend", Some(backend));
        tf["metadata"]["namespace"] = json!(space.namespace);
        let file = folder.path().join("web.json");
        std::fs::write(&file, tf.to_string()).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let create = ["create", "--dry-run=server", "--warnings-as-errors", "-f"];
        space.server.kubectl(&[&create[..], &[&file]].concat())
    };
    let kubernetes = || create(json!({"provider": "kubernetes"}));
    let warned = until("a warning", async || match kubernetes() {
        Err(said) => Ok(said),
        Ok(_) => Err("nothing is said".to_owned()),
    })
    .await;
    assert!(warned.contains("every Secret of namespace"), "{warned}");
    create(json!({"provider": "managed"})).unwrap();
    let tf = with(
        resource("web"),
        "/backend",
        Some(json!({"provider": "kubernetes"})),
    );
    space.apply(&tf).await.expect("it is allowed");
}
