//! Records of finished runs: who may write them, and their retention.

use std::process::Command;

use alustan_api::labels::{self, BYTES, Component, WRITTEN_AT};
use alustan_api::{Terraform, TerraformRun, run_name};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::calls;
use crate::outside::Outside;
use crate::policies::{bind, install, refusal};
use crate::server::{OPERATOR, Server, built, free_ports, spawn_guarded, until};
use crate::space::{Space, resource, with};

/// Returns the record of run `number` of the resource with `name` and `uid`.
fn run(name: &str, uid: &str, number: i64) -> TerraformRun {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "TerraformRun",
        "metadata": {
            "name": run_name(name, uid, number), "labels": labels::of(name, uid, Component::History),
            "annotations": {BYTES: "60000", WRITTEN_AT: format!("2026-01-01T00:0{number}:00Z")},
        },
        "spec": {
            "terraform": {"name": name, "uid": uid}, "number": number, "kind": "apply", "trigger": "created",
            "job": format!("{name}-apply-{number}"), "startedAt": "2026-01-01T00:00:00Z",
        },
        "status": {
            "result": "Done", "count": 1, "lastNumber": number, "finishedAt": "2026-01-01T00:00:09Z", "seconds": 9, "steps": {},
            "plan": "terraform_data.a will be created", "log": {"head": "Apply complete!", "omittedBytes": 0},
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn only_the_operator_writes_terraform_runs() {
    let space = Space::new().await;
    let may_edit = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "editor", "namespace": space.namespace},
        "rules": [{"apiGroups": ["alustan.io"], "resources": ["terraformruns"], "verbs": ["*"]}],
    });
    install(
        &space,
        &[may_edit, bind(&space, "editor", "Role", "editor")],
    );
    let runs = async |user: &str| {
        let client = space.server.client_as(user).await;
        Api::<TerraformRun>::namespaced(client, &space.namespace)
    };
    let (editor, operator) = (runs("editor").await, runs(OPERATOR).await);
    until("the editor's rights", async || {
        let listed = editor.list(&ListParams::default()).await;
        listed.map_err(|refused| refused.to_string())
    })
    .await;
    let run = run("web", "12345", 1);
    let create = PostParams::default();
    let refused = refusal(async || editor.create(&create, &run).await).await;
    assert!(
        refused.contains("only the operator writes TerraformRuns"),
        "{refused}"
    );
    operator.create(&create, &run).await.unwrap();
    let edit = PatchParams::default();
    let patch = async |user: &Api<TerraformRun>, change: Value| {
        user.patch("web-12345-1", &edit, &Patch::Merge(&change))
            .await
    };
    for forged in [
        json!({"status": {"result": "Failed"}}),
        json!({"status": null}),
        json!({"metadata": {"labels": {"alustan.io/terraform": "other"}}}),
        json!({"metadata": {"annotations": {BYTES: "0"}}}),
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1"},
        ]}}),
    ] {
        refusal(async || patch(&editor, forged.clone()).await).await;
    }
    let counted = json!({"status": {"count": 2, "lastNumber": 2}});
    patch(&operator, counted).await.unwrap();
    let changed = patch(&operator, json!({"spec": {"trigger": "none"}})).await;
    let refused = changed.expect_err("an immutable spec").to_string();
    assert!(
        refused.contains("the record of a run cannot be changed"),
        "{refused}"
    );
    editor
        .delete("web-12345-1", &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn records_have_a_maximum_age_after_the_deletion_and_a_maximum_size() {
    let server = Server::of_its_own().await;
    let outside = Outside::start(server.folder()).await;
    let space = Space::of(&server, json!({})).await;
    let suspended = with(resource("web"), "/suspend", Some(json!(true)));
    space.apply(&suspended).await.unwrap();
    let uid = space.api::<Terraform>().get("web").await.unwrap().uid();
    let client = server.client_as(OPERATOR).await;
    let runs = Api::<TerraformRun>::namespaced(client, &space.namespace);
    let of_web = [1, 2].map(|number| run("web", uid.as_ref().unwrap(), number));
    for record in of_web.iter().chain([&run("deleted", "12345", 3)]) {
        runs.create(&PostParams::default(), record).await.unwrap();
    }
    let [port] = free_ports();
    let program = Command::new(built("alustan-controller").unwrap());
    let mut operator = calls::operator(program, &server, &outside, port);
    operator
        .args(["--keep-deleted-runs", "1m"])
        .args(["--run-history-bytes", "100000"]);
    let mut process = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
    let texts = |run: &TerraformRun| {
        let status = run.status.clone().unwrap();
        (
            run.spec.number,
            status.result,
            status.plan.is_some(),
            status.log.head,
        )
    };
    until("the retention", async || {
        let listed = runs.list(&ListParams::default()).await.unwrap();
        let mut found: Vec<_> = listed.iter().map(texts).collect();
        found.sort();
        let done = || "Done".to_owned();
        let expected = [
            (1, done(), false, String::new()),
            (2, done(), true, "Apply complete!".to_owned()),
        ];
        (found == expected)
            .then_some(())
            .ok_or_else(|| format!("{found:?}"))
    })
    .await;
    // The operator ends with its standard input.
    drop(process.stdin.take());
    process.wait().unwrap();
}
