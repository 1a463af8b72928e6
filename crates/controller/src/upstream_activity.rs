//! Stores the result of the last reconcile of each resource. Also stores which resources wait for a dependency whose outputs may change
//! soon.

use std::collections::BTreeMap;

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_core::dependency_graph::DependencyGraph;
use alustan_core::upstream_changes::{self, Activity, ReconcileResult};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::UnboundedSender;

use crate::resource::Ref;
use crate::wait_index::WaitIndex;
use crate::watch::mapping::to_ref;

/// Result of the last reconcile of each resource since the start of this process, and the resources that wait for a dependency.
pub(crate) struct UpstreamActivity {
    wake: UnboundedSender<Ref>,
    known: Mutex<KnownActivity>,
}

#[derive(Default)]
struct KnownActivity {
    results: BTreeMap<ObjectKey, ReconcileResult>,
    /// Resources that wait for a dependency whose outputs may change soon.
    waiting: WaitIndex<ObjectKey, ObjectKey>,
}

impl UpstreamActivity {
    /// Creates an empty collection. `wake` receives the resources to requeue: they waited for a dependency that has been reconciled or
    /// deleted.
    pub(crate) fn new(wake: UnboundedSender<Ref>) -> Self {
        Self {
            wake,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownActivity> {
        self.known.lock()
    }

    /// Returns a direct or transitive dependency of `tf` whose outputs may change soon, see [`upstream_changes::changing`]. Stores that `tf`
    /// waits for this dependency: [`Self::record`] requeues `tf` when the dependency has a new result.
    pub(crate) fn changing(
        &self,
        tf: &Terraform,
        graph: &mut DependencyGraph<'_>,
        version: impl Fn(&Terraform) -> Option<String>,
    ) -> Option<ObjectKey> {
        let mut known = self.known();
        let changing = upstream_changes::changing(tf, graph, &known.results, version);
        known.waiting.set(&ObjectKey::of(tf), changing.clone());
        changing
    }

    /// Records `result`, the result of a reconcile of resource `key` whose steps have been executed. If the result changed, requeues the
    /// resources that wait for `key`. Also requeues them if `key` itself waits for a dependency, because they may then have to wait for
    /// that dependency.
    pub(crate) fn record(&self, key: &ObjectKey, result: ReconcileResult) {
        let mut known = self.known();
        let is_changed =
            result.activity == Activity::Blocked || known.results.get(key) != Some(&result);
        known.results.insert(key.clone(), result);
        if is_changed {
            self.wake_dependents(&known, key);
        }
    }

    /// Removes the deleted resource `key` from the collection, and requeues the resources that wait for `key`.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        let mut known = self.known();
        known.results.remove(key);
        known.waiting.set(key, None);
        self.wake_dependents(&known, key);
    }

    fn wake_dependents(&self, known: &KnownActivity, key: &ObjectKey) {
        for waiting_key in known.waiting.for_target(key) {
            // `send` fails only after the controller has stopped.
            let _ = self.wake.send(to_ref(waiting_key));
        }
    }
}
