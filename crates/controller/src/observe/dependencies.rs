//! Observes the input values of a resource, the objects that the resource waits for, and its dependents.

mod evaluation;
mod objects;
mod variables;

use std::collections::{HashMap, HashSet, hash_map};
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_api::{ObjectKey, Reason, Terraform};
use alustan_core::dependency_graph::{DependencyGraph, named_references, selected_namespaces};
use alustan_core::observed::StackSeen;
use kube::ResourceExt;
use tokio::time::Instant;

use super::observer::Observer;
use crate::error::Error;
use crate::indexed_store::IndexedStore;
use crate::observe::dependencies::evaluation::{Dependencies, EVALUATION_TIMEOUT};
use crate::resource::{Guarded, readable, ref_of};
use crate::watch::keys::ResourceKey;
use crate::watch::mapping::to_ref;

/// Returns the resources that the dependency graph of `tf` visits: the direct and transitive dependencies of `tf`, all resources of a namespace in
/// which one of them selects resources by labels, and, if `tf` is deleted, the resources that reference it by name.
fn related(resources: &IndexedStore<Guarded>, tf: &Terraform) -> Vec<Arc<Guarded>> {
    let mut related = HashMap::new();
    let mut loaded = HashSet::new();
    let mut pending = references(resources, tf, &mut loaded);
    while let Some(next) = pending.pop() {
        if let hash_map::Entry::Vacant(entry) = related.entry(ref_of(&*next)) {
            entry.insert(next.clone());
            let parsed = next.0.iter();
            pending.extend(parsed.flat_map(|tf| references(resources, tf, &mut loaded)));
        }
    }
    if tf.metadata.deletion_timestamp.is_some() {
        let dependents = resources.with(&ResourceKey::Reference(ObjectKey::of(tf)));
        let dependents = dependents.into_iter();
        related.extend(dependents.map(|other| (ref_of(&*other), other)));
    }
    related.into_values().collect()
}

/// Returns the resources that `tf` references by name, and all resources of the namespaces in which `tf` selects resources by labels. Omits the
/// namespaces in `loaded`, and adds to it.
fn references(
    resources: &IndexedStore<Guarded>,
    tf: &Terraform,
    loaded: &mut HashSet<String>,
) -> Vec<Arc<Guarded>> {
    let named = named_references(tf).into_iter();
    let mut found: Vec<_> = named
        .filter_map(|reference| resources.get(&to_ref(&reference.key)))
        .collect();
    for namespace in selected_namespaces(tf) {
        if loaded.insert(namespace.clone()) {
            found.extend(resources.with(&ResourceKey::Namespace(namespace)));
        }
    }
    found
}

/// Observes the dependencies of the resource of the `observer`. If the dependency graph refuses a reference of the resource, for example because of a
/// cycle, returns the failure as second value and reads no input values. If the resource is being deleted and the refused reference is not to another
/// namespace, still observes the objects of `spec.destroyWaitFor`.
pub(super) async fn observe(
    observer: &Observer<'_>,
) -> Result<(StackSeen, Option<Failure>), Error> {
    let tf = observer.tf;
    let resources = related(&observer.ctx.resources, tf);
    let deleted = tf.metadata.deletion_timestamp.is_some();
    let cross_namespace = observer.ctx.settings.cross_namespace_refs;
    let own_namespace = tf.namespace().unwrap_or_default();
    let mut dependencies = Dependencies {
        observer,
        graph: DependencyGraph::new(readable(&resources)),
        used_objects: HashSet::new(),
        outputs_read: 0,
        evaluates_until: Instant::now() + EVALUATION_TIMEOUT,
    };
    let dependents = if deleted {
        dependencies.graph.dependents(tf, cross_namespace)
    } else {
        Vec::new()
    };
    let dependents = dependents
        .iter()
        .map(|key| key.seen_from(&own_namespace))
        .collect();
    if let Err(failure) = dependencies.graph.check(tf, cross_namespace) {
        // A destroy needs no input values from references, so it may run although a reference is refused. The destroy still waits for the objects of
        // `spec.destroyWaitFor`. Only after the refusal of a reference to another namespace, it does not wait: `destroyWaitFor` itself may contain
        // this reference.
        let waits = deleted && failure.reason != Reason::CrossNamespaceReference;
        let waits_for = if waits {
            &*tf.spec.destroy_wait_for
        } else {
            &[]
        };
        let seen = StackSeen {
            dependents,
            destroy_wait_for: dependencies.deletions(waits_for).await?,
            ..StackSeen::default()
        };
        return Ok((dependencies.with_watches(seen), Some(failure)));
    }
    dependencies.read_missing_outputs().await?;
    // Read the versions of the outputs Secrets before their values: if a Secret changes in between, the next reconcile observes a new
    // version.
    let (versions, changing) = dependencies.upstream();
    let variables = dependencies.variables().await?;
    let seen = if deleted {
        StackSeen {
            dependents,
            versions,
            variables,
            destroy_wait_for: dependencies.deletions(&tf.spec.destroy_wait_for).await?,
            ..StackSeen::default()
        }
    } else {
        let checks = &tf.spec.health_checks;
        StackSeen {
            dependencies: dependencies.graph.dependencies(tf),
            versions,
            changing,
            variables,
            wait_for: dependencies
                .tests("spec.waitFor", &tf.spec.wait_for)
                .await?,
            health_checks: dependencies.tests("spec.healthChecks", checks).await?,
            ..StackSeen::default()
        }
    };
    Ok((dependencies.with_watches(seen), None))
}
