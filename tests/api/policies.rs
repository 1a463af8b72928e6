//! Requests that the admission policies refuse: `deploy/kustomize/base/policies.yaml`, and the allow-lists.

use std::collections::BTreeMap;

use alustan_api::labels::{self, Component, HOLDS_STATE};
use alustan_api::run::{History, RunProgress, RunRecord, key};
use alustan_api::{APPLY_AT, CANCEL_RUN, DISCARD_PLAN, PLAN_AT, RECONCILE_AT, Terraform, names};
use alustan_core::objects::{rbac, secrets};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::objects::run_inputs;
use crate::server::{OPERATOR, until};
use crate::space::{Space, resource, with, with_spec};

/// Repeats `call` until a policy refuses it. Returns the message of the refusal.
pub(crate) async fn refusal<T>(call: impl AsyncFn() -> Result<T, kube::Error>) -> String {
    until("a refusal", async || match call().await {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message),
        Err(other) => panic!("{other}"),
        Ok(_) => Err("it is allowed".to_owned()),
    })
    .await
}

/// Returns dry-run parameters: nothing is deleted.
fn trial() -> DeleteParams {
    DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    }
}

#[tokio::test]
async fn protected_resource_is_not_deleted_until_unprotected() {
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
async fn namespace_with_state_is_not_deleted_until_unlabelled() {
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
        format!(
            "kubectl get secrets,persistentvolumeclaims -l alustan.io/orphaned -n {name}; they may be the only copies"
        ),
        "Once both lists are empty".to_owned(),
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
async fn operator_may_change_only_one_label_of_a_namespace() {
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
    assert!(widened.contains("may change no label"), "{widened}");
    let noted = refusal(async || patch(json!({"annotations": {"x": "y"}})).await).await;
    assert!(noted.contains("may change nothing"), "{noted}");
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
    assert!(removed.contains("may change no label"), "{removed}");
}

#[tokio::test]
async fn kubernetes_backend_is_allowed_with_a_warning() {
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
        Err(message) => Ok(message),
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

/// Applies objects with all rights and strict validation.
pub(crate) fn install(space: &Space, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(file.path(), list.to_string()).unwrap();
    let apply = ["apply", "--server-side", "--validate=strict", "-f"];
    let file = [file.path().to_str().unwrap()];
    space.server.kubectl(&[&apply[..], &file].concat()).unwrap();
}

/// Returns the binding of `user` to a role in the space's namespace.
pub(crate) fn bind(space: &Space, user: &str, kind: &str, role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": format!("{user}-{role}"), "namespace": space.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    })
}

#[tokio::test]
async fn right_to_edit_a_resource_does_not_allow_approval() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    let may_edit = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "editor", "namespace": space.namespace},
        "rules": [{"apiGroups": ["alustan.io"], "resources": ["terraforms"], "verbs": ["get", "create", "patch", "update"]}],
    });
    install(
        &space,
        &[may_edit, bind(&space, "editor", "Role", "editor")],
    );
    let client = space.server.client_as("editor").await;
    let editor: Api<Terraform> = Api::namespaced(client, &space.namespace);
    let trial = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |spec: Value| {
        let patch = json!({ "spec": spec });
        editor.patch("web", &trial, &Patch::Merge(&patch)).await
    };
    let changed = async || change(json!({"suspend": true})).await;
    until("the editor's rights", async || {
        changed().await.map_err(|refused| refused.to_string())
    })
    .await;

    let rule = json!({"when": "plan.destroy > 0", "then": "Ask"});
    for approval in [
        json!({"plan": "0123"}),
        json!({"mode": "Manual"}),
        json!({"destroy": "Manual"}),
        json!({"rules": [rule]}),
    ] {
        let refused = refusal(async || change(json!({ "approval": approval })).await).await;
        let command = format!(
            "kubectl create rolebinding approvers -n {} --clusterrole=alustan-approver --user=editor",
            space.namespace
        );
        assert!(refused.contains(&command), "{approval}: {refused}");
    }
    changed().await.expect("everything else");
    let create = async |approval: Value| {
        let new = with(resource("new"), "/approval", Some(approval));
        let apply = PatchParams::apply("editor").dry_run();
        editor.patch("new", &apply, &Patch::Apply(&new)).await
    };
    create(json!({"mode": "Manual"})).await.expect("a question");
    refusal(async || create(json!({"plan": "0123"})).await).await;

    let binding = bind(&space, "editor", "ClusterRole", "alustan-approver");
    install(&space, &[binding]);
    let approved = async || change(json!({"approval": {"plan": "0123"}})).await;
    until("the approver's rights", async || {
        approved().await.map_err(|refused| refused.to_string())
    })
    .await;
}

#[tokio::test]
async fn right_to_patch_without_update_allows_only_actions() {
    let space = Space::new().await;
    space.apply(&resource("web")).await.unwrap();
    install(
        &space,
        &[bind(&space, "acting", "ClusterRole", "alustan-operator")],
    );
    let client = space.server.client_as("acting").await;
    let acting: Api<Terraform> = Api::namespaced(client, &space.namespace);
    let patch = async |change: Value| {
        let parameters = PatchParams::default();
        acting
            .patch("web", &parameters, &Patch::Merge(&change))
            .await
    };
    until("the rights", async || {
        let suspended = patch(json!({"spec": {"suspend": true}})).await;
        suspended.map_err(|refused| refused.to_string())
    })
    .await;
    let annotate = |name: &str| json!({"metadata": {"annotations": {name: "now"}}});
    for name in [RECONCILE_AT, APPLY_AT, PLAN_AT, CANCEL_RUN] {
        patch(annotate(name)).await.unwrap();
    }
    for (change, message) in [
        (
            json!({"spec": {"variables": {"a": 1}}}),
            "may change only spec.approval.plan, spec.approval.by and spec.suspend",
        ),
        (
            json!({"spec": {"containerRegistry": {"imageName": "x.test/y"}}}),
            "grant the verb update",
        ),
        (
            json!({"spec": {"approval": {"plan": "0123"}}}),
            "require permission to approve",
        ),
        (
            annotate(DISCARD_PLAN),
            "discarding plans requires the verb approve",
        ),
        (
            annotate("alustan.io/abandon"),
            "may change only the annotations alustan.io/reconcile-at",
        ),
        (
            json!({"metadata": {"labels": {"a": "b"}}}),
            "may change only the annotations",
        ),
        (
            json!({"metadata": {"finalizers": ["example.test/hold"]}}),
            "may change only the annotations",
        ),
    ] {
        let refused = refusal(async || patch(change.clone()).await).await;
        assert!(refused.contains(message), "{change}: {refused}");
    }

    // The approver may also discard plans, but may neither suspend, reconcile nor cancel.
    install(
        &space,
        &[bind(&space, "approving", "ClusterRole", "alustan-approver")],
    );
    let client = space.server.client_as("approving").await;
    let approving: Api<Terraform> = Api::namespaced(client, &space.namespace);
    let parameters = PatchParams::default();
    let patch = async |change: &Value| {
        approving
            .patch("web", &parameters, &Patch::Merge(change))
            .await
    };
    until("the approver's rights", async || {
        let approved = patch(&json!({"spec": {"approval": {"plan": "0123"}}})).await;
        approved.map_err(|refused| refused.to_string())
    })
    .await;
    patch(&annotate(DISCARD_PLAN)).await.unwrap();
    let cancel = json!({"metadata": {"annotations": {CANCEL_RUN: "7"}}});
    let removal = json!({"metadata": {"annotations": {CANCEL_RUN: null}}});
    for (change, message) in [
        (json!({"spec": {"suspend": false}}), "the verb suspend"),
        (
            json!({"spec": {"approval": {"mode": "Manual"}}}),
            "may change only spec.approval.plan",
        ),
        (
            json!({"metadata": {"annotations": {RECONCILE_AT: "later"}}}),
            "the verb reconcile",
        ),
        (cancel, "the verb cancel"),
        (removal, "the verb cancel"),
    ] {
        let refused = refusal(async || patch(&change).await).await;
        assert!(refused.contains(message), "{change}: {refused}");
    }
}

/// Grants `alice` and `bob` the rights to edit and approve resources in `space`. Returns their clients.
async fn approvers(space: &Space) -> [Api<Terraform>; 2] {
    let may_edit = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "editor", "namespace": space.namespace},
        "rules": [{"apiGroups": ["alustan.io"], "resources": ["terraforms"], "verbs": ["get", "create", "patch", "update"]}],
    });
    install(space, &[may_edit]);
    let mut approvers = Vec::new();
    for user in ["alice", "bob"] {
        let bindings = [
            bind(space, user, "Role", "editor"),
            bind(space, user, "ClusterRole", "alustan-approver"),
        ];
        install(space, &bindings);
        let client = space.server.client_as(user).await;
        approvers.push(Api::namespaced(client, &space.namespace));
    }
    approvers.try_into().unwrap()
}

#[tokio::test]
async fn approver_has_the_name_of_the_user_of_the_request() {
    let space = Space::new().await;
    let [alice, bob] = approvers(&space).await;
    space.apply(&resource("web")).await.unwrap();
    let change = async |as_user: &Api<Terraform>, approval: Value| {
        let patch = Patch::Merge(json!({"spec": {"approval": approval}}));
        as_user.patch("web", &PatchParams::default(), &patch).await
    };
    for (as_user, emptying) in [(&alice, "Allow"), (&bob, "Ask")] {
        until("the approver's rights", async || {
            change(as_user, json!({"emptying": emptying}))
                .await
                .map_err(|refused| refused.to_string())
        })
        .await;
    }
    let refused = refusal(async || change(&bob, json!({"plan": "01", "by": "alice"})).await).await;
    assert!(
        refused.contains("spec.approval.by must be bob, the user who approves, or absent"),
        "{refused}"
    );

    let approved = change(&alice, json!({"plan": "01", "by": "alice"})).await;
    assert_eq!(approved.unwrap().spec.approval.by.as_deref(), Some("alice"));
    // `bob` cannot change the approved plan and keep `alice` as the approver.
    for forged in [json!({"plan": "02"}), json!({"plan": null})] {
        refusal(async || change(&bob, forged.clone()).await).await;
    }
    change(&bob, json!({"mode": "Manual"})).await.unwrap();
    let anonymous = change(&bob, json!({"plan": "02", "by": null})).await;
    assert_eq!(anonymous.unwrap().spec.approval.by, None);
    refusal(async || change(&bob, json!({"by": "alice"})).await).await;

    // A create request may name another approver: a restore creates resources with the approver in the backup.
    let new = with(resource("new"), "/approval", Some(json!({"by": "alice"})));
    let apply = PatchParams::apply("bob").dry_run();
    bob.patch("new", &apply, &Patch::Apply(&new)).await.unwrap();

    let annotated = |user: &str, plan: &str| {
        space.server.audit().iter().any(|call| {
            call["objectRef"]["namespace"] == space.namespace.as_str()
                && call["impersonatedUser"]["username"] == user
                && call["responseStatus"]["code"] == 200
                && call["annotations"]["alustan-approvals/plan"] == plan
        })
    };
    until("the users in the audit log", async || {
        (annotated("alice", "01") && annotated("bob", "02"))
            .then_some(())
            .ok_or_else(|| "not yet".to_owned())
    })
    .await;
}

/// Server-side apply does not remove `spec.approval.by` if another field manager owns the field.
#[tokio::test]
async fn refused_approval_beside_another_approver_names_the_remedy() {
    let space = Space::new().await;
    let [alice, bob] = approvers(&space).await;
    space.apply(&resource("web")).await.unwrap();
    let apply = PatchParams::apply("gitops").force();
    let approve = async |approval: Value| {
        let tf = with(resource("web"), "/approval", Some(approval));
        bob.patch("web", &apply, &Patch::Apply(&tf)).await
    };
    let change = async |approval: Value| {
        let patch = Patch::Merge(json!({"spec": {"approval": approval}}));
        alice.patch("web", &PatchParams::default(), &patch).await
    };
    until("the approver's rights", async || {
        change(json!({"plan": "01", "by": "alice"}))
            .await
            .map_err(|refused| refused.to_string())
    })
    .await;
    let refused = refusal(async || approve(json!({"plan": "02"})).await).await;
    let removal = json!({"by": null});
    let remedy = format!(
        "it is alice, as in an earlier approval. Set it to that user in the same request, or remove it first: kubectl patch \
         terraforms.alustan.io web -n {} --type merge -p '{{\"spec\":{{\"approval\":{removal}}}}}'",
        space.namespace
    );
    assert!(refused.contains(&remedy), "{refused}");

    let approval_of = |tf: Terraform| (tf.spec.approval.plan, tf.spec.approval.by);
    let approved = |plan: &str, by: Option<&str>| (Some(plan.to_owned()), by.map(str::to_owned));
    let named = approve(json!({"plan": "02", "by": "bob"})).await.unwrap();
    assert_eq!(approval_of(named), approved("02", Some("bob")));
    change(json!({"plan": "03", "by": "alice"})).await.unwrap();
    change(removal).await.unwrap();
    let anonymous = approve(json!({"plan": "04"})).await.unwrap();
    assert_eq!(approval_of(anonymous), approved("04", None));
}

#[tokio::test]
async fn operator_may_change_approval_only_of_a_deleted_resource() {
    let space = Space::new().await;
    let mut tf = resource("web");
    tf["metadata"]["finalizers"] = json!(["tests.alustan.io/hold"]);
    space.apply(&tf).await.unwrap();
    let client = space.server.client_as(OPERATOR).await;
    let operator: Api<Terraform> = Api::namespaced(client, &space.namespace);
    let edit = PatchParams::default();
    let mended = Patch::Merge(json!({"spec": {"approval": {"mode": "Manual"}}}));
    let refused = refusal(async || operator.patch("web", &edit, &mended).await).await;
    assert!(
        refused.contains("require permission to approve"),
        "{refused}"
    );

    let api = space.api::<Terraform>();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    operator.patch("web", &edit, &mended).await.unwrap();
    let open = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    operator.patch("web", &edit, &open).await.unwrap();
}

/// Installs the policy of the component `allow-lists`, a binding for the namespace of `space` only, and a `ConfigMap` with the lists.
async fn limit(space: &Space, lists: Value) {
    let text = include_str!("../../deploy/kustomize/components/allow-lists/policy.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let [policy, mut binding] = <[Value; 2]>::try_from(objects).unwrap();
    binding["metadata"]["name"] = json!(space.namespace);
    binding["spec"]["paramRef"]["namespace"] = json!(space.namespace);
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": space.namespace}});
    binding["spec"]["matchResources"] = json!({ "namespaceSelector": selector });
    install(space, &[policy, binding]);
    let lists: BTreeMap<String, String> = serde_json::from_value(lists).unwrap();
    let lists = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "alustan-allowed"}, "data": lists,
    });
    let api = space.api::<ConfigMap>();
    let apply = PatchParams::apply("tests").force();
    api.patch("alustan-allowed", &apply, &Patch::Apply(&lists))
        .await
        .unwrap();
}

/// Waits until the allow-lists refuse `tf`. Returns the message of the refusal.
async fn until_refused(space: &Space, tf: &Value) -> String {
    until("a refusal", async || match space.try_create(tf).await {
        Err(refused) => Ok(refused),
        Ok(_) => Err("it is allowed".to_owned()),
    })
    .await
}

/// Test cases of the allow-lists. The tests of the operator's own check (`crates/core/tests/behaviour/stories/allow_lists.rs`) use the same
/// cases and must give the same results.
const TABLE: &str = include_str!("../tables/allowed.json");

#[tokio::test]
async fn allow_lists_restrict_resources_to_listed_values() {
    let space = Space::new().await;
    let table: Value = serde_json::from_str(&TABLE.replace("NAMESPACE", &space.namespace)).unwrap();
    limit(&space, table["lists"].clone()).await;
    let good = with_spec("web", table["spec"].clone());
    let image = "/containerRegistry/imageName";
    let foreign = with(
        good.clone(),
        image,
        Some(json!("registry.test/teams/infra")),
    );
    let refused = until_refused(&space, &foreign).await;
    for word in [
        "registry.test/teams/infra",
        "registry.test/team, docker.io/bases",
    ] {
        assert!(refused.contains(word), "{refused}");
    }
    for case in table["cases"].as_array().unwrap() {
        let field = case["field"].as_str().unwrap();
        for (key, wanted) in [("allowed", true), ("refused", false)] {
            for value in case[key].as_array().unwrap() {
                let mut tf = with(good.clone(), field, Some(value.clone()));
                if field.starts_with("/source") {
                    tf = with(tf, "/gitRepo", None);
                }
                let created = space.try_create(&tf).await;
                assert_eq!(created.is_ok(), wanted, "{field} {value}: {created:?}");
            }
        }
    }
}

#[tokio::test]
async fn empty_allow_list_denies_all_and_missing_one_allows_all() {
    let space = Space::new().await;
    let lists =
        json!({"builders": "", "serviceAccounts": "", "approval": "Manual", "destroy": "Manual"});
    limit(&space, lists).await;
    let refused = until_refused(&space, &resource("web")).await;
    assert!(
        refused.contains("spec.approval.mode must be Manual"),
        "{refused}"
    );
    let manual = |mode: &str, destroy: &str| {
        let approval = json!({"mode": mode, "destroy": destroy});
        with(resource("web"), "/approval", Some(approval))
    };
    let refused = space
        .try_create(&manual("Manual", "Auto"))
        .await
        .unwrap_err();
    assert!(refused.contains("spec.approval.destroy"), "{refused}");
    let good = manual("Manual", "Manual");
    space
        .try_create(&good)
        .await
        .expect("any repository and registry");
    for (pointer, message) in [
        ("/containerRegistry/builder/image", "left to the operator"),
        ("/containerRegistry/serviceAccountName", "left out"),
    ] {
        let tf = with(good.clone(), pointer, Some(json!("some")));
        let refused = space.try_create(&tf).await.unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
}

#[tokio::test]
async fn list_of_repositories_allows_inline_modules_by_name() {
    let space = Space::new().await;
    limit(&space, json!({"repositories": "https://git.test\ninline"})).await;
    until_refused(&space, &resource("web")).await;
    let files = json!({"inline": {"files": {"main.tf": ""}}});
    let inline = with(resource("web"), "/source", Some(files));
    let inline = with(inline, "/gitRepo", None);
    space.try_create(&inline).await.expect("an inline module");
}

#[tokio::test]
async fn existing_resource_outside_the_lists_can_be_deleted() {
    let space = Space::new().await;
    let mut tf = resource("web");
    tf["metadata"]["finalizers"] = json!(["tests.alustan.io/hold"]);
    space.apply(&tf).await.unwrap();
    limit(&space, json!({"registries": "registry.test"})).await;
    let changed = with(tf.clone(), "/suspend", Some(json!(true)));
    until("a refusal", async || {
        match space.try_apply(&changed).await {
            Err(refused) => Ok(refused),
            Ok(_) => Err("it is allowed".to_owned()),
        }
    })
    .await;
    // The allow-lists do not refuse a change of the metadata.
    let note = json!({"metadata": {"annotations": {"a": "b"}}});
    let api = space.api::<Terraform>();
    let edit = PatchParams::default();
    api.patch("web", &edit, &Patch::Merge(&note)).await.unwrap();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    let orphan = json!({"spec": {"deletionPolicy": "Orphan"}});
    api.patch("web", &edit, &Patch::Merge(&orphan))
        .await
        .unwrap();
    let open = json!({"metadata": {"finalizers": null}});
    api.patch("web", &edit, &Patch::Merge(&open)).await.unwrap();
}

/// Client with the rights of a pod that runs the module of a resource.
struct Module {
    secrets: Api<Secret>,
}

impl Module {
    /// Creates the pod `name` with the runner ServiceAccount of resource `owner`. Returns a client with a token that is bound to this pod.
    async fn of(space: &Space, owner: &str, name: &str) -> Self {
        let account = names::runner(owner);
        let pod: Pod = space
            .create(json!({
                "metadata": {"name": name},
                "spec": {
                    "serviceAccountName": account,
                    "containers": [{"name": "run", "image": "a"}],
                },
            }))
            .await;
        let request: TokenRequest = serde_json::from_value(json!({"spec": {
            "audiences": [],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.uid()},
        }}))
        .unwrap();
        let accounts = space.api::<ServiceAccount>();
        let parameters = PostParams::default();
        let token = accounts
            .create_token_request(&account, &parameters, &request)
            .await
            .unwrap()
            .status
            .unwrap()
            .token;
        let client = space.server.client_with(&token).await;
        Self {
            secrets: Api::namespaced(client, &space.namespace),
        }
    }

    async fn patch(&self, secret: &str, patch: Value) -> Result<Secret, kube::Error> {
        let edit = PatchParams::default();
        self.secrets
            .patch(secret, &edit, &Patch::Merge(&patch))
            .await
    }

    /// Asserts that `patch` is refused with a message that contains `why`.
    async fn is_refused(&self, secret: &str, patch: Value, why: &str) {
        let refused = refusal(async || self.patch(secret, patch.clone()).await).await;
        assert!(refused.contains(why), "{secret}: {refused}");
    }
}

#[tokio::test]
async fn run_may_write_only_the_data_of_its_report_and_state() {
    // The policy must match the dot in the name literally, not as a regular expression.
    const NAME: &str = "web.prod";
    let space = Space::new().await;
    let stored = space.apply(&resource(NAME)).await.unwrap();
    let tf: Terraform = serde_json::from_value(stored).unwrap();
    let make = PostParams::default();
    for secret in [
        secrets::record(&tf, &RunRecord::default(), &History::default()),
        secrets::report(&tf, &RunProgress::default()),
        Secret {
            metadata: ObjectMeta {
                name: Some(names::state(NAME)),
                labels: Some(labels::of(NAME, &tf.uid().unwrap(), Component::State)),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        },
    ] {
        space.api().create(&make, &secret).await.unwrap();
    }
    let inputs = run_inputs(NAME);
    space
        .api()
        .create(&make, &rbac::account(&tf))
        .await
        .unwrap();
    space
        .api()
        .create(&make, &rbac::role(&tf, &inputs))
        .await
        .unwrap();
    let binding = rbac::binding(&tf, &inputs);
    space.api().create(&make, &binding).await.unwrap();

    let (record, report) = (names::record(NAME), names::report(NAME));
    let module = Module::of(&space, NAME, "web.prod-apply-12-abcde").await;
    let data = json!({"data": {key::PROGRESS: "e30="}});
    until("the rights of the run", async || {
        let written = module.patch(&report, data.clone()).await;
        written.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let state = names::state(NAME);
    module.patch(&state, data.clone()).await.unwrap();
    // The pods of `module` and `neighbour` have the same ServiceAccount, like runs of resources that share a ServiceAccount. A write that
    // succeeds before the API server enforces the policy does not affect the rest of the test.
    let neighbour = Module::of(&space, NAME, "web-prod-apply-1-abcde").await;
    let why = "pod web-prod-apply-1-abcde does not belong to a run of Terraform web.prod";
    neighbour.is_refused(&report, data.clone(), why).await;
    neighbour.is_refused(&state, data, why).await;

    module.secrets.get(&record).await.unwrap();
    let why = "cannot patch resource";
    module
        .is_refused(&record, json!({"data": {key::RECORD: "e30="}}), why)
        .await;
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": "another",
    });
    for metadata in [
        json!({"labels": {"alustan.io/terraform": "another"}}),
        json!({"annotations": {"a": "b"}}),
        json!({"finalizers": ["a.test/b"]}),
        json!({"ownerReferences": [owner]}),
    ] {
        let why = "not its metadata";
        module
            .is_refused(&report, json!({ "metadata": metadata }), why)
            .await;
    }
    module
        .is_refused(&report, json!({"immutable": true}), "not its metadata")
        .await;
}
