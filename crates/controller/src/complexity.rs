//! Work of starts, watch events and commits. Doubling the number of resources at most doubles the work of a start, and does not change the work of
//! an event that concerns a fixed number of resources.

use std::sync::Arc;

use alustan_api::ObjectKey;
use alustan_api::labels::{self, Component};
use alustan_source::RepositoryUrl;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PartialObjectMetaExt as _;
use kube::runtime::watcher::Event;
use kube::{Resource as _, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::attempt::reconcile_object;
use crate::context::Context;
use crate::context_builder::{ContextParts, context_of_test};
use crate::fake_api;
use crate::forget::forget;
use crate::http::Push;
use crate::indexed_store::{Indexed, IndexedStore, IndexedWriter, indexed_store};
use crate::mirrors::Mirrors;
use crate::push_events::poll_after_pushes;
use crate::resource::{Guarded, ref_of, to_key};
use crate::slots;
use crate::visits;
use crate::watch::cached::{CachedJob, CachedPod};
use crate::watch::keys::ResourceKey;
use crate::watch::mapping::{LISTS, consumers_of_outputs};
use crate::write_through_cache::WriteThroughCache;

/// Number of resources per namespace. The resources of a namespace use one repository, and each of them uses outputs of the previous one.
const PER_NAMESPACE: usize = 5;

/// Returns the resource with this number. All resources have the same name as one resource of each other namespace.
fn resource(number: usize) -> Guarded {
    let (namespace, index) = (number / PER_NAMESPACE, number % PER_NAMESPACE);
    let dependency = index.checked_sub(1).map(|previous| {
        json!([
            {"terraformRef": {"name": format!("web-{previous}"), "outputs": {"id": "id"}}},
            {"secretRef": {"name": "shared"}},
        ])
    });
    let tf = json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {
            "name": format!("web-{index}"), "namespace": format!("team-{namespace}"),
            "uid": format!("uid-{number}"), "generation": 1, "resourceVersion": "1",
            "finalizers": ["terraform.alustan.io/finalizer"],
            // The resource is restored from a backup of another cluster.
            "annotations": {"alustan.io/uid": format!("old-{number}")},
        },
        "spec": {
            "gitRepo": {"url": format!("https://git.test/team-{namespace}/infra")},
            "containerRegistry": {"imageName": "registry.test/web"},
            "backend": {"provider": "aws", "s3": "bucket", "region": "us-east-1", "key": format!("{number}.tfstate")},
            "variablesFrom": dependency.unwrap_or(Value::Array(Vec::new())),
            "runner": {"pod": {"nodeSelector": {"pool": "runs"}}},
        },
    });
    Guarded(Ok(serde_json::from_value(tf).unwrap()))
}

/// Returns the run Job or the pod of `resource`.
fn run_object<K: serde::de::DeserializeOwned>(resource: &Guarded) -> K {
    let name = resource.name_any();
    let mut labels = labels::of(&name, &resource.uid().unwrap(), Component::Run);
    labels.insert(
        "batch.kubernetes.io/job-name".to_owned(),
        format!("{name}-apply-1"),
    );
    let object = json!({
        "metadata": {
            "name": format!("{name}-apply-1"), "namespace": resource.namespace(), "uid": "u", "labels": labels,
        },
    });
    serde_json::from_value(object).unwrap()
}

fn filled<K: Indexed>(objects: impl Iterator<Item = K>) -> (IndexedStore<K>, IndexedWriter<K>) {
    let (store, mut writer) = indexed_store();
    writer.list(objects);
    (store, writer)
}

/// An operator with resources that have a Job and a pod each, and whose runs are not recorded yet.
struct Operator {
    ctx: Arc<Context>,
    all: Vec<Guarded>,
    writer: IndexedWriter<Guarded>,
    _folder: tempfile::TempDir,
}

impl Operator {
    async fn with(resources: usize) -> Self {
        let (client, _) = fake_api::serve(|_| fake_api::not_found()).await;
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<_> = (0..resources).map(resource).collect();
        let (store, writer) = filled(all.iter().cloned());
        let mirrors = Mirrors {
            jobs: WriteThroughCache::new(filled::<CachedJob>(all.iter().map(run_object)).0),
            pods: WriteThroughCache::new(filled::<CachedPod>(all.iter().map(run_object)).0),
            listed: watch::channel(LISTS).1,
            ..Mirrors::empty()
        };
        let parts = ContextParts::of_test(client);
        let ctx = context_of_test(parts, folder.path(), mirrors, store);
        Self {
            ctx,
            all,
            writer,
            _folder: folder,
        }
    }

    /// Reconciles all resources.
    async fn start(&self) {
        for object in &self.all {
            // The API server does not have the objects, so the reconcile may fail after its observation.
            let _ = reconcile_object(object, &self.ctx).await;
        }
    }

    /// Reconciles the last resource once.
    async fn reconcile(&mut self) {
        let _ = reconcile_object(self.all.last().unwrap(), &self.ctx).await;
    }

    /// Processes events of the last resource and of objects in its namespace.
    fn process_events(&mut self) {
        let last = self.all.last().unwrap();
        let store = &self.ctx.resources;
        self.writer.apply(Event::Apply(last.clone()));
        let namespace = last.namespace().unwrap();
        let shared = ResourceKey::Secret(ObjectKey::new(&namespace, "shared"));
        assert_eq!(store.with(&shared).len(), PER_NAMESPACE - 1);
        let previous = &self.all[self.all.len() - 2];
        let mut outputs = previous.meta().clone();
        let uid = outputs.uid.clone().unwrap();
        outputs.labels = Some(labels::of(&previous.name_any(), &uid, Component::Outputs));
        let outputs = outputs.into_response_partial::<Secret>();
        let consumers = consumers_of_outputs(&self.ctx.settings, store, &outputs);
        assert_eq!(consumers, [ref_of(last)]);
        slots::release_without_active_job(&self.ctx, &ref_of(last));
    }

    /// Processes a push to the repository of the last namespace. Returns the number of its resources.
    async fn push(&self) -> usize {
        let namespace = self.all.last().unwrap().namespace().unwrap();
        let url = format!("git@git.test:{namespace}/infra.git");
        let push = Push {
            repositories: vec![RepositoryUrl::parse(&url).unwrap()],
            reference: None,
            default: None,
        };
        let ((sender, pushes), (reply, replied)) = (mpsc::channel(1), oneshot::channel());
        sender.send((push, reply)).await.unwrap();
        drop(sender);
        poll_after_pushes(self.ctx.clone(), pushes).await;
        replied.await.unwrap()
    }
}

/// Work of the parts of a test, in visited objects and queries.
#[derive(Debug, PartialEq)]
struct Work {
    start: usize,
    reconcile: usize,
    events: usize,
    push: usize,
    deletion: usize,
}

async fn work_with(resources: usize) -> Work {
    let mut operator = Operator::with(resources).await;
    let mut before = visits::so_far();
    let mut work = || {
        let visited = visits::so_far() - before;
        before += visited;
        visited
    };
    operator.start().await;
    let start = work();
    operator.reconcile().await;
    let reconcile = work();
    operator.process_events();
    let events = work();
    assert_eq!(operator.push().await, PER_NAMESPACE);
    let push = work();
    let last = ref_of(operator.all.last().unwrap());
    assert_eq!(to_key(&last).name, format!("web-{}", PER_NAMESPACE - 1));
    forget(&operator.ctx, &last);
    let deletion = work();
    Work {
        start,
        reconcile,
        events,
        push,
        deletion,
    }
}

#[tokio::test]
async fn work_of_an_event_is_independent_of_other_resources() {
    let (few, many) = (work_with(20).await, work_with(40).await);
    assert!(few.start >= 20 && few.reconcile > 0, "{few:?}");
    assert!(many.start <= 2 * few.start, "{few:?} {many:?}");
    let few = Work {
        start: many.start,
        ..few
    };
    assert_eq!(many, few);
}
