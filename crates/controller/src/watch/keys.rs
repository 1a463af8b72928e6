//! Keys of the objects in the watch caches.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use alustan_api::labels::{self, Component, JOB_NAME};
use alustan_api::{ObjectKey, Terraform};
use alustan_core::dependency_graph::{named_references, selected_namespaces};
use alustan_core::metric_definitions::ResourceState;
use alustan_core::model::state_conflict;
use alustan_source::RepositoryUrl;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::indexed_store::{Indexed, json_bytes};
use crate::resource::{Guarded, has_component};
use crate::watch::cached::{CachedClaim, CachedJob, CachedPod, secret_from_bytes, secret_to_bytes};

/// Serializes the listed fields as a JSON array. For cached types whose `Deserialize` expects the object of the API server.
macro_rules! fields {
    ($($field:ident),+) => {
        fn to_bytes(&self) -> Vec<u8> {
            // Does not fail: all keys of maps are strings.
            serde_json::to_vec(&($(&self.$field,)+)).unwrap_or_default()
        }

        fn from_bytes(bytes: &[u8]) -> Option<Self> {
            let ($($field,)+) = serde_json::from_slice(bytes).ok()?;
            Some(Self { $($field,)+ })
        }
    };
}

/// Key of a resource.
#[derive(Hash)]
pub(crate) enum ResourceKey {
    /// Uid of the resource.
    Uid(String),
    /// Namespace of the resource.
    Namespace(String),
    /// Secret that a reconcile of the resource reads.
    Secret(ObjectKey),
    /// ConfigMap that a reconcile of the resource reads.
    ConfigMap(ObjectKey),
    /// Resource that the spec references by name.
    Reference(ObjectKey),
    /// Namespace in which the spec selects resources by labels.
    Selector(String),
    /// Address of the state, see [`state_conflict::address`].
    State(String),
    /// Namespace of the resource, if its spec selects a shared cache claim.
    SharedClaim(String),
    /// Git repository of the module, see [`RepositoryUrl::repository_key`].
    Repository(String),
}

/// Summary of a resource.
#[derive(Clone, Copy)]
pub(crate) struct ResourceSummary {
    /// State for metrics; `None` if the resource cannot be parsed.
    pub(crate) state: Option<ResourceState>,
    /// Hash of the fields of which a change reconciles the resource: uid, generation, finalizers and annotations.
    pub(crate) trigger: u64,
}

impl Indexed for Guarded {
    type Key = ResourceKey;
    type Summary = ResourceSummary;

    fn keys(&self) -> Vec<ResourceKey> {
        let uid = self.meta().uid.clone().map(ResourceKey::Uid);
        let parsed = self.0.iter().flat_map(keys_of_parsed);
        uid.into_iter().chain(parsed).collect()
    }

    fn summary(&self) -> ResourceSummary {
        let meta = self.meta();
        let trigger = (
            &meta.uid,
            meta.generation,
            &meta.finalizers,
            &meta.annotations,
        );
        ResourceSummary {
            state: self.0.as_ref().ok().map(ResourceState::of),
            trigger: BuildHasherDefault::<DefaultHasher>::default().hash_one(trigger),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        Self::to_bytes(self)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes)
    }
}

/// Returns the keys of a resource that this version of the operator can parse, without its uid.
fn keys_of_parsed(tf: &Terraform) -> impl Iterator<Item = ResourceKey> {
    let spec = &tf.spec;
    let namespace = tf.namespace().unwrap_or_default();
    let selectors = selected_namespaces(tf).map(ResourceKey::Selector);
    let repository = spec
        .git_repo
        .as_ref()
        .and_then(|repository| RepositoryUrl::parse(&repository.url).ok())
        .map(|url| ResourceKey::Repository(url.repository_key()));
    let shared_claim = spec.cache.claim_name.as_ref();
    let references = named_references(tf)
        .into_iter()
        .map(|reference| ResourceKey::Reference(reference.key));
    let keys: Vec<_> = selectors
        .chain(repository)
        .chain(shared_claim.map(|_| ResourceKey::SharedClaim(namespace.clone())))
        .chain(references)
        .chain(state_conflict::address(tf).map(ResourceKey::State))
        .chain(secrets(tf).into_iter().map(ResourceKey::Secret))
        .chain(config_maps(tf).into_iter().map(ResourceKey::ConfigMap))
        .collect();
    keys.into_iter().chain([ResourceKey::Namespace(namespace)])
}

/// Returns the Secrets that a reconcile of `tf` reads because its spec names them.
pub(super) fn secrets(tf: &Terraform) -> Vec<ObjectKey> {
    in_namespace_of(tf, tf.spec.secret_names())
}

/// Returns the ConfigMaps that a reconcile of `tf` reads because its spec names them.
pub(super) fn config_maps(tf: &Terraform) -> Vec<ObjectKey> {
    in_namespace_of(tf, tf.spec.config_map_names())
}

fn in_namespace_of<'a>(tf: &Terraform, names: impl Iterator<Item = &'a str>) -> Vec<ObjectKey> {
    let namespace = tf.namespace().unwrap_or_default();
    names.map(|name| ObjectKey::new(&namespace, name)).collect()
}

/// Key of a Job.
#[derive(Hash)]
pub(crate) enum JobKey {
    /// Namespace of the Job, and uid of its resource.
    Resource(String, String),
    /// `PersistentVolumeClaim` that the Job mounts.
    Claim(ObjectKey),
    /// Resource whose build this is, if its namespace is in a label of the Job.
    BuildOf(ObjectKey),
}

impl Indexed for CachedJob {
    type Key = JobKey;
    /// Whether the Job is a finished run.
    type Summary = bool;

    fields!(metadata, claims, builds_by_runner, finished);

    fn summary(&self) -> bool {
        self.is_finished_run()
    }

    fn keys(&self) -> Vec<JobKey> {
        let namespace = self.namespace().unwrap_or_default();
        let labels = self.labels();
        let resource = labels
            .get(labels::UID)
            .map(|uid| JobKey::Resource(namespace.clone(), uid.clone()));
        let build_of = labels
            .get(labels::NAMESPACE)
            .zip(labels.get(labels::NAME))
            .map(|(namespace, name)| JobKey::BuildOf(ObjectKey::new(namespace, name)));
        let claims = self.claims.iter();
        let claims = claims.map(|claim| JobKey::Claim(ObjectKey::new(&namespace, claim)));
        resource.into_iter().chain(build_of).chain(claims).collect()
    }
}

/// Key of a pod.
#[derive(Hash)]
pub(crate) enum PodKey {
    /// Namespace of the pod, and uid of its resource.
    Resource(String, String),
    /// Job of the pod.
    Job(ObjectKey),
}

impl Indexed for CachedPod {
    type Key = PodKey;
    type Summary = ();

    fields!(
        metadata,
        phase,
        reason,
        message,
        conditions,
        init_containers,
        containers
    );

    fn summary(&self) {}

    fn keys(&self) -> Vec<PodKey> {
        let namespace = self.namespace().unwrap_or_default();
        let labels = self.labels();
        let job = labels
            .get(JOB_NAME)
            .map(|job| PodKey::Job(ObjectKey::new(&namespace, job)));
        let resource = labels
            .get(labels::UID)
            .map(|uid| PodKey::Resource(namespace.clone(), uid.clone()));
        job.into_iter().chain(resource).collect()
    }
}

/// Key of a build Secret. Contains the namespace of the Secret, because tenants can write any labels in their own namespaces.
#[derive(Hash)]
pub(crate) struct BuildSecretKey {
    pub(crate) namespace: String,
    /// Label with the namespace of the resource.
    pub(crate) resource_namespace: Option<String>,
    /// Label with the name of the resource.
    pub(crate) resource: String,
}

impl Indexed for Secret {
    /// Only build Secrets have a key.
    type Key = BuildSecretKey;
    type Summary = ();

    fn keys(&self) -> Vec<BuildSecretKey> {
        let labels = self.labels();
        labels
            .get(labels::NAME)
            .filter(|_| has_component(self, Component::BuildSecret))
            .map(|name| BuildSecretKey {
                namespace: self.namespace().unwrap_or_default(),
                resource_namespace: labels.get(labels::NAMESPACE).cloned(),
                resource: name.clone(),
            })
            .into_iter()
            .collect()
    }

    fn summary(&self) {}

    fn to_bytes(&self) -> Vec<u8> {
        secret_to_bytes(self)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        secret_from_bytes(bytes)
    }
}

/// Objects that are only looked up by name.
impl Indexed for PartialObjectMeta<ConfigMap> {
    type Key = ();
    type Summary = ();

    json_bytes!();

    fn summary(&self) {}

    fn keys(&self) -> Vec<()> {
        Vec::new()
    }
}

/// Objects that are only looked up by name.
impl Indexed for CachedClaim {
    type Key = ();
    type Summary = ();

    fields!(metadata, phase);

    fn summary(&self) {}

    fn keys(&self) -> Vec<()> {
        Vec::new()
    }
}
