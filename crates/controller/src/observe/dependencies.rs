//! Observes the input values of a resource, the objects that the resource waits for, and its dependents.

mod evaluation;
mod objects;
mod variables;

use std::collections::HashSet;

use alustan_api::Reason;
use alustan_api::report::Failure;
use alustan_core::dependency_graph::DependencyGraph;
use alustan_core::observed::StackSeen;
use kube::ResourceExt;
use tokio::time::Instant;

use super::observer::Observer;
use crate::error::Error;
use crate::observe::dependencies::evaluation::{Dependencies, EVALUATION_TIMEOUT};
use crate::resource::readable;

/// Observes the dependencies of the resource of the `observer`. If the dependency graph refuses a reference of the resource, for example because of a
/// cycle, returns the failure as second value and reads no input values. If the resource is being deleted and the refused reference is not to another
/// namespace, still observes the objects of `spec.destroyWaitFor`.
pub(super) async fn observe(
    observer: &Observer<'_>,
) -> Result<(StackSeen, Option<Failure>), Error> {
    let tf = observer.tf;
    let resources = observer.ctx.resources.state();
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
