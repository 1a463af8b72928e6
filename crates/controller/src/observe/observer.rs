//! The observer of one reconcile of one resource.

use std::collections::HashSet;
use std::time::Duration;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use parking_lot::Mutex;

use crate::context::Context;
use crate::remote::answers::PruningSeen;
use crate::remote::queries::PushQuery;
use crate::resource::Ref;

/// Reads the inputs of one reconcile. Collects the queries that the resource uses. Stores the queries that push the context and prune the
/// registry repository, until the reconcile starts these queries.
pub(crate) struct Observer<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) resource: &'a Ref,
    /// Failure of parsing the stored resource, if it is unreadable.
    pub(crate) unreadable: Option<Failure>,
    pub(super) used_queries: Mutex<HashSet<String>>,
    pub(super) push: Mutex<Option<PushQuery>>,
    /// Pruning of the registry repository, if the pruning is due, finished or impossible. `None` if `spec.containerRegistry.prune` is not set or the
    /// pruning is active.
    pub(crate) pruning: Mutex<Option<PruningSeen>>,
    pub(super) reads: Mutex<InputReads>,
    /// Maximum time until the next reconcile, if [`Self::requeue_within`] set one.
    pub(super) within: Mutex<Option<Duration>>,
}

/// How a reconcile gets Secrets and `ConfigMap`s that the spec refers to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum InputReads {
    /// Reads objects from the API server, or reuses objects that an earlier reconcile read.
    #[default]
    Any,
    /// Like [`Self::Any`], and has already reused at least one object.
    Reused,
    /// Reads all objects from the API server.
    Fresh,
}

impl Observer<'_> {
    /// Returns the object that `recent` returns. Returns `None` if this reconcile must read all objects from the API server.
    pub(super) fn reuse<K>(&self, recent: impl FnOnce() -> Option<K>) -> Option<K> {
        let mut reads = self.reads.lock();
        if *reads == InputReads::Fresh {
            return None;
        }
        let reused = recent()?;
        *reads = InputReads::Reused;
        Some(reused)
    }

    /// Makes the next observation of this reconcile read all objects from the API server. Returns false if the previous observation reused no object:
    /// then a new observation is not needed.
    pub(crate) fn requires_fresh_reads(&self) -> bool {
        let mut reads = self.reads.lock();
        let is_reused = *reads == InputReads::Reused;
        *reads = InputReads::Fresh;
        is_reused
    }

    /// Requires another reconcile within `wait`.
    pub(crate) fn requeue_within(&self, wait: Duration) {
        *self.within.lock() = Some(wait);
    }

    /// Returns the time until the next reconcile: `wait`, or less if this reconcile requires another one earlier.
    pub(crate) fn next_within(&self, wait: Duration) -> Duration {
        let within = *self.within.lock();
        within.map_or(wait, |within| within.min(wait))
    }
}
