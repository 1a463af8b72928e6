//! A process of the operator on an API server in memory. Tests deliver the watch events, and prepare the answers of git and registry.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_api::{Reason, Terraform, labels, names};
use alustan_core::model::base_image::base_image;
use alustan_core::model::image;
use alustan_core::observed::{Answer, SourceSeen};
use alustan_source::{CommitId, Revision};
use clap::Parser as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::args::Config;
use crate::context::Context;
use crate::context_builder::{ContextParts, context};
use crate::indexed_store::{Indexed, IndexedStore, IndexedWriter, indexed_store};
use crate::memory_cluster::MemoryCluster;
use crate::mirrors::Mirrors;
use crate::remote::git_refs::Login;
use crate::remote::module_files::{ModuleFiles, SourceCredentials};
use crate::remote::polled_cache::{SendQuery, SendQueryWith};
use crate::remote::push_request::PushRequest;
use crate::remote::queries;
use crate::resource::{Guarded, Ref};
use crate::watch::cached::{CachedClaim, CachedJob, CachedPod, CachedSecret};
use crate::watch::mapping::LISTS;
use crate::write_through_cache::WriteThroughCache;

const BASE: &str = "registry.test/base:1";

/// git server and registry.
#[derive(Clone, Default)]
pub(super) struct Remote {
    /// Number of the commit at the head of the branch.
    pub(super) commit: u8,
    /// Whether the git server does not respond.
    pub(super) is_git_down: bool,
    /// Whether the registry does not respond.
    pub(super) is_registry_down: bool,
    /// Tags of the images in the registry.
    pub(super) images: BTreeSet<String>,
}

impl Remote {
    pub(super) fn source(&self) -> SourceSeen {
        SourceSeen {
            revision: self.revision(),
            context: digest('c', self.commit),
            artifact: digest('a', self.commit),
            path: String::new(),
            backend: None,
            committed_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn revision(&self) -> String {
        format!("{:040x}", u32::from(self.commit) + 1)
    }

    fn git<T>(&self, answer: T) -> Result<T, Failure> {
        let failure = || Failure::transient(Reason::RepositoryUnreachable, "no route to host");
        (!self.is_git_down).then_some(answer).ok_or_else(failure)
    }

    fn registry<T>(&self, answer: T) -> Result<T, Failure> {
        let failure = || Failure::transient(Reason::RegistryUnreachable, "connection refused");
        (!self.is_registry_down)
            .then_some(answer)
            .ok_or_else(failure)
    }
}

/// Watch cache of one kind, which the test fills.
struct Mirror<K: Indexed>(IndexedWriter<K>);

impl<K: Indexed> Mirror<K> {
    fn fill(&mut self, objects: Vec<K>) {
        self.0.apply(Event::Init);
        for object in objects {
            self.0.apply(Event::InitApply(object));
        }
        self.0.apply(Event::InitDone);
    }
}

fn mirror<K: Indexed>() -> (IndexedStore<K>, Mirror<K>) {
    let (store, writer) = indexed_store();
    (store, Mirror(writer))
}

/// A process of the operator.
pub(super) struct Operator {
    pub(super) ctx: Arc<Context>,
    secrets: Mirror<CachedSecret>,
    config_maps: Mirror<PartialObjectMeta<ConfigMap>>,
    claims: Mirror<CachedClaim>,
    jobs: Mirror<CachedJob>,
    pods: Mirror<CachedPod>,
    resources: Mirror<Guarded>,
    _folder: tempfile::TempDir,
}

impl Operator {
    pub(super) async fn start(cluster: &MemoryCluster) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let base = format!("--base-image={BASE}");
        let cache = format!("--cache-dir={}", folder.path().display());
        let flags = ["alustan", "--operator-image=registry.test/operator:1"];
        let flags = flags.into_iter().chain([&*base, &*cache]);
        let config = Config::try_parse_from(flags).unwrap();
        let parts = ContextParts {
            clock: cluster.clock(),
            ..ContextParts::of_test(cluster.client().await)
        };
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
    pub(super) fn sync(&mut self, cluster: &MemoryCluster) {
        let secrets = cluster.all::<CachedSecret>("secrets");
        let is_managed = |secret: &CachedSecret| secret.labels().contains_key(labels::MANAGED_BY);
        let existing: BTreeSet<String> = secrets.iter().map(ResourceExt::name_any).collect();
        for name in ["web-run", "web-report", "web-pin", "web-outputs"] {
            if !existing.contains(name) {
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

    /// Drops the answers of git and registry.
    pub(super) fn forget_answers(&self) {
        let resource = Ref::new("web").within("team");
        self.ctx.answers.keep(&resource, &HashSet::new());
    }

    /// Prepares the answers of git and registry to the queries of the next reconcile.
    pub(super) async fn prepare_answers(&self, tf: &Terraform, remote: &Remote) {
        let ctx = &self.ctx;
        let answers = &ctx.answers;
        let resource = Ref::new("web").within("team");
        let found = async |reference: &str, pushed_by: Option<&str>, found: Option<String>| {
            let key = queries::digest(&ctx.registry, &ctx.settings, tf, reference, pushed_by, None)
                .unwrap()
                .key;
            let answer = remote.registry(found);
            known(|| {
                answers
                    .images
                    .get(&key, &resource, None, answered(answer.clone()))
            })
            .await;
        };
        found(BASE, None, Some(digest('b', 0))).await;
        let credentials = SourceCredentials {
            git: &Login::default(),
            artifact: None,
        };
        let files = ModuleFiles::of(tf, credentials, &BTreeSet::new()).unwrap();
        let revision = Revision::of_commit(&CommitId::parse(&remote.revision()).unwrap());
        let key = files.revision_query();
        known(|| {
            answers.revisions.get(
                &key,
                &resource,
                None,
                answered(remote.git(revision.clone())),
            )
        })
        .await;
        let key = files.module_query(&ctx.allowed.now());
        let module = remote.git(remote.source());
        known(|| {
            let module = module.clone();
            let send: SendQueryWith<SourceSeen, Revision> = Box::new(move |argument| {
                let (revision, module) = (argument.borrow().clone(), module.clone());
                Box::pin(async move { (revision, module) })
            });
            answers
                .modules
                .get_with_argument(&key, revision.clone(), &resource, None, send)
        })
        .await;
        let source = remote.source();
        let key = PushRequest::new(&ctx.settings, tf, &source, files, None)
            .unwrap()
            .key;
        let pushed = remote.registry(format!("registry.test/team/web@{}", source.artifact));
        known(|| {
            answers
                .artifacts
                .get(&key, &resource, None, answered(pushed.clone()))
        })
        .await;
        let base = base_image(tf, &ctx.settings, None).unwrap().unwrap_err();
        let base = base.pinned(queries::by_digest(BASE, &digest('b', 0)));
        let architecture = ctx.settings.architecture_of(tf, None);
        let plan = image::plan(
            tf,
            &source,
            &base,
            architecture,
            "namespace-uid",
            &ctx.settings,
        );
        let reference = format!("registry.test/team/web:{}", plan.tag);
        let image = remote
            .images
            .contains(&plan.tag)
            .then(|| digest('d', remote.commit));
        let job = names::build_job(&plan.tag);
        found(&reference, None, image.clone()).await;
        found(&reference, Some(&job), image).await;
    }
}

/// Returns a query that is answered with `answer`.
fn answered<V: Clone + Send + Sync + 'static>(answer: Result<V, Failure>) -> SendQuery<V> {
    Box::new(move || {
        let answer = answer.clone();
        Box::pin(async move { answer })
    })
}

/// Waits until the query that `get` starts has its answer.
async fn known<V>(get: impl Fn() -> Answer<V>) {
    while matches!(get(), Answer::Pending) {
        tokio::task::yield_now().await;
    }
}

fn digest(kind: char, number: u8) -> String {
    format!("sha256:{}{number:02x}", kind.to_string().repeat(62))
}
