//! Dependencies of a resource: input values, objects that it waits for, dependents.

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
use crate::observe::dependencies::evaluation::{EXPRESSIONS, Stack};
use crate::resource::readable;

/// Observes the dependencies of the resource of the `observer`. If its references are refused, the second value is the cause, and at most
/// the objects of `spec.destroyWaitFor` are read.
pub(super) async fn see(observer: &Observer<'_>) -> Result<(StackSeen, Option<Failure>), Error> {
    let tf = observer.tf;
    let resources = observer.ctx.resources.state();
    let deleted = tf.metadata.deletion_timestamp.is_some();
    let cross_namespace = observer.ctx.settings.cross_namespace_refs;
    let here = tf.namespace().unwrap_or_default();
    let mut stack = Stack {
        observer,
        graph: DependencyGraph::new(readable(&resources)),
        used: HashSet::new(),
        outputs_read: 0,
        evaluates_until: Instant::now() + EXPRESSIONS,
    };
    let dependents = if deleted {
        stack.graph.dependents(tf, cross_namespace)
    } else {
        Vec::new()
    };
    let dependents = dependents.iter().map(|key| key.seen_from(&here)).collect();
    if let Err(refused) = stack.graph.check(tf, cross_namespace) {
        // A destroy does not need the references, but waits for the objects of `spec.destroyWaitFor`.
        let reads = deleted && refused.reason != Reason::CrossNamespaceReference;
        let waits_for = if reads {
            &*tf.spec.destroy_wait_for
        } else {
            &[]
        };
        let seen = StackSeen {
            dependents,
            destroy_wait_for: stack.gone(waits_for).await?,
            ..StackSeen::default()
        };
        return Ok((stack.watched(seen), Some(refused)));
    }
    stack.complete_sources().await?;
    // Read the versions of the outputs Secrets before their values: if a Secret changes in between, the next reconcile observes a new
    // version.
    let (versions, changing) = stack.upstream();
    let variables = stack.variables().await?;
    let seen = if deleted {
        StackSeen {
            dependents,
            versions,
            variables,
            destroy_wait_for: stack.gone(&tf.spec.destroy_wait_for).await?,
            ..StackSeen::default()
        }
    } else {
        let checks = &tf.spec.health_checks;
        StackSeen {
            dependencies: stack.graph.dependencies(tf),
            versions,
            changing,
            variables,
            wait_for: stack.tests("spec.waitFor", &tf.spec.wait_for).await?,
            health_checks: stack.tests("spec.healthChecks", checks).await?,
            ..StackSeen::default()
        }
    };
    Ok((stack.watched(seen), None))
}
