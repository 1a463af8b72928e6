//! Requeues the dependents of a changed resource, and the resources that wait for its deletion.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use alustan_api::ObjectKey;
use alustan_api::{Reason, Terraform};
use alustan_core::dependency_graph::{named_references, readiness};
use alustan_core::observed::Readiness;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::indexed_store::IndexedStore;
use crate::resource::Guarded;
use crate::watch::mapping::followers_of;

/// For each resource, the last digest of the fields that dependents read, and the resources to reconcile when the digest changes.
#[derive(Default)]
pub(crate) struct DependentsIndex {
    known: Mutex<HashMap<ObjectKey, KnownDependents>>,
}

struct KnownDependents {
    /// Result of [`digest`].
    digest: u64,
    affected: BTreeSet<ObjectKey>,
}

impl DependentsIndex {
    /// Returns the resources to reconcile after a change of `tf`. Empty if no field that dependents read has changed.
    pub(crate) fn changed(
        &self,
        tf: &Terraform,
        resources: &IndexedStore<Guarded>,
    ) -> BTreeSet<ObjectKey> {
        let digest = digest(tf);
        let mut known = self.known.lock();
        let before = known.get(&ObjectKey::of(tf));
        if before.is_some_and(|before| before.digest == digest) {
            return BTreeSet::new();
        }
        let affected = affected(tf, resources);
        let before = known.insert(
            ObjectKey::of(tf),
            KnownDependents {
                digest,
                affected: affected.clone(),
            },
        );
        let before = before.map(|before| before.affected).unwrap_or_default();
        affected.into_iter().chain(before).collect()
    }

    /// Returns the resources to reconcile after the deletion of `tf`.
    pub(crate) fn deleted(
        &self,
        tf: &Terraform,
        resources: &IndexedStore<Guarded>,
    ) -> BTreeSet<ObjectKey> {
        let mut known = self.known.lock();
        let before = known.remove(&ObjectKey::of(tf));
        let before = before.map(|before| before.affected).unwrap_or_default();
        let affected = affected(tf, resources);
        affected.into_iter().chain(before).collect()
    }
}

/// Returns the dependents of `tf`, and the dependencies of `tf`, which may wait for the deletion of `tf`.
fn affected(tf: &Terraform, resources: &IndexedStore<Guarded>) -> BTreeSet<ObjectKey> {
    let dependencies = named_references(tf)
        .into_iter()
        .map(|reference| reference.key);
    followers_of(resources, tf)
        .into_iter()
        .chain(dependencies)
        .collect()
}

/// Returns a digest of the fields that dependents read.
fn digest(tf: &Terraform) -> u64 {
    let mut hasher = DefaultHasher::new();
    match readiness(tf) {
        Readiness::Ready => (true, String::new()),
        // The message names the resource that `tf` waits for, directly or indirectly. The dependents of `tf` report the same name, so the
        // digest includes the message.
        Readiness::NotReady { reason, message } if reason == Reason::DependencyNotReady => {
            (false, message)
        }
        Readiness::NotReady { reason, .. } => (false, reason),
        Readiness::Missing => (false, String::new()),
    }
    .hash(&mut hasher);
    (tf.uid(), tf.metadata.generation, tf.labels()).hash(&mut hasher);
    hasher.finish()
}
