//! The operator with `--driver=metacontroller` and a fake metacontroller: the HTTP exchanges between them, and the status of the resource.

mod program;

use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use alustan_api::{FINALIZER, State, Terraform};
use alustan_tests::metacontroller::{self, FakeMetacontroller, Hooks};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::server::{OPERATOR, Server, free_ports, operator, spawn_guarded, until};
use crate::space::{Space, resource, with};

const TOKEN: &str = "the-token-of-this-test";

struct Operator {
    server: Arc<Server>,
    url: String,
    _process: Child,
}

impl Operator {
    /// Returns the shared operator. It has its own API server, so that no other operator reconciles its resources.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Result<Operator, String>> = OnceCell::const_new();
        match SHARED.get_or_init(Self::start).await {
            Ok(operator) => operator,
            Err(problem) => panic!("{problem}"),
        }
    }

    async fn start() -> Result<Self, String> {
        let server = Server::start().await?;
        let tokens = server.folder().join("tokens");
        std::fs::create_dir(&tokens).unwrap();
        std::fs::write(tokens.join("token"), TOKEN).unwrap();
        let [port] = free_ports();
        let mut operator = operator(&server)?;
        operator
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--driver", "metacontroller"])
            .arg("--sync-token-dir")
            .arg(tokens);
        let process = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
        Ok(Self {
            server,
            url: format!("http://127.0.0.1:{port}/sync"),
            _process: process,
        })
    }

    async fn space(&'static self) -> Space {
        Space::of(&self.server, json!({})).await
    }

    fn fake_metacontroller(&self, space: &Space, hooks: Hooks) -> FakeMetacontroller {
        let client = space.client.clone();
        FakeMetacontroller::start(client, &space.namespace, &self.url, TOKEN, hooks)
    }

    /// Returns how often the operator has patched resources of `namespace`, or their subresource `subresource`.
    fn patch_count(&self, namespace: &str, subresource: Option<&str>) -> usize {
        self.server
            .audit()
            .into_iter()
            .filter(|call| {
                let object = &call["objectRef"];
                call["impersonatedUser"]["username"] == OPERATOR
                    && object["namespace"] == namespace
                    && object["resource"] == "terraforms"
                    && object["subresource"].as_str() == subresource
                    && call["verb"] == "patch"
            })
            .count()
    }
}

/// Returns a resource with an invalid URL: it becomes `Stalled` and starts no run.
fn stalled(name: &str) -> Value {
    with(resource(name), "/gitRepo/url", Some(json!("ftp://a/b")))
}

async fn wait(
    api: &Api<Terraform>,
    name: &str,
    what: &str,
    wanted: impl Fn(&Terraform) -> bool,
) -> Terraform {
    until(what, async || match api.get_opt(name).await.unwrap() {
        Some(tf) if wanted(&tf) => Ok(tf),
        other => Err(format!("{:#?}", other.map(|tf| tf.status))),
    })
    .await
}

fn is_stalled(tf: &Terraform) -> bool {
    let status = tf.status.as_ref();
    status.is_some_and(|status| {
        status.state == State::Stalled && status.observed_generation == tf.metadata.generation
    })
}

fn finalizers(tf: &Terraform) -> Vec<&str> {
    tf.finalizers().iter().map(String::as_str).collect()
}

async fn is_deleted(space: &Space, name: &str) {
    let api = space.api::<Terraform>();
    until("the resource to go", async || {
        let tf = api.get_opt(name).await.unwrap();
        tf.map_or(Ok(()), |tf| Err(format!("{:#?}", tf.metadata.finalizers)))
    })
    .await;
    let names: Vec<_> = space
        .list::<Secret>()
        .await
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn metacontroller_writes_the_status_and_operator_all_else() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let metacontroller = operator.fake_metacontroller(&space, Hooks::V2);
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    let tf = wait(&api, "web", "a status", is_stalled).await;
    assert_eq!(finalizers(&tf), [FINALIZER]);
    let of_status = |entry: &&_| {
        let entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry = entry;
        entry.subresource.as_deref() == Some("status")
    };
    let writers: Vec<_> = tf
        .managed_fields()
        .iter()
        .filter(of_status)
        .map(|entry| entry.manager.as_deref())
        .collect();
    assert_eq!(writers, [Some("metacontroller")], "one owner of the status");
    assert_eq!(operator.patch_count(&space.namespace, Some("status")), 0);

    let edited = with(stalled("web"), "/retry/limit", Some(json!(3)));
    space.apply(&edited).await.unwrap();
    wait(&api, "web", "the next generation", |tf| {
        tf.metadata.generation == Some(2) && is_stalled(tf)
    })
    .await;
    api.delete("web", &DeleteParams::default()).await.unwrap();
    is_deleted(&space, "web").await;
    for call in metacontroller.calls() {
        assert!(matches!(call.status, 200 | 304 | 429), "{call:?}");
        assert!(call.took < Duration::from_secs(8), "{:?}", call.took);
        let text = call.request.to_string();
        assert!(!text.contains("Secret.v1"), "{text}");
    }
}

#[tokio::test]
async fn idle_resource_gets_not_modified_and_causes_no_write() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let metacontroller = operator.fake_metacontroller(&space, Hooks::V2);
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "web", "a status", is_stalled).await;
    // Each changed label triggers a call of the hook. Changes the label until the response is 304 with `resyncAfterSeconds: 30`, which
    // means that the resource is idle.
    for turn in 0..100 {
        let turn = turn.to_string();
        let touched = json!({"metadata": {"labels": {"turn": turn}}});
        let parameters = PatchParams::default();
        api.patch("web", &parameters, &Patch::Merge(&touched))
            .await
            .unwrap();
        let called = |call: &metacontroller::Exchange| {
            call.request["parent"]["metadata"]["labels"]["turn"] == turn
        };
        let known = until("a call with the label", async || {
            let calls = metacontroller.calls();
            let call = calls.iter().rfind(|call| called(call));
            call.cloned().ok_or_else(|| format!("{:?}", calls.last()))
        })
        .await;
        // For a resource in progress, the status of the response may also be 304, but `resyncAfterSeconds` is shorter.
        if (known.status, &known.answer["resyncAfterSeconds"]) == (304, &json!(30)) {
            break;
        }
    }
    let last = metacontroller.calls().pop().unwrap();
    assert_eq!(last.status, 304, "{last:?}");
    assert_eq!(last.answer["resyncAfterSeconds"], 30, "{last:?}");
    let writes = operator.patch_count(&space.namespace, None);
    let before = api.get("web").await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(operator.patch_count(&space.namespace, None), writes);
    let after = api.get("web").await.unwrap();
    assert_eq!(after.status, before.status);
    assert_eq!(after.resource_version(), before.resource_version());
}

#[tokio::test]
async fn finalize_hook_v1_finalizes_once_nothing_is_left() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let hooks = Hooks {
        version: "v1",
        finalize: true,
    };
    let metacontroller = operator.fake_metacontroller(&space, hooks);
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    let tf = wait(&api, "web", "a status", is_stalled).await;
    let mut both = finalizers(&tf);
    both.sort_unstable();
    assert_eq!(both, [metacontroller::FINALIZER, FINALIZER]);
    api.delete("web", &DeleteParams::default()).await.unwrap();
    is_deleted(&space, "web").await;
    let last = metacontroller.calls().pop().unwrap();
    assert_eq!(last.request["finalizing"], true);
    assert_eq!(last.answer["finalized"], true);
}

#[tokio::test]
async fn resource_outside_the_selector_is_released_not_destroyed() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let hooks = Hooks {
        version: "v2",
        finalize: true,
    };
    let metacontroller = operator.fake_metacontroller(&space, hooks);
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    let before = wait(&api, "web", "a status", is_stalled).await;
    metacontroller.select(|object| !object.labels().contains_key("elsewhere"));
    let elsewhere = json!({"metadata": {"labels": {"elsewhere": "yes"}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(&elsewhere))
        .await
        .unwrap();
    let after = wait(&api, "web", "metacontroller to let go", |tf| {
        finalizers(tf) == [FINALIZER]
    })
    .await;
    assert_eq!(after.status, before.status);
    assert!(
        !space.list::<Secret>().await.is_empty(),
        "the record is gone"
    );
}

#[tokio::test]
async fn forged_hook_request_runs_nothing_and_changes_no_spec() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let metacontroller = operator.fake_metacontroller(&space, Hooks::V2);
    space.apply(&stalled("web")).await.unwrap();
    let api = space.api::<Terraform>();
    let tf = wait(&api, "web", "a status", is_stalled).await;
    let mut request = metacontroller.calls().pop().unwrap().request;
    drop(metacontroller);

    let http = reqwest::Client::new();
    let post = async |body: &Value, token: &str| {
        let request = http
            .post(&operator.url)
            .header("Content-Type", "application/json")
            .bearer_auth(token);
        let response = request.body(body.to_string()).send().await.unwrap();
        let status = response.status().as_u16();
        let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        (status, body)
    };
    let (status, refusal) = post(&request, "another-token").await;
    assert_eq!((status, &refusal["reason"]), (401, &json!("Unauthorized")));

    request["parent"]["spec"]["gitRepo"]["url"] = json!("https://evil.test/repo");
    request["parent"]["status"] = json!({"state": "Success"});
    let (status, answer) = post(&request, TOKEN).await;
    assert_eq!(
        (status, &answer["status"]["state"]),
        (200, &json!("Stalled"))
    );
    request["parent"]["metadata"]["name"] = json!("nobody");
    let (status, answer) = post(&request, TOKEN).await;
    assert_eq!(
        (status, &answer["status"]["state"]),
        (200, &json!("Success"))
    );
    let of_nobody = space
        .list::<Secret>()
        .await
        .into_iter()
        .filter(|secret| secret.name_any().starts_with("nobody"));
    assert_eq!(of_nobody.count(), 0);
    assert_eq!(api.get("web").await.unwrap().spec, tf.spec);
}

#[tokio::test]
async fn metacontroller_manifests_apply_and_declare_no_children() {
    let server = Server::shared().await;
    let manifests = server.kubectl(&["kustomize", "deploy/metacontroller"]);
    let all: Vec<Value> = serde_saphyr::from_multiple(&manifests.unwrap()).unwrap();
    let is_controller = |object: &Value| object["kind"] == "CompositeController";
    let (controllers, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_controller);
    let [controller] = controllers.as_slice() else {
        panic!("{controllers:?}");
    };
    let spec = &controller["spec"];
    let hooks: Vec<_> = spec["hooks"].as_object().unwrap().keys().collect();
    assert_eq!(hooks, ["sync"]);
    assert_eq!(spec["childResources"], Value::Null);
    let etag = &spec["hooks"]["sync"]["webhook"]["etag"];
    assert!(etag["cacheTimeoutSeconds"].is_u64() && etag["cacheCleanupSeconds"].is_u64());

    let list = json!({"apiVersion": "v1", "kind": "List", "items": others});
    let file = server.folder().join("metacontroller.yaml");
    std::fs::write(&file, list.to_string()).unwrap();
    let strict = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
    ];
    let taken = [
        &strict[..],
        &["--force-conflicts", "-f", file.to_str().unwrap()],
    ]
    .concat();
    server.kubectl(&taken).unwrap();
}
