//! A process of the operator on an API server in memory. Tests deliver the watch events, and prepare the answers of git and registry.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_api::{Reason, Terraform, labels, names};
use alustan_core::model::base_image::base_image;
use alustan_core::model::image;
use alustan_core::observed::{Answer, SourceSeen};
use alustan_source::{CommitId, Revision};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::jiff::Timestamp;
use kube::api::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;

use crate::context::Context;
use crate::context_builder::{ContextParts, context_of_test};
use crate::indexed_store::{IndexedWriter, indexed_store};
use crate::memory_cluster::MemoryCluster;
use crate::mirrors::Mirrors;
use crate::remote::git_refs::Login;
use crate::remote::module_files::{ModuleFiles, SourceCredentials};
use crate::remote::polled_cache::{SendQuery, SendQueryWith};
use crate::remote::push_request::PushRequest;
use crate::remote::queries;
use crate::resource::{Guarded, Ref};
use crate::verified_objects::VerifiedObjects;
use crate::watch::cached::{CachedClaim, CachedJob, CachedPod};
use crate::watch::mapping::{LISTS, is_mirrored};
use crate::write_through_cache::WriteThroughCache;

/// Base image of [`context_of_test`].
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
            commit: None,
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

/// Watch of one kind that fills no cache.
struct Changes<K>(BTreeMap<String, K>);

impl<K: Resource<DynamicType = ()>> Changes<K> {
    fn begin(verified: &VerifiedObjects, objects: Vec<K>) -> Self {
        verified.watch_began::<K>();
        Self(by_name(objects))
    }

    /// Reports the changes of `objects` since the last call. `version`: resource version of the cluster.
    fn report(&mut self, objects: Vec<K>, version: u64, verified: &VerifiedObjects) {
        let mut before = std::mem::replace(&mut self.0, by_name(objects));
        for (name, object) in &self.0 {
            let old = before.remove(name);
            if old.is_none_or(|old| old.resource_version() != object.resource_version()) {
                verified.changed(object);
            }
        }
        for mut object in before.into_values() {
            object.meta_mut().resource_version = Some((version + 1).to_string());
            verified.deleted(&object);
        }
    }
}

fn by_name<K: Resource>(objects: Vec<K>) -> BTreeMap<String, K> {
    let named = objects
        .into_iter()
        .map(|object| (object.name_any(), object));
    named.collect()
}

/// Watches of the objects that only runs need.
struct RunObjects {
    accounts: Changes<ServiceAccount>,
    roles: Changes<Role>,
    bindings: Changes<RoleBinding>,
    budgets: Changes<PodDisruptionBudget>,
    secrets: Changes<Secret>,
}

impl RunObjects {
    fn begin(verified: &VerifiedObjects, cluster: &MemoryCluster) -> Self {
        Self {
            accounts: Changes::begin(verified, cluster.all("serviceaccounts")),
            roles: Changes::begin(verified, cluster.all("roles")),
            bindings: Changes::begin(verified, cluster.all("rolebindings")),
            budgets: Changes::begin(verified, cluster.all("poddisruptionbudgets")),
            secrets: Changes::begin(verified, run_secrets(cluster)),
        }
    }

    fn report(&mut self, verified: &VerifiedObjects, cluster: &MemoryCluster) {
        let version = cluster.version();
        self.accounts
            .report(cluster.all("serviceaccounts"), version, verified);
        self.roles.report(cluster.all("roles"), version, verified);
        self.bindings
            .report(cluster.all("rolebindings"), version, verified);
        self.budgets
            .report(cluster.all("poddisruptionbudgets"), version, verified);
        self.secrets.report(run_secrets(cluster), version, verified);
    }
}

/// Returns the Secrets that are in no watch cache.
fn run_secrets(cluster: &MemoryCluster) -> Vec<Secret> {
    let mut secrets = cluster.all::<Secret>("secrets");
    secrets.retain(|secret| !is_mirrored(secret));
    secrets
}

/// A process of the operator.
pub(super) struct Operator {
    pub(super) ctx: Arc<Context>,
    secrets: IndexedWriter<Secret>,
    config_maps: IndexedWriter<PartialObjectMeta<ConfigMap>>,
    claims: IndexedWriter<CachedClaim>,
    jobs: IndexedWriter<CachedJob>,
    pods: IndexedWriter<CachedPod>,
    resources: IndexedWriter<Guarded>,
    run_objects: RunObjects,
    _folder: tempfile::TempDir,
}

impl Operator {
    pub(super) async fn start(cluster: &MemoryCluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let parts = ContextParts {
            clock: cluster.clock(),
            ..ContextParts::of_test(cluster.client().await)
        };
        let (secret_store, secrets) = indexed_store();
        let (config_map_store, config_maps) = indexed_store();
        let (claim_store, claims) = indexed_store();
        let (job_store, jobs) = indexed_store();
        let (pod_store, pods) = indexed_store();
        let (resource_store, resources) = indexed_store();
        let mirrors = Mirrors {
            secrets: WriteThroughCache::new(secret_store),
            config_maps: WriteThroughCache::new(config_map_store),
            claims: WriteThroughCache::new(claim_store),
            jobs: WriteThroughCache::new(job_store),
            pods: WriteThroughCache::new(pod_store),
            listed: watch::channel(LISTS).1,
            ..Mirrors::empty()
        };
        let ctx = context_of_test(parts, folder.path(), mirrors, resource_store);
        Self {
            run_objects: RunObjects::begin(&ctx.verified_objects, cluster),
            ctx,
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
        let secrets = cluster.all::<Secret>("secrets");
        let is_managed = |secret: &Secret| secret.labels().contains_key(labels::MANAGED_BY);
        let existing: BTreeSet<String> = secrets.iter().map(ResourceExt::name_any).collect();
        for name in ["web-run", "web-report", "web-pin", "web-outputs"] {
            if !existing.contains(name) {
                self.ctx.mirrors.secrets.forget("team", name);
            }
        }
        self.secrets.list(secrets.into_iter().filter(is_managed));
        self.run_objects.report(&self.ctx.verified_objects, cluster);
        self.config_maps.list(cluster.all("configmaps"));
        self.claims.list(cluster.all("persistentvolumeclaims"));
        self.jobs.list(cluster.all("jobs"));
        self.pods.list(cluster.all("pods"));
        let resources = cluster.all::<Terraform>("terraforms").into_iter();
        self.resources.list(resources.map(|tf| Guarded(Ok(tf))));
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
        let files = ModuleFiles::of(tf, credentials, BTreeSet::new).unwrap();
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
