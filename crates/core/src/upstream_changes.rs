//! Detects upstream outputs that are about to change (rule 14). A run waits until these outputs have changed. Otherwise, one change that
//! reaches a resource on several paths of the dependency graph would cause one run per path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use alustan_api::{Terraform, TerraformStatus};

use crate::dependency_graph::{DependencyGraph, readiness_with};
use crate::model::image::ImageSeen;
use crate::observed::{Answer, DependencySeen, Readiness, Seen};
use alustan_api::ObjectKey;

/// Result of the last reconcile of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileResult {
    /// Versions of the outputs that the resource used, by upstream resource. A version is uid and `resourceVersion` of the outputs Secret.
    pub versions: BTreeMap<ObjectKey, String>,
    /// Activity of the resource after the reconcile.
    pub activity: Activity,
    /// Whether the resource was ready after this reconcile, so that its dependents may run. A dependent that was reconciled earlier may
    /// still be [`Activity::Blocked`].
    pub ready: bool,
}

/// Activity of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The resource is idle, failed, suspended or deleted.
    Idle,
    /// A run is active or due, or the operator does not know the commit yet.
    Busy,
    /// The resource waits for its dependencies.
    Blocked,
}

impl ReconcileResult {
    /// Builds the result of a reconcile of `tf` that observed `seen` and `image`, and returned `status`.
    pub fn of(tf: &Terraform, seen: &Seen, image: &ImageSeen, status: &TerraformStatus) -> Self {
        let has_condition = |kind: &str, value: &str| {
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.type_ == kind && condition.status == value)
        };
        let activity = if tf.spec.suspend || tf.metadata.deletion_timestamp.is_some() {
            Activity::Idle
        } else if image.source == Answer::Pending || has_condition("Ready", "Unknown") {
            Activity::Busy
        } else if has_condition("Ready", "False") && !are_ready(&seen.stack.dependencies) {
            Activity::Blocked
        } else {
            Activity::Idle
        };
        Self {
            versions: seen.stack.versions.clone(),
            activity,
            ready: readiness_with(tf, Some(status)) == Readiness::Ready,
        }
    }
}

fn are_ready(dependencies: &[DependencySeen]) -> bool {
    let mut remaining = dependencies.iter();
    remaining.all(|dependency| dependency.readiness == Readiness::Ready)
}

/// Returns the versions of the outputs that `tf` uses, by upstream resource. `version` returns the version of the outputs of a given
/// resource.
pub fn versions(
    tf: &Terraform,
    graph: &mut DependencyGraph<'_>,
    version: impl Fn(&Terraform) -> Option<String>,
) -> BTreeMap<ObjectKey, String> {
    let sources = graph.sources(tf).into_iter();
    let versions = sources.filter_map(|key| {
        let version = version(graph.get(&key)?)?;
        Some((key, version))
    });
    versions.collect()
}

/// Returns the first resource whose outputs `tf` uses, directly or transitively, and whose outputs may change soon: it has an active or due
/// run, or has not processed its latest inputs. A failed, suspended or deleted resource that has processed its latest inputs is not
/// returned, so `tf` does not wait for it.
pub fn changing(
    tf: &Terraform,
    graph: &mut DependencyGraph<'_>,
    results: &BTreeMap<ObjectKey, ReconcileResult>,
    version: impl Fn(&Terraform) -> Option<String>,
) -> Option<ObjectKey> {
    let mut visited = BTreeSet::from([ObjectKey::of(tf)]);
    let mut pending = VecDeque::from_iter(graph.sources(tf));
    while let Some(key) = pending.pop_front() {
        let Some(upstream) = graph.get(&key).filter(|_| visited.insert(key.clone())) else {
            continue;
        };
        let Some(result) = results.get(&key) else {
            return Some(key);
        };
        if result.activity == Activity::Busy
            || result.versions != versions(upstream, graph, &version)
        {
            return Some(key);
        }
        if result.activity == Activity::Blocked {
            let depends_on = graph.references(upstream);
            let ready = |key| {
                graph.get(key).is_some()
                    && results
                        .get(key)
                        .is_none_or(|result: &ReconcileResult| result.ready)
            };
            // At its last reconcile, `upstream` waited for its dependencies. The dependencies are ready now, so the next reconcile of
            // `upstream` may start a run.
            if depends_on.iter().all(|upstream| ready(&upstream.key)) {
                return Some(key);
            }
            pending.extend(depends_on.iter().map(|upstream| upstream.key.clone()));
        } else {
            pending.extend(graph.sources(upstream));
        }
    }
    None
}
