//! Behaviour of the operator that needs no node, with the rights of its ServiceAccount. All tests share one API server and one operator.
//! Resources that the operator cannot parse exist from the start.

mod bad_input;
mod github_app;
mod inputs;
mod outputs;
mod repositories;
mod sources;

use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::labels::{self, Component};
use alustan_api::run::RunKind;
use alustan_api::{FINALIZER, State, Terraform, names};
use alustan_tests::rights::calls;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Namespace, Secret};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GetParams, ListParams, Patch, PatchParams,
    PostParams, Request,
};
use kube::runtime::wait::await_condition;
use kube::runtime::wait::conditions::is_deleted;
use kube::{CustomResourceExt, Resource as _, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::pinned::{leave_record_and_pin, reports, signing_key};
use crate::samples;
use crate::server::{DEADLINE, OPERATOR, Server, operator, spawn_guarded, until};
use crate::space::{Space, resource, with, with_all};

/// Resources that the operator cannot parse. A test deletes two of them: `UNKNOWN` without a run record, and `PINNED` with run record and
/// pin.
const UNREADABLE: &str = "unreadable";
const UNKNOWN: &str = "unknown";
const PINNED: &str = "pinned";

struct Operator {
    server: Arc<Server>,
    _process: Child,
}

impl Operator {
    /// Returns the shared operator. It has its own API server, so that it does not reconcile resources of other tests.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Result<Operator, String>> = OnceCell::const_new();
        match SHARED.get_or_init(Self::start).await {
            Ok(operator) => operator,
            Err(problem) => panic!("{problem}"),
        }
    }

    async fn start() -> Result<Self, String> {
        let server = Server::start().await?;
        write_unreadable(&server).await;
        write_deep_managed_fields(&server)?;
        let mut operator = operator(&server)?;
        operator
            .args(["--listen", "127.0.0.1:0"])
            .arg("--allow-cross-namespace-refs")
            .args(["--log-level", "info,alustan_controller=debug"]);
        let process = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
        Ok(Self {
            server,
            _process: process,
        })
    }

    async fn space(&'static self) -> Space {
        Space::of(&self.server, json!({})).await
    }

    /// Returns the operator's writes to objects of `namespace`.
    fn writes(&self, namespace: &str) -> Vec<String> {
        let reads = ["get", "list", "watch"];
        self.calls()
            .filter(|call| call["objectRef"]["namespace"] == namespace)
            .filter(|call| !reads.contains(&call["verb"].as_str().unwrap()))
            .map(|call| format!("{} {}", call["verb"], call["requestURI"]))
            .collect()
    }

    fn calls(&self) -> impl Iterator<Item = Value> {
        self.server
            .audit()
            .into_iter()
            .filter(|call| call["impersonatedUser"]["username"] == OPERATOR)
    }

    /// Checks that the operator makes no call that its roles do not allow, and uses only its own Lease.
    fn keeps_to_its_role(&self) {
        for call in calls(self.calls()) {
            assert!(!call.forbidden, "{}", call.what);
        }
        for call in self.calls() {
            let request = format!("{} {}", call["verb"], call["requestURI"]);
            let object = &call["objectRef"];
            let own = object["namespace"] == "alustan-system" && object["name"] == "alustan";
            let other_lease = object["resource"] == "leases" && !own;
            // The audit log has no name for a create request, because the name is in the body.
            assert!(!other_lease || call["verb"] == "create", "{request}");
        }
    }

    /// Returns the URIs of the operator's requests for `Terraform` resources of all namespaces.
    fn uris_of_resources(&self) -> Vec<String> {
        let uris = self
            .calls()
            .filter_map(|call| call["requestURI"].as_str().map(str::to_owned));
        uris.filter(|uri| uri.starts_with("/apis/alustan.io/v1alpha1/terraforms?"))
            .collect()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.server.folder().join("operator.log")).unwrap()
    }
}

/// Creates the unreadable resources. The real CRD refuses these resources, so the function installs a CRD without validation first, and the
/// real CRD afterwards.
async fn write_unreadable(server: &Server) {
    let strict = Terraform::crd();
    let mut loose = strict.clone();
    let version = &mut loose.spec.versions[0];
    let anything = json!({
        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    });
    version.schema = Some(serde_json::from_value(anything).unwrap());
    server.install_crd(&loose).await;
    let unreadable = [UNREADABLE, UNKNOWN, PINNED].map(|name| {
        let finalizers: &[&str] = if name == UNREADABLE {
            &[]
        } else {
            &[FINALIZER]
        };
        json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": name, "namespace": "default", "finalizers": finalizers},
            "spec": {"gitRepo": "https://127.0.0.1:1/a/b", "retry": {"limit": "many"}},
        })
    });
    let unreadable = json!({"apiVersion": "v1", "kind": "List", "items": unreadable});
    let file = server.folder().join("unreadable.yaml");
    std::fs::write(&file, unreadable.to_string()).unwrap();
    let since = Instant::now();
    // The API server uses a changed CRD after a delay. Until then, it refuses the resources.
    while let Err(error) = server.kubectl(&["apply", "-f", file.to_str().unwrap()]) {
        assert!(since.elapsed() < DEADLINE, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.install_crd(&strict).await;
}

/// Creates an object of each watched kind whose `metadata.managedFields` the operator cannot parse, as any client may that may create the object.
fn write_deep_managed_fields(server: &Server) -> Result<(), String> {
    let nested = (0..200).fold(json!({}), |value, _| json!({"f:a": value}));
    let fields = json!([{
        "manager": "tenant", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": nested,
    }]);
    let containers = json!([{"name": "a", "image": "a"}]);
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    });
    let kinds = [
        ("v1", "ServiceAccount", json!({})),
        ("v1", "Secret", json!({})),
        ("v1", "ConfigMap", json!({})),
        ("v1", "PersistentVolumeClaim", json!({"spec": claim})),
        (
            "v1",
            "Pod",
            json!({"spec": {"containers": containers, "serviceAccountName": "deep"}}),
        ),
        (
            "batch/v1",
            "Job",
            json!({"spec": {"template": {"spec": {"containers": containers, "restartPolicy": "Never"}}}}),
        ),
    ];
    let labels = labels::of("web", "no-uid", Component::Record);
    let mut objects = Vec::new();
    for (version, kind, rest) in kinds {
        for (name, labels) in [("deep", None), ("deep-labelled", Some(&labels))] {
            let mut object = rest.clone();
            object["apiVersion"] = version.into();
            object["kind"] = kind.into();
            object["metadata"] = json!({
                "name": name, "namespace": "default", "labels": labels, "managedFields": fields,
            });
            objects.push(object);
        }
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let file = server.folder().join("deep.yaml");
    std::fs::write(&file, list.to_string()).unwrap();
    server.kubectl(&["create", "-f", file.to_str().unwrap()])?;
    let stored = [
        "get",
        "secret",
        "deep",
        "-o",
        "json",
        "--show-managed-fields",
    ];
    let stored = server.kubectl(&stored)?;
    assert!(stored.matches("f:a").count() > 150, "{stored}");
    Ok(())
}

/// Waits until `wanted` returns true for a resource.
async fn wait(
    api: &Api<Terraform>,
    name: &str,
    what: &str,
    wanted: impl Fn(&Terraform) -> bool,
) -> Terraform {
    let condition = |tf: Option<&Terraform>| tf.is_some_and(&wanted);
    let wait = Box::pin(await_condition(api.clone(), name, condition));
    if let Ok(result) = tokio::time::timeout(DEADLINE, wait).await {
        return result.unwrap().unwrap();
    }
    let last = api.get(name).await.unwrap();
    panic!("{name}: waited for {what}: {:#?}", last.status)
}

/// Returns status, reason and message of a condition.
fn condition(tf: &Terraform, kind: &str) -> (String, String, String) {
    tf.status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == kind)
        .map(|condition| {
            let (status, reason) = (condition.status.clone(), condition.reason.clone());
            (status, reason, condition.message.clone())
        })
        .unwrap_or_default()
}

fn reason(kind: &'static str, reason: &'static str) -> impl Fn(&Terraform) -> bool {
    move |tf| condition(tf, kind).1 == reason
}

async fn events(space: &Space, name: &str) -> Vec<(String, String)> {
    let fields = format!("involvedObject.name={name},involvedObject.kind=Terraform");
    let list = ListParams::default().fields(&fields);
    let events = space.api::<Event>().list(&list).await.unwrap();
    events
        .into_iter()
        .map(|event| {
            let reason = event.reason.unwrap_or_default();
            (reason, event.message.unwrap_or_default())
        })
        .collect()
}

#[tokio::test]
async fn unreachable_repository_is_reported_in_condition_and_event() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    space.apply(&resource("web")).await.unwrap();
    let api = space.api::<Terraform>();
    let unreachable = reason("SourceReady", "RepositoryUnreachable");
    let tf = wait(&api, "web", "a word about the repository", |tf| {
        unreachable(tf) && tf.status.as_ref().unwrap().state != State::Pending
    })
    .await;
    let (status, _, message) = condition(&tf, "SourceReady");
    assert_eq!(status, "False");
    assert!(message.contains("spec.gitRepo"), "{message}");
    assert!(
        message.contains("https://127.0.0.1:1/team/infra"),
        "{message}"
    );
    let (ready, _, message) = condition(&tf, "Ready");
    assert_eq!(ready, "False", "{message}");
    let status = tf.status.unwrap();
    assert_eq!(status.observed_generation, tf.metadata.generation);
    assert_eq!(tf.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));

    let since = Instant::now();
    loop {
        let events = events(&space, "web").await;
        if events
            .iter()
            .any(|(reason, _)| reason == "RepositoryUnreachable")
        {
            break;
        }
        assert!(since.elapsed() < DEADLINE, "{events:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn both_samples_report_their_invalid_image_name() {
    let operator = Operator::shared().await;
    let file = operator.server.folder().join("sample.yaml");
    let kubectl = |arguments: &[&str]| operator.server.kubectl(arguments).unwrap();
    let secret = ["-n", "default", "create", "secret", "generic"];
    let ssh = "--from-literal=ssh-privatekey=x";
    kubectl(&[&secret[..], &["my-ssh-secret", ssh]].concat());
    let docker = "--from-literal=dockerhub-cred={\"auths\":{\"docker.io\":{\"auth\":\"dTpw\"}}}";
    kubectl(&[&secret[..], &["my-dockerhub-secret", docker]].concat());
    for text in [samples::INLINE, samples::CONFIG_MAP] {
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        kubectl(&["apply", "-f", file]);
        let api: Api<Terraform> = Api::namespaced(operator.server.client().await, "default");
        let name = "example-terraformconfig";
        let invalid = reason("ImageReady", "InvalidImageName");
        let tf = wait(&api, name, "an answer", invalid).await;
        let (_, _, message) = condition(&tf, "ImageReady");
        assert!(
            message.contains("spec.containerRegistry.imageName"),
            "{message}"
        );
        kubectl(&["delete", "--timeout=60s", "-f", file]);
    }
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn deletion_of_a_resource_without_runs_leaves_nothing() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let mut web = resource("web");
    web["metadata"]["finalizers"] = json!(["example.com/mine"]);
    space.apply(&web).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "web", "a word", |tf| tf.status.is_some()).await;
    let kept = wait(&api, "web", "the finalizer", |tf| {
        tf.metadata
            .finalizers
            .iter()
            .flatten()
            .any(|name| name == FINALIZER)
    })
    .await
    .metadata
    .finalizers
    .unwrap();
    assert!(kept.contains(&"example.com/mine".to_owned()), "{kept:?}");
    api.delete("web", &DeleteParams::default()).await.unwrap();
    wait(&api, "web", "the operator to let go", |tf| {
        tf.metadata.finalizers.as_deref() == Some(&["example.com/mine".to_owned()])
    })
    .await;
    let remaining: Vec<_> = space
        .list::<Secret>()
        .await
        .into_iter()
        .map(|secret| secret.metadata.name)
        .collect();
    assert!(remaining.is_empty(), "{remaining:?}");
    let free = json!({"metadata": {"finalizers": null}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(&free))
        .await
        .unwrap();
    operator.keeps_to_its_role();
}

/// As if the API server had deleted the resource while it accepted the finalizer.
#[tokio::test]
async fn run_record_of_a_resource_deleted_without_finalizer_before_its_first_run_is_deleted() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    space.apply(&resource("web")).await.unwrap();
    let secrets = space.api::<Secret>();
    let exists = |secret: Option<&Secret>| secret.is_some();
    let record = await_condition(secrets.clone(), "web-run", exists);
    let uid = record.await.unwrap().unwrap().uid().unwrap();
    let api = space.api::<Terraform>();
    let free = json!({"metadata": {"finalizers": null}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(&free))
        .await
        .unwrap();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    let waited = await_condition(secrets, "web-run", is_deleted(&uid));
    tokio::time::timeout(DEADLINE, waited)
        .await
        .expect("the deletion of the run record")
        .unwrap();
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn status_fields_left_by_metacontroller_are_removed() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let web = with(resource("web"), "/gitRepo/url", Some(json!("ftp://a/b")));
    space.apply(&web).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "web", "a word", |tf| {
        condition(tf, "Stalled").0 == "True"
    })
    .await;
    let raw = space.raw();
    let mut stored = raw.get("web").await.unwrap();
    stored.data["status"]["queue"] = json!({"position": 3});
    stored.data["status"]["plan"] = json!({"summary": "+1 ~0 -0", "pendingApproval": true, "add": 1, "change": 0, "destroy": 0});
    let parameters = PostParams {
        field_manager: Some("metacontroller".to_owned()),
        ..PostParams::default()
    };
    raw.replace_status("web", &parameters, &stored)
        .await
        .unwrap();

    let edited = with(web, "/retry/limit", Some(json!(3)));
    space.apply(&edited).await.unwrap();
    let tf = wait(&api, "web", "a status without them", |tf| {
        let status = tf.status.as_ref().unwrap();
        status.observed_generation == Some(2) && status.queue.is_none() && status.plan.is_none()
    })
    .await;
    assert_eq!(tf.status.unwrap().state, State::Stalled);
    operator.keeps_to_its_role();
}

/// The operator cannot parse the JSON of a resource that is nested too deeply.
#[tokio::test]
async fn deeply_nested_resource_stops_no_other_resource() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let nested = (0..300).fold(json!({}), |value, _| json!({"a": value}));
    let mut deep = with(resource("x"), "/variables", Some(json!({"a": nested})));
    deep["metadata"]["name"] = "deep".into();
    let client = operator.server.client().await;
    // The typed client cannot parse the resource either.
    let request = Request::new(Terraform::url_path(&(), Some(&space.namespace)));
    let create = request.create(&PostParams::default(), deep.to_string().into_bytes());
    client.request_text(create.unwrap()).await.unwrap();
    until("the error in the log", async || {
        let log = operator.log();
        let name = format!("deep.{}", space.namespace);
        let mut lines = log.lines();
        let is_reported =
            lines.any(|line| line.contains(&name) && line.contains("recursion limit"));
        is_reported
            .then_some(())
            .ok_or_else(|| "no error".to_owned())
    })
    .await;
    let mut other = resource("x");
    other["metadata"]["name"] = "other".into();
    space.apply(&other).await.unwrap();
    let api = space.api::<Terraform>();
    wait(&api, "other", "a status", |tf| tf.status.is_some()).await;
    let delete = request.delete("deep", &DeleteParams::default()).unwrap();
    client.request_text(delete).await.unwrap();
    until("the deletion", async || {
        let get = request.get("deep", &GetParams::default()).unwrap();
        match client.request_text(get).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            result => Err(format!("{result:?}")),
        }
    })
    .await;
}

/// The list must be as recent as a list in pages, so it names no resource version.
#[tokio::test]
async fn existing_resources_are_streamed_as_of_now() {
    let operator = Operator::shared().await;
    let uris = until("a list", async || {
        let uris = operator.uris_of_resources();
        let is_listed = uris.iter().any(|uri| uri.contains("sendInitialEvents"));
        is_listed
            .then_some(uris.clone())
            .ok_or_else(|| format!("{uris:?}"))
    })
    .await;
    let streamed = uris.iter().find(|uri| uri.contains("sendInitialEvents"));
    assert!(!streamed.unwrap().contains("resourceVersion=0"), "{uris:?}");
    assert!(uris.iter().all(|uri| !uri.contains("limit=")), "{uris:?}");
}

#[tokio::test]
async fn resources_are_listed_in_pages_without_streaming_lists() {
    const MANY: usize = 60;
    let server = Server::without_streaming_lists().await;
    let space = Space::of(&server, json!({})).await;
    for number in 0..MANY {
        let name = format!("suspended-{number}");
        let suspended = with(resource(&name), "/suspend", Some(true.into()));
        space.apply(&suspended).await.unwrap();
    }
    let mut program = operator(&server).unwrap();
    program.args(["--listen", "127.0.0.1:0"]);
    let operator = Operator {
        _process: spawn_guarded(&mut program, &server.folder().join("operator.log")),
        server,
    };
    until("a status of each resource", async || {
        let resources = space.list::<Terraform>().await;
        let reconciled = resources.iter().filter(|tf| tf.status.is_some()).count();
        (reconciled == MANY)
            .then_some(())
            .ok_or_else(|| format!("{reconciled} of {MANY}"))
    })
    .await;
    let uris = operator.uris_of_resources();
    let pages = uris.iter().filter(|uri| uri.contains("limit=50"));
    assert_eq!(pages.count(), 2);
}

/// The operator watches 200 idle resources, and one resource that it cannot parse.
#[tokio::test]
async fn idle_resources_cause_no_write_beside_an_unreadable_one() {
    const MANY: usize = 200;
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let idle = with_all(
        resource("x"),
        json!({"/gitRepo/interval": "1s", "/gitRepo/url": "ftp://a/b"}),
    );
    for number in 0..MANY {
        let mut one = idle.clone();
        one["metadata"]["name"] = format!("idle-{number}").into();
        space.apply(&one).await.unwrap();
    }
    let api = space.api::<Terraform>();
    until("answers for all", async || {
        let all: Vec<Terraform> = space.list().await;
        let stalled = |tf: &&Terraform| condition(tf, "Stalled").0 == "True";
        let done = all.iter().filter(stalled).count();
        let not_yet = || format!("{done} of {MANY} have an answer");
        (done == MANY).then_some(()).ok_or_else(not_yet)
    })
    .await;
    settle(operator, &space.namespace).await;

    let before = operator.writes(&space.namespace).len();
    // Six polling intervals (`gitRepo.interval: 1s`).
    tokio::time::sleep(Duration::from_secs(6)).await;
    let writes = operator.writes(&space.namespace);
    let more = writes.len() - before;
    let first = writes.get(before);
    assert_eq!(more, 0, "writes while idle, the first: {first:?}");
    assert!(
        operator.log().contains(UNREADABLE),
        "not a word of it in the log"
    );

    let mut edited = idle.clone();
    edited["metadata"]["name"] = "idle-7".into();
    let edited = with(edited, "/retry/limit", Some(json!(3)));
    space.apply(&edited).await.unwrap();
    wait(&api, "idle-7", "a look at the edited one", |tf| {
        tf.status
            .as_ref()
            .and_then(|status| status.observed_generation)
            == Some(2)
    })
    .await;

    // The operator reconciles the unreadable resource once it is fixed.
    let mended = json!({"spec": {
        "gitRepo": {"url": "https://127.0.0.1:1/a/b"}, "retry": {"limit": 2},
        "containerRegistry": {"imageName": "127.0.0.1:1/a/b"},
    }});
    let default: Api<Terraform> = Api::namespaced(operator.server.client().await, "default");
    default
        .patch(UNREADABLE, &PatchParams::default(), &Patch::Merge(&mended))
        .await
        .unwrap();
    wait(&default, UNREADABLE, "a word about the mended one", |tf| {
        tf.status.is_some()
    })
    .await;
    let record = names::record(UNREADABLE);
    let secrets: Api<Secret> = Api::namespaced(operator.server.client().await, "default");
    assert!(
        secrets.get_opt(&record).await.unwrap().is_some(),
        "{record}"
    );
    operator.keeps_to_its_role();
}

/// Returns an untyped API of the resources in the namespace `default`, for resources that cannot be parsed.
fn unread(client: kube::Client) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<Terraform>(&());
    Api::namespaced_with(client, "default", &kind)
}

/// Waits until the operator removes its finalizer. The finalizer of foreground deletion stays, because this server has no garbage
/// collector.
async fn until_released(api: &Api<DynamicObject>, name: &str) {
    until("the operator to let go", async || {
        let object = api.get_opt(name).await.unwrap();
        match object.filter(|object| object.finalizers().contains(&FINALIZER.to_owned())) {
            Some(object) => Err(format!("{object:?}")),
            None => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn an_unreadable_resource_is_destroyed_by_its_pin_alone() {
    let operator = Operator::shared().await;
    let client = operator.server.client().await;
    let api = unread(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let jobs: Api<Job> = Api::namespaced(client.clone(), "default");
    let key = signing_key(&client).await;
    let pinned = api.get(PINNED).await.unwrap();
    leave_record_and_pin(&secrets, &pinned, Some(&key)).await;
    let foreground = DeleteParams::foreground();
    api.delete(PINNED, &foreground).await.unwrap();
    let destroy = names::run_job(PINNED, RunKind::Destroy, 2);
    until("the Job", async || {
        let job = jobs.get_opt(&destroy).await.unwrap();
        job.map(drop).ok_or_else(|| format!("no Job {destroy}"))
    })
    .await;
    let name = names::record(PINNED);
    reports(&secrets, PINNED, 2).await.unwrap();
    until_released(&api, PINNED).await;
    assert!(secrets.get_opt(&name).await.unwrap().is_none());
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn unreadable_resource_without_record_is_kept_until_fixed() {
    let operator = Operator::shared().await;
    let api = unread(operator.server.client().await);
    api.delete(UNKNOWN, &DeleteParams::foreground())
        .await
        .unwrap();
    let wanted = [
        "cannot read the resource",
        "is unknown",
        "Correct the resource",
    ];
    let default: Api<Event> = Api::namespaced(operator.server.client().await, "default");
    until("a word about it", async || {
        let fields = format!("involvedObject.name={UNKNOWN}");
        let list = ListParams::default().fields(&fields);
        let notes: Vec<_> = default
            .list(&list)
            .await
            .unwrap()
            .items
            .into_iter()
            .filter_map(|event| event.message)
            .collect();
        let matches = |note: &String| wanted.iter().all(|part| note.contains(part));
        let reported = notes.iter().any(matches);
        reported.then_some(()).ok_or_else(|| notes.join("\n"))
    })
    .await;
    let mut mended = json!({
        "metadata": {"annotations": {alustan_api::ABANDON: "true"}},
        "spec": resource(UNKNOWN)["spec"],
    });
    mended["spec"]["retry"] = json!({"limit": 2});
    api.patch(UNKNOWN, &PatchParams::default(), &Patch::Merge(&mended))
        .await
        .unwrap();
    until_released(&api, UNKNOWN).await;
    operator.keeps_to_its_role();
}

#[tokio::test]
async fn namespace_label_is_removed_with_the_last_pin() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    let namespaces: Api<Namespace> = Api::all(space.client.clone());
    let mark = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": space.namespace, "labels": {labels::HOLDS_STATE: "true"}},
    });
    let manager = PatchParams::apply("terraform.alustan.io/namespace");
    namespaces
        .patch(&space.namespace, &manager, &Patch::Apply(&mark))
        .await
        .unwrap();
    let is_marked = async || {
        let namespace = namespaces.get(&space.namespace).await.unwrap();
        namespace.labels().contains_key(labels::HOLDS_STATE)
    };
    let api = space.api::<Terraform>();
    let secrets = space.api::<Secret>();
    for name in ["one", "other"] {
        space.apply(&resource(name)).await.unwrap();
        wait(&api, name, "a word", |tf| tf.status.is_some()).await;
    }
    space
        .create::<Secret>(json!({
            "metadata": {"name": "third-pin", "labels": labels::of("third", "3", Component::Pin)},
        }))
        .await;
    let delete = async |name: &str| {
        api.delete(name, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(api.clone(), name, |tf: Option<&Terraform>| tf.is_none());
        tokio::time::timeout(DEADLINE, gone).await.unwrap().unwrap();
    };
    delete("one").await;
    assert!(is_marked().await, "a third resource has a pin");
    secrets
        .delete("third-pin", &DeleteParams::default())
        .await
        .unwrap();
    delete("other").await;
    assert!(!is_marked().await);
    operator.keeps_to_its_role();
}

/// Waits until the operator has written nothing in `namespace` for two seconds.
async fn settle(operator: &Operator, namespace: &str) {
    let since = Instant::now();
    let mut before = usize::MAX;
    loop {
        let now = operator.writes(namespace).len();
        if now == before {
            return;
        }
        assert!(since.elapsed() < DEADLINE, "it writes on and on");
        before = now;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The shared operator has `--allow-cross-namespace-refs`. For an operator without the flag, see
/// `inputs_are_awaited_keep_their_types_and_start_one_run`.
#[tokio::test]
async fn cross_namespace_dependencies_are_read_and_watched() {
    let operator = Operator::shared().await;
    let (space, other) = (operator.space().await, operator.space().await);
    let depends = json!([{"name": "network", "namespace": other.namespace}]);
    let web = with(resource("web"), "/dependsOn", Some(depends));
    space.apply(&web).await.unwrap();
    let api = space.api::<Terraform>();
    let waits = |reason: &'static str| self::reason("DependenciesReady", reason);
    let tf = wait(&api, "web", "a word", waits("DependencyNotFound")).await;
    let name = format!("{}/network", other.namespace);
    let (_, _, message) = condition(&tf, "DependenciesReady");
    assert!(
        message.contains(&format!(
            "spec.dependsOn[0]: Terraform resource {name} does not exist"
        )),
        "{message}"
    );
    other.apply(&resource("network")).await.unwrap();
    let tf = wait(&api, "web", "the other", waits("DependencyNotReady")).await;
    assert_eq!(tf.status.unwrap().blocked_by[0].name, name);
    let network = other.api::<Terraform>();
    network
        .delete("network", &DeleteParams::default())
        .await
        .unwrap();
    wait(
        &api,
        "web",
        "the other to be gone",
        waits("DependencyNotFound"),
    )
    .await;
}
