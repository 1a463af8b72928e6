//! Stories of a resource with the real observe and apply on an API server in memory: creation, change and deletion, with a fault at each
//! write. git and registry are simulated by prepared answers; the tests simulate the Job controller and the runner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alustan_api::Terraform;
use alustan_api::labels::{self, IMAGE_TAG};
use alustan_api::run::key;
use alustan_core::model::base_image::base_image;
use alustan_core::model::image;
use alustan_core::observed::{Answer, SourceSeen};
use alustan_source::{CommitId, Credentials, Revision};
use clap::Parser as _;
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::PartialObjectMeta;
use kube::runtime::reflector;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::args::Config;
use crate::context::Context;
use crate::memory_cluster::{Fault, MemoryCluster};
use crate::mirrors::Mirrors;
use crate::observe::jobs;
use crate::reconcile::reconcile_object;
use crate::remote::polled_cache::{SendQuery, SendQueryWith};
use crate::remote::queries::{self, Repository};
use crate::resource::{Guarded, Ref};
use crate::watch::mapping::LISTS;
use crate::wiring::{ContextParts, context};
use crate::write_through_cache::WriteThroughCache;

const BASE: &str = "registry.test/base:1";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Maximum number of reconciles until a resource converges.
const RECONCILES: usize = 60;

/// Watch cache of one kind, which the test fills.
struct Mirror<K: Resource<DynamicType = ()> + Clone + 'static>(Writer<K>);

impl<K> Mirror<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    fn fill(&mut self, objects: Vec<K>) {
        self.0.apply_watcher_event(&Event::Init);
        for object in objects {
            self.0.apply_watcher_event(&Event::InitApply(object));
        }
        self.0.apply_watcher_event(&Event::InitDone);
    }
}

fn mirror<K>() -> (reflector::Store<K>, Mirror<K>)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let (store, writer) = reflector::store();
    (store, Mirror(writer))
}

/// A process of the operator.
struct Operator {
    ctx: Arc<Context>,
    secrets: Mirror<Secret>,
    config_maps: Mirror<PartialObjectMeta<ConfigMap>>,
    claims: Mirror<PersistentVolumeClaim>,
    jobs: Mirror<Job>,
    pods: Mirror<Pod>,
    resources: Mirror<Guarded>,
    _folder: tempfile::TempDir,
}

impl Operator {
    async fn start(cluster: &MemoryCluster) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let base = format!("--base-image={BASE}");
        let cache = format!("--cache-dir={}", folder.path().display());
        let flags = ["alustan", "--operator-image=registry.test/operator:1"];
        let flags = flags.into_iter().chain([&*base, &*cache]);
        let config = Config::try_parse_from(flags).unwrap();
        let parts = ContextParts::of_test(cluster.client().await);
        let (secret_store, secrets) = mirror();
        let (config_map_store, config_maps) = mirror();
        let (claim_store, claims) = mirror();
        let (job_store, jobs) = mirror();
        let (pod_store, pods) = mirror();
        let (resource_store, resources) = mirror();
        let mirrors = Mirrors {
            secrets: WriteThroughCache::new(secret_store),
            config_maps: WriteThroughCache::new(config_map_store),
            claims: WriteThroughCache::new(claim_store),
            jobs: WriteThroughCache::new(job_store),
            pods: WriteThroughCache::new(pod_store),
            listed: watch::channel(LISTS).1,
            ..Mirrors::empty()
        };
        let ctx = context(parts, &config, mirrors, resource_store).unwrap();
        Self {
            ctx: Arc::new(ctx),
            secrets,
            config_maps,
            claims,
            jobs,
            pods,
            resources,
            _folder: folder,
        }
    }

    /// Delivers the objects of the cluster, as the watches do.
    fn sync(&mut self, cluster: &MemoryCluster) {
        let secrets = cluster.all::<Secret>("secrets");
        let is_managed = |secret: &Secret| secret.labels().contains_key(labels::MANAGED_BY);
        let names: BTreeSet<String> = secrets.iter().map(ResourceExt::name_any).collect();
        for name in ["web-run", "web-report", "web-pin", "web-outputs"] {
            if !names.contains(name) {
                self.ctx.mirrors.secrets.forget("team", name);
            }
        }
        self.secrets
            .fill(secrets.into_iter().filter(is_managed).collect());
        self.config_maps.fill(cluster.all("configmaps"));
        self.claims.fill(cluster.all("persistentvolumeclaims"));
        self.jobs.fill(cluster.all("jobs"));
        self.pods.fill(cluster.all("pods"));
        let resources = cluster.all::<Terraform>("terraforms").into_iter();
        self.resources
            .fill(resources.map(|tf| Guarded(Ok(tf))).collect());
    }
}

/// A cluster, a registry and an operator.
struct Simulation {
    cluster: MemoryCluster,
    operator: Operator,
    /// Tags of the images in the registry.
    images: BTreeSet<String>,
    /// Uids of all Jobs that existed, by name.
    jobs: BTreeMap<String, String>,
    /// Names of the run Jobs that completed, in order.
    runs: Vec<String>,
}

fn source() -> SourceSeen {
    SourceSeen {
        revision: COMMIT.to_owned(),
        context: format!("sha256:{}", "c".repeat(64)),
        artifact: format!("sha256:{}", "a".repeat(64)),
        path: String::new(),
        backend: None,
        committed_at: Timestamp::UNIX_EPOCH,
    }
}

/// Returns a query that is answered with `answer`.
fn answered<V: Clone + Send + Sync + 'static>(answer: V) -> SendQuery<V> {
    Box::new(move || {
        let answer = answer.clone();
        Box::pin(async move { Ok(answer) })
    })
}

/// Waits until the query that `get` starts has its answer.
async fn known<V>(get: impl Fn() -> Answer<V>) {
    while matches!(get(), Answer::Pending) {
        tokio::task::yield_now().await;
    }
}

fn digest(text: char) -> String {
    format!("sha256:{}", text.to_string().repeat(64))
}

impl Simulation {
    async fn new() -> Self {
        let cluster = MemoryCluster::default();
        cluster.put(
            "namespaces",
            json!({"metadata": {"name": "team", "uid": "namespace-uid"}}),
        );
        cluster.put(
            "terraforms",
            json!({
                "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
                "metadata": {"name": "web", "namespace": "team", "uid": "uid-web", "generation": 1},
                "spec": {
                    "gitRepo": {"url": "https://git.test/team/infra"},
                    "containerRegistry": {"imageName": "registry.test/team/web"},
                    "variables": {"size": 1},
                },
            }),
        );
        Self {
            operator: Operator::start(&cluster).await,
            cluster,
            images: BTreeSet::new(),
            jobs: BTreeMap::new(),
            runs: Vec::new(),
        }
    }

    fn resource(&self) -> Option<Terraform> {
        self.cluster.all("terraforms").pop()
    }

    /// Prepares the answers of git and registry to the queries of the next reconcile.
    async fn answer(&self, tf: &Terraform) {
        let ctx = &self.operator.ctx;
        let answers = &ctx.answers;
        let resource = Ref::new("web").within("team");
        let found = async |reference: &str, pushed_by: Option<&str>, found: Option<String>| {
            let key = queries::digest(ctx, tf, reference, pushed_by, None)
                .unwrap()
                .key;
            known(|| {
                answers
                    .images
                    .get(&key, &resource, None, answered(found.clone()))
            })
            .await;
        };
        found(BASE, None, Some(digest('b'))).await;
        let repository = Repository::of(tf, &Credentials::default()).unwrap();
        let revision = Revision::of_commit(&CommitId::parse(COMMIT).unwrap());
        let key = repository.revision_query();
        known(|| {
            answers
                .revisions
                .get(&key, &resource, None, answered(revision.clone()))
        })
        .await;
        let key = repository.module_query(&ctx.allowed.now());
        known(|| {
            let send: SendQueryWith<SourceSeen, Revision> = Box::new(|argument| {
                let revision = argument.borrow().clone();
                Box::pin(async move { (revision, Ok(source())) })
            });
            answers
                .modules
                .get_with_argument(&key, revision.clone(), &resource, None, send)
        })
        .await;
        let key = queries::push(ctx, tf, &source(), repository, None)
            .unwrap()
            .key;
        let pushed = format!("registry.test/team/web@{}", digest('a'));
        known(|| {
            answers
                .artifacts
                .get(&key, &resource, None, answered(pushed.clone()))
        })
        .await;
        let base = base_image(tf, &ctx.settings, None).unwrap().unwrap_err();
        let base = base.pinned(queries::by_digest(BASE, &digest('b')));
        let architecture = ctx.settings.architecture_of(tf, None);
        let plan = image::plan(
            tf,
            &source(),
            &base,
            architecture,
            "namespace-uid",
            &ctx.settings,
        );
        let reference = format!("registry.test/team/web:{}", plan.tag);
        let image = self.images.contains(&plan.tag).then(|| digest('d'));
        let job = alustan_api::names::build_job(&plan.tag);
        found(&reference, None, image.clone()).await;
        if image.is_some() {
            found(&reference, Some(&job), image).await;
        }
    }

    /// Reconciles once. Restarts the operator after a crash.
    async fn reconcile(&mut self, tf: Terraform) {
        self.operator.sync(&self.cluster);
        self.answer(&tf).await;
        let object = Guarded(Ok(tf));
        let _ = Box::pin(reconcile_object(&object, &self.operator.ctx)).await;
        if self.cluster.is_crashed() {
            self.cluster.inject(None);
            self.operator = Operator::start(&self.cluster).await;
        }
    }

    /// Completes all Jobs: a build pushes its image, a run writes its report. Asserts that no Job was created twice.
    fn complete_jobs(&mut self) {
        for job in self.cluster.all::<Job>("jobs") {
            let (name, uid) = (job.name_any(), job.uid().unwrap());
            let earlier = self.jobs.insert(name.clone(), uid.clone());
            assert!(
                earlier.is_none_or(|earlier| earlier == uid),
                "Job {name} was created twice"
            );
            if jobs::finished(&job) {
                continue;
            }
            if let Some(tag) = job.labels().get(IMAGE_TAG) {
                self.images.insert(tag.clone());
            } else {
                self.report(&name);
                self.runs.push(name.clone());
            }
            let conditions = [json!({"type": "Complete", "status": "True"})];
            let status = json!({"status": {"succeeded": 1, "conditions": conditions}});
            self.cluster.merge("jobs", &name, &status);
        }
    }

    fn report(&self, job: &str) {
        let mut parts = job.rsplit('-');
        let number: i64 = parts.next().unwrap().parse().unwrap();
        let now = Timestamp::now();
        let report = json!({
            "number": number, "kind": parts.next().unwrap(), "result": "Done", "trigger": "", "job": "",
            "startedAt": now, "finishedAt": now,
        });
        let data = |value: &Value| ByteString(value.to_string().into_bytes());
        let data = json!({"data": {key::REPORT: data(&report), key::OUTPUTS: data(&json!({}))}});
        self.cluster.merge("secrets", "web-report", &data);
    }

    /// Reconciles until `is_done`.
    async fn run_until(&mut self, is_done: impl Fn(Option<&Terraform>) -> bool, what: &str) {
        for _ in 0..RECONCILES {
            let tf = self.resource();
            if is_done(tf.as_ref()) {
                return;
            }
            if let Some(tf) = tf {
                self.reconcile(tf).await;
            }
            self.complete_jobs();
        }
        panic!("{what}: {:#?}", self.resource().map(|tf| tf.status));
    }

    /// Creates, changes and deletes the resource.
    async fn live(&mut self) {
        self.run_until(|tf| is_ready(tf, 1), "creation").await;
        self.cluster.merge(
            "terraforms",
            "web",
            &json!({"metadata": {"generation": 2}, "spec": {"variables": {"size": 2}}}),
        );
        self.run_until(|tf| is_ready(tf, 2), "change").await;
        self.cluster.delete("terraforms", "web");
        self.run_until(|tf| tf.is_none(), "deletion").await;
    }

    /// Asserts the effects of [`Self::live`]: each configuration was applied once, destroy ran once and last, and no object is left.
    fn assert_end(&self, fault: Option<Fault>) {
        let kinds = |kind: &str| {
            let runs = self.runs.iter().filter(|job| job.contains(kind));
            runs.count()
        };
        assert_eq!(kinds("-apply-"), 2, "{fault:?}: {:?}", self.runs);
        assert_eq!(kinds("-destroy-"), 1, "{fault:?}: {:?}", self.runs);
        assert!(self.runs.last().unwrap().contains("-destroy-"));
        let kinds = [
            "secrets",
            "configmaps",
            "persistentvolumeclaims",
            "serviceaccounts",
            "roles",
            "rolebindings",
            "poddisruptionbudgets",
        ];
        for plural in kinds {
            let left = self.cluster.all::<Value>(plural);
            let names: Vec<_> = left
                .iter()
                .map(|object| &object["metadata"]["name"])
                .collect();
            assert!(names.is_empty(), "{fault:?}: {plural} {names:?}");
        }
    }
}

fn is_ready(tf: Option<&Terraform>, generation: i64) -> bool {
    let status = tf.and_then(|tf| tf.status.as_ref());
    status.is_some_and(|status| {
        let mut conditions = status.conditions.iter();
        status.observed_generation == Some(generation)
            && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

async fn live_with(fault: Option<Fault>) -> usize {
    let mut simulation = Simulation::new().await;
    simulation.cluster.inject(fault);
    simulation.live().await;
    simulation.assert_end(fault);
    simulation.cluster.writes()
}

#[tokio::test]
async fn resource_is_created_changed_and_deleted_in_memory() {
    assert!(live_with(None).await > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_at_each_write_keeps_the_outcome() {
    let writes = live_with(None).await;
    let faults = (0..writes).flat_map(|at| {
        [
            Fault::Crash(at),
            Fault::LostResponse(at),
            Fault::Conflict(at),
        ]
    });
    futures::stream::iter(faults)
        .map(|fault| tokio::spawn(live_with(Some(fault))))
        .buffer_unordered(4)
        .for_each(|result| async move {
            result.unwrap();
        })
        .await;
}
