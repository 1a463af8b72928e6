//! Result of the last reconcile of each resource, and the resources that wait because outputs of a dependency may change soon.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_core::dependency_graph::DependencyGraph;
use alustan_core::observed::Key;
use alustan_core::upstream_changes::{self, Doing, Look};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::UnboundedSender;

use crate::resource::Ref;
use crate::watch::mapping::to_ref;

/// Results of the last reconciles since the start of this process.
pub(crate) struct UpstreamActivity {
    wake: UnboundedSender<Ref>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    looks: BTreeMap<Key, Look>,
    /// Waiting resources, and the dependency whose outputs may change soon.
    waiting: BTreeMap<Key, Key>,
}

impl UpstreamActivity {
    /// Creates an empty collection. Resources that waited for the reconcile of a dependency are sent to `wake`, which requeues them.
    pub(crate) fn new(wake: UnboundedSender<Ref>) -> Self {
        Self {
            wake,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Returns the dependency of `tf` whose outputs may change soon, see [`upstream_changes::changing`]. The next reconcile of that
    /// dependency with another result requeues `tf`.
    pub(crate) fn changing(
        &self,
        tf: &Terraform,
        graph: &mut DependencyGraph<'_>,
        version: impl Fn(&Terraform) -> Option<String>,
    ) -> Option<Key> {
        let mut known = self.known();
        let changing = upstream_changes::changing(tf, graph, &known.looks, version);
        match &changing {
            Some(of) => known.waiting.insert(Key::of(tf), of.clone()),
            None => known.waiting.remove(&Key::of(tf)),
        };
        changing
    }

    /// Records `look`, the result of a reconcile of `of`, after its steps are executed. Requeues the resources that wait for `of` if the
    /// result changed. While `of` waits, they are always requeued, because they may have to wait for another dependency.
    pub(crate) fn note(&self, of: &Key, look: Look) {
        let mut known = self.known();
        let news = look.doing == Doing::Waits || known.looks.get(of) != Some(&look);
        known.looks.insert(of.clone(), look);
        if news {
            self.wake_for(&known, of);
        }
    }

    /// Drops the deleted resource `of` and requeues the resources that wait for it.
    pub(crate) fn forget(&self, of: &Key) {
        let mut known = self.known();
        known.looks.remove(of);
        known.waiting.remove(of);
        self.wake_for(&known, of);
    }

    fn wake_for(&self, known: &Known, of: &Key) {
        for (waiting, _) in known
            .waiting
            .iter()
            .filter(|(_, waits_for)| *waits_for == of)
        {
            // `send` fails only after the controller has stopped.
            let _ = self.wake.send(to_ref(waiting));
        }
    }
}
