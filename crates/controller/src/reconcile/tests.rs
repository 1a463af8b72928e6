use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use alustan_api::ObjectKey;
use alustan_api::labels::{self, Component};
use alustan_api::report::RunReport;
use alustan_api::run::{History, RunRecord};
use alustan_api::{Terraform, TerraformStatus};
use alustan_core::model::admission::no_pod;
use alustan_core::observed::{JobSeen, ObjectVersion, RecordSeen, SourceSeen};
use alustan_core::queue::Class;
use alustan_core::step::{Decision, Object, Start, Step, Swap, TakeOver};
use alustan_registry::Digest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use kube::api::PartialObjectMetaExt as _;
use kube::runtime::controller::Action;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::observe_and_decide;
use crate::apply::context_push::sender;
use crate::apply::decision::{Executed, apply};
use crate::apply::step_executor::StepExecutor;
use crate::attempt::reconcile_object;
use crate::clock::Clock;
use crate::context::Context;
use crate::context_builder::{ContextParts, context_of_test};
use crate::fake_api::{self, RequestLog};
use crate::indexed_store::{IndexedStore, indexed_store};
use crate::mirrors::Mirrors;
use crate::native_driver::{postponed_at_start, retry};
use crate::observe::observer::Observer;
use crate::reconciliation::Reconciliation;
use crate::remote::context_store::MAX_PUSHES;
use crate::remote::git_refs::Login;
use crate::remote::module_files::{ModuleFiles, SourceCredentials};
use crate::remote::push_request::PushRequest;
use crate::resource::{Guarded, Ref, ref_of};
use crate::slots::{resources_with_runs, running_class};
use crate::status::report;
use crate::watch::cached::{CachedJob, CachedPod};
use crate::watch::mapping::LISTS;
use crate::write_through_cache::WriteThroughCache;

/// Returns the context of an operator with `client` and empty watch caches.
fn operator(client: kube::Client, cache: &std::path::Path) -> Arc<Context> {
    operator_with(client, cache, Stores::empty())
}

/// Watch caches of the operator.
struct Stores {
    jobs: IndexedStore<CachedJob>,
    pods: IndexedStore<CachedPod>,
    resources: IndexedStore<Guarded>,
}

impl Stores {
    fn empty() -> Self {
        Self {
            jobs: indexed_store().0,
            pods: indexed_store().0,
            resources: indexed_store().0,
        }
    }
}

fn operator_with(client: kube::Client, cache: &std::path::Path, stores: Stores) -> Arc<Context> {
    operator_of(ContextParts::of_test(client), cache, stores)
}

fn operator_of(
    parts: ContextParts,
    cache: &std::path::Path,
    Stores {
        jobs,
        pods,
        resources,
    }: Stores,
) -> Arc<Context> {
    let mirrors = Mirrors {
        jobs: WriteThroughCache::new(jobs),
        pods: WriteThroughCache::new(pods),
        listed: watch::channel(LISTS).1,
        ..Mirrors::empty()
    };
    context_of_test(parts, cache, mirrors, resources)
}

async fn notified(receiver: &RequestLog) -> Value {
    for _ in 0..100 {
        if let Some(first) = receiver.lock().first() {
            return first.body.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no event is published");
}

#[tokio::test]
async fn write_refused_by_the_api_server_is_notified() {
    let (address, receiver) = fake_api::address(|_| (200, json!({}))).await;
    let resource = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {"name": "web", "namespace": "team", "uid": "u", "generation": 1},
        "spec": {
            "gitRepo": {"url": "https://git.test/team/infra"},
            "containerRegistry": {"imageName": "registry.test/team/web"},
            "notifications": [{"url": address}],
        },
    });
    let stored = resource.clone();
    let (client, _) = fake_api::serve(move |request| match (&*request.method, &*request.uri) {
        ("PATCH", uri) if uri.contains("/web/status?") => {
            let mut written = stored.clone();
            written["status"] = request.body["status"].clone();
            (200, written)
        }
        ("PATCH" | "POST", _) => fake_api::forbidden(),
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf: Terraform = serde_json::from_value(resource).unwrap();
    let object = Guarded(Ok(tf));
    assert!(reconcile_object(&object, &ctx).await.is_err());
    let data = notified(&receiver).await["data"].clone();
    assert_eq!(
        (&data["event"], &data["reason"]),
        (&json!("Failed"), &json!("Forbidden"))
    );
}

/// Returns a resource that is being deleted, without run record and pin.
fn destroyed(version: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {
            "name": "web", "namespace": "team", "uid": "u", "generation": 2, "resourceVersion": version,
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [alustan_api::FINALIZER],
            "annotations": {alustan_api::KEPT: "u"},
        },
        "spec": {
            "gitRepo": {"url": "https://git.test/team/infra"},
            "containerRegistry": {"imageName": "registry.test/team/web"},
        },
        "status": status,
    })
}

#[tokio::test]
async fn settled_resource_is_postponed_until_its_first_reconcile() {
    let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
    let folder = tempfile::tempdir().unwrap();
    let (resources, mut writer) = indexed_store();
    // With this many resources, the test ends long before the first reconcile of a settled one.
    for number in 0..5_000 {
        let name = match number {
            0 => "settled".to_owned(),
            1 => "changed".to_owned(),
            _ => format!("other-{number}"),
        };
        let mut tf = living();
        tf.metadata.name = Some(name);
        tf.metadata.generation = Some(if number == 1 { 3 } else { 2 });
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({"state": "Success", "observedGeneration": 2, "conditions": [ready]});
        tf.status = serde_json::from_value(status).unwrap();
        writer.apply(Event::Apply(Guarded(Ok(tf))));
    }
    let stores = Stores {
        resources,
        ..Stores::empty()
    };
    let ctx = operator_with(client, folder.path(), stores);
    let reference = |name: &str| Ref::new(name).within("team");
    let is_postponed = |name: &str| postponed_at_start(&ctx, &reference(name)).is_some();
    assert!(is_postponed("settled"));
    assert!(!is_postponed("changed"));
    assert!(!is_postponed("missing"));
    ctx.memory
        .begin(&reference("settled"), Some("u".to_owned()));
    assert!(is_postponed("settled"), "an event does not end the wait");
    ctx.memory.begin_observation(&reference("settled"));
    assert!(!is_postponed("settled"));
}

/// Returns a reconcile of `tf`, which is readable.
fn reconciliation<'a>(
    ctx: &'a Context,
    tf: &'a Terraform,
    resource: &'a Ref,
) -> Reconciliation<'a> {
    Reconciliation {
        ctx,
        tf,
        resource,
        unreadable: None,
    }
}

/// Returns the resource of [`destroyed`] without a deletion timestamp.
fn living() -> Terraform {
    let mut tf: Terraform = serde_json::from_value(destroyed("7", &json!(null))).unwrap();
    tf.metadata.deletion_timestamp = None;
    tf
}

#[tokio::test]
async fn outdated_status_of_a_deleted_resource_is_not_used() {
    let applied = json!({"revision": "c0ffee", "configHash": "h", "time": "2026-01-01T00:00:00Z"});
    let applied = json!({"state": "Destroying", "message": "", "lastApplied": applied});
    let (client, requests) = fake_api::serve(|request| match (&*request.method, &*request.uri) {
        ("GET", uri) if uri.ends_with("/terraforms/web") => (200, destroyed("9", &json!(null))),
        ("GET", uri) if uri.ends_with("/namespaces/team") => {
            (200, json!({"metadata": {"name": "team"}}))
        }
        ("GET", _) => fake_api::not_found(),
        _ => (200, json!({"metadata": {"name": "web"}})),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let reconcile_at = async |version: &str| {
        let tf: Terraform = serde_json::from_value(destroyed(version, &applied)).unwrap();
        let failed = reconcile_object(&Guarded(Ok(tf)), &ctx).await.is_err();
        let mut requests = std::mem::take(&mut *requests.lock());
        requests.retain(|request| request.method == "PATCH" && request.uri.contains("/status"));
        (failed, requests.len())
    };
    assert_eq!(reconcile_at("7").await, (true, 0));
    let (_, written) = reconcile_at("9").await;
    assert_eq!(written, 1, "status PinLost of the latest version");
}

/// The run record of a deleted resource is deleted before its finalizer is removed. A new leader whose cache has an earlier version of the resource
/// must not create the run record again, and start a run.
#[tokio::test]
async fn outdated_resource_gets_no_run_record() {
    let (client, requests) = fake_api::serve(|request| match (&*request.method, &*request.uri) {
        ("GET", uri) if uri.ends_with("/terraforms/web") => (200, destroyed("9", &json!(null))),
        ("GET", _) => fake_api::not_found(),
        _ => (
            200,
            json!({"metadata": {"name": "web-run", "namespace": "team"}}),
        ),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    for (version, created) in [("7", 0), ("9", 1)] {
        let mut tf = living();
        tf.metadata.resource_version = Some(version.to_owned());
        let result = reconcile_object(&Guarded(Ok(tf)), &ctx).await;
        let is_conflict = result.is_err_and(|error| error.is_conflict());
        assert_eq!(is_conflict, created == 0, "observed version {version}");
        let requests = requests.lock();
        let creates = requests.iter().filter(|request| request.method == "POST");
        assert_eq!(creates.count(), created, "observed version {version}");
    }
}

/// A former leader may send its last write after another replica has written the pin of a later run.
#[tokio::test]
async fn outdated_reconcile_does_not_replace_the_pin() {
    let (client, requests) = fake_api::serve(|request| match &*request.method {
        // Without the uid, the API server would create a pin that was deleted.
        "PATCH"
            if request.body["metadata"]["resourceVersion"] == "5"
                && request.body["metadata"]["uid"] == "uid-of-pin" =>
        {
            let metadata = json!({"name": "web-pin", "namespace": "team", "resourceVersion": "6"});
            (200, json!({ "metadata": metadata }))
        }
        "PATCH" => fake_api::conflict(),
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf = living();
    let web = Ref::new("web").within("team");
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let observer = Observer::new(&reconciliation);
    let (mut observation, _) = Box::pin(observe_and_decide(&reconciliation, &observer))
        .await
        .unwrap();
    let metadata = json!({
        "name": "web-pin", "namespace": "team", "labels": labels::of("web", "u", Component::Pin),
    });
    let pin: Secret = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    let step = Step::Ensure(Box::new(Object::Secret(pin)));
    for (observed, is_written) in [(Some("5"), true), (Some("4"), false), (None, false)] {
        observation.seen.pin_version = observed.map(|version| ObjectVersion {
            uid: "uid-of-pin".to_owned(),
            resource_version: version.to_owned(),
        });
        let mut executor = StepExecutor::new(&reconciliation, &observation);
        let result = Box::pin(executor.enact(std::slice::from_ref(&step))).await;
        assert_eq!(result.is_ok(), is_written, "observed version {observed:?}");
        assert!(result.is_ok() || result.is_err_and(|error| error.is_conflict()));
    }
    let requests = requests.lock();
    let writes = requests.iter().filter(|request| request.method == "PATCH");
    assert_eq!(writes.count(), 3, "a refused write is not repeated");
}

/// Until the run record is assigned to the new resource, each reconcile repeats the restore and reads the run report of the previous resource
/// again.
#[tokio::test]
async fn restore_binds_the_report_second_to_last_and_the_record_last() {
    let (client, requests) = fake_api::serve(|request| {
        let name = if request.uri.contains("component%3Dreport") {
            "web-report"
        } else {
            "web-other"
        };
        match &*request.method {
            "GET" if request.uri.contains("labelSelector=") => {
                fake_api::list(&[json!({"metadata": {"name": name}})])
            }
            "GET" => fake_api::not_found(),
            _ => (200, json!({"metadata": {"name": name}})),
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf = living();
    let web = Ref::new("web").within("team");
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let observer = Observer::new(&reconciliation);
    let (observation, _) = Box::pin(observe_and_decide(&reconciliation, &observer))
        .await
        .unwrap();
    let left = TakeOver {
        uid: "u1".to_owned(),
        version: "1".to_owned(),
        record: RunRecord::default(),
        history: History::default(),
    };
    let steps = [Step::TakeOver(Box::new(left))];
    let mut executor = StepExecutor::new(&reconciliation, &observation);
    Box::pin(executor.enact(&steps)).await.unwrap();
    let requests = requests.lock();
    let bound: Vec<_> = requests
        .iter()
        .filter(|request| request.method == "PATCH")
        .map(|request| request.uri.split(['/', '?']).nth(6).unwrap_or_default())
        .collect();
    assert!(bound.len() >= 5, "{bound:?}");
    assert_eq!(bound[bound.len() - 2..], ["web-report", "web-run"]);
}

#[tokio::test]
async fn conflicts_back_off_and_a_missing_resource_is_forgotten() {
    let exists = Arc::new(AtomicBool::new(true));
    let stored = exists.clone();
    let (client, _) = fake_api::serve(move |request| match (&*request.method, &*request.uri) {
        ("GET", uri) if uri.ends_with("/terraforms/web") && stored.load(Ordering::Relaxed) => {
            (200, destroyed("9", &json!(null)))
        }
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf: Terraform = serde_json::from_value(destroyed("7", &json!(null))).unwrap();
    let object = Arc::new(Guarded(Ok(tf)));
    let name = Arc::new(object.meta().clone().into_response_partial());
    let mut waits = Vec::new();
    for _ in 0..12 {
        let error = reconcile_object(&object, &ctx).await.err().unwrap();
        assert!(error.is_conflict(), "{error}");
        waits.push(retry(name.clone(), &error, ctx.clone()));
    }
    let expected = [
        50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000, 10_000,
    ];
    let expected = expected.map(|wait| Action::requeue(Duration::from_millis(wait)));
    assert_eq!(waits, expected);
    exists.store(false, Ordering::Relaxed);
    let outcome = reconcile_object(&object, &ctx).await.unwrap();
    assert_eq!(outcome.action(), Action::await_change());
    let web = ref_of(&*object);
    assert_eq!(ctx.memory.conflicted(&web), Duration::from_millis(50));
}

#[tokio::test]
async fn input_values_and_scripts_have_a_size_limit() {
    let seen = async |bytes: usize, spec: Value| {
        let (client, _) = fake_api::serve(move |request| {
            if request.uri.ends_with("/configmaps/big") {
                (
                    200,
                    json!({"metadata": {"name": "big"}, "data": {"a": "x".repeat(bytes)}}),
                )
            } else {
                fake_api::not_found()
            }
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let ctx = operator(client, folder.path());
        let mut resource = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "u", "generation": 1},
            "spec": {
                "gitRepo": {"url": "https://git.test/team/infra"},
                "containerRegistry": {"imageName": "registry.test/team/web"},
            },
        });
        resource["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let tf: Terraform = serde_json::from_value(resource).unwrap();
        let web = Ref::new("web").within("team");
        let reconciliation = reconciliation(&ctx, &tf, &web);
        let observer = Observer::new(&reconciliation);
        let seen = Box::pin(observer.observe()).await.unwrap().0;
        let missing = [
            seen.inputs.err().map(|incomplete| incomplete.failure),
            seen.stack.variables.missing,
        ];
        missing
            .into_iter()
            .flatten()
            .next()
            .map(|failure| failure.reason)
    };
    let values = json!({"variablesFrom": [{"configMapRef": {"name": "big"}}]});
    let script = json!({"scripts": {"apply": {"configMapRef": {"name": "big", "key": "a"}}}});
    let too_large = Some("InputTooLarge".to_owned());
    // The limit of 256 KiB applies to the JSON text of the value, which includes two quotation marks.
    assert_eq!(Box::pin(seen((256 << 10) - 2, values.clone())).await, None);
    assert_eq!(Box::pin(seen(256 << 10, values)).await, too_large);
    assert_eq!(Box::pin(seen(64 << 10, script.clone())).await, None);
    assert_eq!(Box::pin(seen((64 << 10) + 1, script)).await, too_large);
    // The limit of 64 KiB also applies to an inline script with two bytes per character: the schema of the CRD limits only the number of
    // characters.
    let inline = |text: &str| json!({"scripts": {"apply": {"inline": text}}});
    let longest = "é".repeat(32 << 10);
    assert_eq!(Box::pin(seen(0, inline(&longest))).await, None);
    assert_eq!(
        Box::pin(seen(0, inline(&format!("{longest}x")))).await,
        too_large
    );
}

#[tokio::test]
async fn secret_is_read_again_after_a_change_and_before_a_run() {
    const SECRET: &str = "/secrets/credentials";
    let (client, requests) = fake_api::serve(|request| {
        if request.uri.ends_with(SECRET) {
            let secret = json!({"metadata": {"name": "credentials"}, "data": {"TOKEN": "YQ=="}});
            (200, secret)
        } else {
            fake_api::not_found()
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let mut tf = living();
    let runner = json!({"envFromSecrets": [{"name": "credentials"}]});
    tf.spec.runner = serde_json::from_value(runner).unwrap();
    let web = Ref::new("web").within("team");
    let observe = async |observer: &Observer<'_>| {
        let seen = Box::pin(observer.observe()).await.unwrap().0;
        assert!(seen.found().runner.contains_key("credentials"));
    };
    let reads = || {
        let requests = requests.lock();
        requests
            .iter()
            .filter(|request| request.uri.ends_with(SECRET))
            .count()
    };
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let first = Observer::new(&reconciliation);
    observe(&first).await;
    assert!(!first.discard_reused_reads(), "nothing to reuse");
    let second = Observer::new(&reconciliation);
    observe(&second).await;
    assert_eq!(reads(), 1);
    assert!(second.discard_reused_reads(), "before the start of a run");
    observe(&second).await;
    assert_eq!(reads(), 2);
    ctx.inputs
        .secrets
        .forget(&Ref::new("credentials").within("team"));
    observe(&Observer::new(&reconciliation)).await;
    assert_eq!(reads(), 3);
}

#[tokio::test]
async fn waited_for_object_is_read_again_before_a_run() {
    let (client, requests) = fake_api::serve(|request| match &*request.uri {
        "/api/v1" => fake_api::kinds(),
        uri if uri.starts_with("/api/v1/namespaces/team/configmaps?") => {
            let metadata = json!({"name": "ready", "namespace": "team", "resourceVersion": "1"});
            fake_api::list(&[json!({"metadata": metadata})])
        }
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let mut tf = living();
    let waits_for = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "ready"});
    tf.spec.wait_for = serde_json::from_value(json!([waits_for, waits_for])).unwrap();
    let web = Ref::new("web").within("team");
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let observer = Observer::new(&reconciliation);
    let observe = async || {
        let seen = Box::pin(observer.observe()).await.unwrap().0;
        assert!(seen.stack.wait_for.iter().all(|test| test.result.is_ok()));
        let requests = requests.lock();
        let uris = requests.iter().map(|request| &request.uri);
        // Lists of watches have another limit.
        uris.filter(|uri| uri.contains("limit=10&") || uri.ends_with("limit=10"))
            .count()
    };
    let first = observe().await;
    assert!((1..=2).contains(&first), "{first}");
    assert_eq!(observer.discard_reused_reads(), first == 1);
    assert!(!observer.discard_reused_reads());
    assert_eq!(observe().await, first + 2);
}

#[tokio::test]
async fn status_shorter_than_a_second_is_not_written() {
    let (client, requests) = fake_api::serve(|request| match &*request.method {
        "PATCH" => (200, destroyed("8", &json!(null))),
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let time = Arc::new(parking_lot::Mutex::new(Timestamp::UNIX_EPOCH));
    let parts = ContextParts {
        clock: Clock::simulated(time.clone()),
        ..ContextParts::of_test(client)
    };
    let ctx = operator_of(parts, folder.path(), Stores::empty());
    let web = Ref::new("web").within("team");
    let wait = |millis: u64| Some(Duration::from_millis(millis));
    for (millis, state, reason, next, written) in [
        (0, "Pending", "AwaitingProcessing", wait(1_000), 0),
        (900, "Pending", "Fetching", wait(100), 0),
        (1_000, "Pending", "Fetching", None, 1),
        (5_000, "Pending", "ImageLookup", wait(1_000), 1),
        (5_500, "Planning", "Running", None, 2),
        (6_000, "Applying", "Running", wait(1_000), 2),
        (6_500, "Planning", "Running", None, 2),
        (7_000, "Applying", "Running", wait(1_000), 2),
        (8_000, "Applying", "Running", None, 3),
        (8_100, "Pending", "Queued", None, 4),
    ] {
        *time.lock() = Timestamp::from_millisecond(millis).unwrap();
        let mut tf = living();
        tf.status = ctx.memory.status(&web);
        let ready = json!({
            "type": "Ready", "status": "Unknown", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({"state": state, "message": "", "conditions": [ready]});
        let status = serde_json::from_value(status).unwrap();
        let reported = Box::pin(report(&reconciliation(&ctx, &tf, &web), status)).await;
        assert_eq!(reported.unwrap(), next, "{millis} {state} {reason}");
        let requests = requests.lock();
        let patches = requests.iter().filter(|request| request.method == "PATCH");
        assert_eq!(patches.count(), written, "{millis} {state} {reason}");
    }
}

/// Returns an unfinished Job with the labels of a run of the resource `name` with this uid.
fn unfinished_job<J: DeserializeOwned>(job: &str, name: &str, uid: &str) -> J {
    let labels = labels::of(name, uid, Component::Run);
    let job = json!({"metadata": {"name": job, "namespace": "team", "labels": labels}});
    serde_json::from_value(job).unwrap()
}

#[tokio::test]
async fn forged_jobs_hold_no_slots_after_a_restart() {
    let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
    let folder = tempfile::tempdir().unwrap();
    let (jobs, mut job_writer) = indexed_store();
    let (resources, mut resource_writer) = indexed_store();
    let tf: Terraform = serde_json::from_value(destroyed("7", &json!(null))).unwrap();
    resource_writer.apply(Event::Apply(Guarded(Ok(tf))));
    for job in [
        unfinished_job("web-apply-1", "web", "u"),
        unfinished_job("of-an-earlier-resource", "web", "u1"),
        unfinished_job("of-no-resource", "x1", "u"),
    ] {
        job_writer.apply(Event::Apply(job));
    }
    let stores = Stores {
        jobs,
        pods: indexed_store().0,
        resources,
    };
    let ctx = operator_with(client, folder.path(), stores);
    assert_eq!(resources_with_runs(&ctx), [ObjectKey::new("team", "web")]);
    job_writer.apply(Event::Apply(unfinished_job("web-apply-1", "web", "u1")));
    assert_eq!(resources_with_runs(&ctx), []);
}

/// Returns the run record of an unfinished apply with run number 2.
fn open_record() -> RecordSeen {
    let run = json!({
        "kind": "apply", "trigger": "created", "job": "web-apply-2", "image": "i@sha256:1", "tag": "t",
        "configHash": "h", "startedAt": "2026-01-01T00:00:00Z",
    });
    RecordSeen {
        version: "1".to_owned(),
        report_version: Some("1".to_owned()),
        key: Vec::new(),
        record: RunRecord {
            number: 2,
            run: Some(serde_json::from_value(run).unwrap()),
            ..RunRecord::default()
        },
        inputs: None,
        report: None,
        outputs: None,
        details: None,
        unsaved: false,
        history: History::default(),
    }
}

/// A run record that this process did not write may be stale: another replica may have written it before this one became the leader.
#[tokio::test]
async fn record_check_is_sent_unless_this_process_wrote_the_record() {
    let (client, requests) = fake_api::serve(|request| match &*request.method {
        "PATCH" => {
            let metadata = json!({"name": "web-run", "namespace": "team", "resourceVersion": "2"});
            (200, json!({ "metadata": metadata }))
        }
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf = living();
    let web = Ref::new("web").within("team");
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let observer = Observer::new(&reconciliation);
    let (mut observation, _) = Box::pin(observe_and_decide(&reconciliation, &observer))
        .await
        .unwrap();
    let mut record = open_record();
    let check = Step::CheckRecord(Box::new(Swap::unchanged(&record.record)));
    for (version, sent) in [("1", 1), ("2", 1), ("3", 2)] {
        version.clone_into(&mut record.version);
        observation.seen.record = Some(record.clone());
        let mut executor = StepExecutor::new(&reconciliation, &observation);
        Box::pin(executor.enact(std::slice::from_ref(&check)))
            .await
            .unwrap();
        let requests = requests.lock();
        let patches = requests.iter().filter(|request| request.method == "PATCH");
        assert_eq!(patches.count(), sent, "observed version {version}");
    }
}

/// The result of a reported run may stay unrecorded, for example while a quota refuses the outputs Secret. The run must not hold a slot after its pod
/// has ended.
#[test]
fn run_that_has_reported_holds_a_slot_only_with_its_pod() {
    let mut record = open_record();
    let pod = JobSeen {
        uid: "j".to_owned(),
        finished: true,
        has_pod: true,
        pods_alive: true,
        waiting: None,
        scheduled_at: None,
        ended: None,
    };
    let with_report = |number: i64| -> Option<RunReport> {
        let report = json!({
            "number": number, "kind": "apply", "result": "Done",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
        });
        Some(serde_json::from_value(report).unwrap())
    };
    assert_eq!(running_class(Some(&record), None), Some(Class::Change));
    record.report = with_report(1);
    assert_eq!(running_class(Some(&record), None), Some(Class::Change));
    record.report = with_report(2);
    assert_eq!(
        running_class(Some(&record), Some(&pod)),
        Some(Class::Change)
    );
    assert_eq!(running_class(Some(&record), None), None);
}

#[tokio::test]
async fn unreadable_record_holds_a_slot_only_while_a_job_or_pod_runs() {
    let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
    let folder = tempfile::tempdir().unwrap();
    let (jobs, mut job_writer) = indexed_store();
    let (pods, mut pod_writer) = indexed_store();
    let (resources, mut resource_writer) = indexed_store();
    let tf = living();
    let object = Guarded(Ok(tf));
    resource_writer.apply(Event::Apply(object.clone()));
    let stores = Stores {
        jobs,
        pods,
        resources,
    };
    let ctx = operator_with(client, folder.path(), stores);
    let labels = |component| labels::of("web", "u", component);
    let record = json!({
        "metadata": {
            "name": "web-run", "namespace": "team", "resourceVersion": "1", "labels": labels(Component::Record),
        },
    });
    let record: Secret = serde_json::from_value(record).unwrap();
    ctx.mirrors.secrets.record_write(record);
    let key = ObjectKey::new("team", "web");
    let holds_after_reconcile = async || {
        ctx.dispatcher.record_running(&key, None);
        assert!(reconcile_object(&object, &ctx).await.is_err());
        ctx.dispatcher.holds_slot(&key)
    };
    assert!(!holds_after_reconcile().await);
    let job: CachedJob = unfinished_job("web-apply-1", "web", "u");
    job_writer.apply(Event::Apply(job.clone()));
    assert!(holds_after_reconcile().await, "its Job is unfinished");
    job_writer.apply(Event::Delete(job));
    assert!(!holds_after_reconcile().await);
    let pod = json!({
        "metadata": {"name": "web-apply-1-x", "namespace": "team", "labels": labels(Component::Run)},
        "status": {"phase": "Running"},
    });
    let pod: CachedPod = serde_json::from_value(pod).unwrap();
    pod_writer.apply(Event::Apply(pod));
    assert!(holds_after_reconcile().await, "its pod lives");
}

#[tokio::test]
async fn slot_is_released_if_the_steps_before_a_run_fail() {
    let (client, _) = fake_api::serve(|request| match &*request.method {
        "GET" => fake_api::not_found(),
        _ => fake_api::forbidden(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf = living();
    let web = Ref::new("web").within("team");
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let observer = Observer::new(&reconciliation);
    let (observation, _) = Box::pin(observe_and_decide(&reconciliation, &observer))
        .await
        .unwrap();
    let key = ObjectKey::new("team", "web");
    ctx.dispatcher.record_running(&key, Some(Class::Change));
    let decision = Decision {
        steps: vec![Step::AddFinalizer],
        start: Some(Start {
            check: None,
            class: Class::Change,
            steps: Vec::new(),
            status: TerraformStatus::default(),
        }),
        status: TerraformStatus::default(),
        requeue_at: None,
    };
    let applied = Box::pin(apply(&reconciliation, &observation, decision)).await;
    assert!(matches!(applied, Executed::Failed(..)));
    assert!(!ctx.dispatcher.holds_slot(&key));
}

/// The next reconcile cancels the run whose Job the API server refused. The reason of the refusal is kept in memory until then.
#[tokio::test]
async fn denied_job_is_remembered_with_its_reason() {
    let cases = [
        (422, "Invalid", Some("Rejected")),
        (403, "Forbidden", Some("Forbidden")),
        (409, "AlreadyExists", Some("JobNameConflict")),
        (404, "NotFound", None),
    ];
    for (code, reason, remembered) in cases {
        let (client, _) = fake_api::serve(move |request| match (&*request.method, &*request.uri) {
            ("POST", uri) if uri.contains("/jobs") => {
                let status = json!({
                    "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": "no",
                });
                (code, status)
            }
            ("GET", uri) if uri.ends_with("/jobs/web-apply-2") => {
                (200, json!({"metadata": {"name": "web-apply-2", "namespace": "team"}}))
            }
            _ => fake_api::not_found(),
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let ctx = operator(client, folder.path());
        let tf = living();
        let web = Ref::new("web").within("team");
        let reconciliation = reconciliation(&ctx, &tf, &web);
        let observer = Observer::new(&reconciliation);
        let (observation, _) = Box::pin(observe_and_decide(&reconciliation, &observer))
            .await
            .unwrap();
        let create = Step::CreateJob(Box::new(unfinished_job("web-apply-2", "web", "u")));
        let mut executor = StepExecutor::new(&reconciliation, &observation);
        assert!(Box::pin(executor.enact(&[create])).await.is_err());
        let denial = ctx.memory.denied(&web, "web-apply-2");
        assert_eq!(denial.map(|denial| denial.reason).as_deref(), remembered);
    }
}

#[tokio::test]
async fn resource_created_again_inherits_no_memory() {
    let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let reconcile_at = async |uid: &str| {
        let mut tf = living();
        tf.metadata.uid = Some(uid.to_owned());
        assert!(reconcile_object(&Guarded(Ok(tf)), &ctx).await.is_err());
    };
    let web = Ref::new("web").within("team");
    reconcile_at("u").await;
    let memory = &ctx.memory;
    memory.set_status(&web, TerraformStatus::default(), None);
    memory.set_outputs_taken(&web, true);
    memory.set_denied(&web, "web-apply-1".to_owned(), no_pod("no"));
    assert!(memory.is_new_event(&web, "Pruned", "images"));
    let first = memory.failed(&web);
    assert!(memory.failed(&web) > first);
    reconcile_at("u").await;
    assert!(memory.status(&web).is_some());
    assert!(memory.outputs_taken(&web));
    assert_eq!(memory.denied(&web, "web-apply-1"), Some(no_pod("no")));
    reconcile_at("u1").await;
    assert!(memory.status(&web).is_none());
    assert!(!memory.outputs_taken(&web));
    assert_eq!(memory.denied(&web, "web-apply-1"), None);
    assert!(memory.is_new_event(&web, "Pruned", "images"));
    assert_eq!(memory.failed(&web), first);
}

/// Returns a page of `count` `ConfigMap`s.
fn page(uri: &str, count: usize) -> Value {
    let number = |name: &str| {
        uri.split(['?', '&'])
            .find_map(|part| part.strip_prefix(name)?.parse::<usize>().ok())
    };
    let begin = number("continue=").unwrap_or_default();
    let end = number("limit=").map_or(count, |limit| count.min(begin + limit));
    let map = |i: usize| json!({"metadata": {"name": format!("map-{i}")}});
    let maps: Vec<_> = (begin..end).map(map).collect();
    let next = (end < count).then(|| end.to_string());
    json!({"metadata": {"continue": next}, "items": maps})
}

/// Observes `resource`, which has one entry in `waitFor` or `destroyWaitFor`, in a cluster with `count` `ConfigMap`s. Returns the result of the check
/// of this entry, and the list requests that the check sends.
async fn tested(resource: &Value, count: usize) -> (Result<(), String>, Vec<String>) {
    let (client, requests) = fake_api::serve(move |request| match &*request.uri {
        "/api/v1" => fake_api::kinds(),
        uri if uri.starts_with("/api/v1/namespaces/team/configmaps?") => (200, page(uri, count)),
        uri if uri.ends_with("/terraforms/web") => (200, destroyed("7", &json!(null))),
        _ => fake_api::not_found(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let tf: Terraform = serde_json::from_value(resource.clone()).unwrap();
    let web = Ref::new("web").within("team");
    let reconciliation = reconciliation(&ctx, &tf, &web);
    let observer = Observer::new(&reconciliation);
    let stack = Box::pin(observer.observe()).await.unwrap().0.stack;
    let tests = [stack.wait_for, stack.destroy_wait_for].concat();
    let result = tests[0].result.clone();
    let mut lists: Vec<_> = requests
        .lock()
        .iter()
        .map(|request| request.uri.clone())
        .collect();
    // Ignore the requests of the watch: it also lists the objects.
    lists.retain(|uri| {
        let is_of_watch = uri.contains("limit=50") || uri.contains("watch=");
        uri.contains("/configmaps?") && !is_of_watch
    });
    (result.map_err(|failure| failure.message), lists)
}

#[tokio::test]
async fn test_of_objects_reads_100_at_most_in_pages_of_10() {
    let mut resource = destroyed("7", &json!(null));
    resource["metadata"]["deletionTimestamp"] = json!(null);
    resource["spec"]["waitFor"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "selector": {"matchLabels": {"app": "web"}},
    }]);
    let (result, lists) = tested(&resource, 100).await;
    assert_eq!((result, lists.len()), (Ok(()), 10));
    let is_page = |uri: &String| uri.ends_with("limit=10") || uri.contains("limit=10&continue=");
    assert!(lists.iter().all(is_page), "{lists:?}");
    let (result, lists) = tested(&resource, 101).await;
    let refused = "spec.waitFor[0].selector: ConfigMap * with app=web selects more than 100 objects; add \
                   labels to the selector";
    assert_eq!((result, lists.len()), (Err(refused.to_owned()), 11));
}

#[tokio::test]
async fn destroy_reads_the_metadata_of_100_objects_and_names_5() {
    let mut resource = destroyed("7", &json!(null));
    resource["spec"]["destroyWaitFor"] = json!([{"apiVersion": "v1", "kind": "ConfigMap"}]);
    for (count, rest) in [
        (5, ""),
        (6, ", and 1 more"),
        (101, ", ConfigMap * selects more than 100 objects"),
    ] {
        let (result, lists) = tested(&resource, count).await;
        let message = result.unwrap_err();
        let end = format!("ConfigMap map-4 (not deleted yet){rest}");
        assert!(message.ends_with(&end), "{message}");
        assert_eq!(lists.len(), 1, "{lists:?}");
        let foreign = "%21alustan.io%2Fuid&limit=100";
        assert!(lists[0].ends_with(foreign), "{lists:?}");
    }
}

/// Other resources may cause the refusal of a reference, for example by a cycle. A resource that is being deleted must wait for the objects of
/// `destroyWaitFor` anyway.
#[tokio::test]
async fn destroy_waits_for_objects_also_if_references_are_refused() {
    let mut resource = destroyed("7", &json!(null));
    resource["spec"]["destroyWaitFor"] = json!([{"apiVersion": "v1", "kind": "ConfigMap"}]);
    resource["spec"]["dependsOn"] = json!([{"name": "web"}]);
    let (result, lists) = tested(&resource, 1).await;
    let message = result.unwrap_err();
    assert!(
        message.ends_with("ConfigMap map-0 (not deleted yet)"),
        "{message}"
    );
    assert_eq!(lists.len(), 1, "{lists:?}");
}

#[tokio::test]
async fn refetch_of_a_context_does_not_block_pushes() {
    let registry = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = registry.local_addr().unwrap();
    let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
    let folder = tempfile::tempdir().unwrap();
    let ctx = operator(client, folder.path());
    let git = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let git_host = git.local_addr().unwrap();
    let stored = Digest::of(b"context");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"context").unwrap();
    ctx.contexts.put(stored.as_str(), file.into_temp_path(), 7);
    let gone = Digest::of(b"gone");
    let start = |name: &str, context: &Digest| {
        let seen = SourceSeen {
            revision: "a".repeat(40),
            context: context.to_string(),
            artifact: context.to_string(),
            path: String::new(),
            backend: None,
            committed_at: Timestamp::UNIX_EPOCH,
            commit: None,
        };
        let resource = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {
                "gitRepo": {"url": format!("https://{git_host}/team/infra")},
                "containerRegistry": {"imageName": format!("{host}/team/{name}"), "insecure": true},
            },
        });
        let tf: Terraform = serde_json::from_value(resource).unwrap();
        let credentials = SourceCredentials {
            git: &Login::default(),
            artifact: None,
        };
        let files = ModuleFiles::of(&tf, credentials, BTreeSet::new).unwrap();
        let push = PushRequest::new(&ctx.settings, &tf, &seen, files, None).unwrap();
        tokio::spawn(sender(&ctx, &push)())
    };
    let fetches: Vec<_> = (0..MAX_PUSHES)
        .map(|number| start(&format!("a{number}"), &gone))
        .collect();
    let _unanswered = git.accept().await.unwrap();
    start("b", &stored);
    let pushed = tokio::time::timeout(Duration::from_secs(5), registry.accept());
    pushed.await.unwrap().unwrap();
    assert!(fetches.iter().all(|fetch| !fetch.is_finished()));
}
