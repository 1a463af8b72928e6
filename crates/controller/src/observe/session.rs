//! One reconcile of one resource.

use std::collections::HashSet;
use std::time::Duration;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use parking_lot::Mutex;

use crate::context::Context;
use crate::remote::queries::Push;
use crate::resource::Ref;

/// Reads the inputs of one reconcile. Collects the queries that the resource uses, and keeps the push of its context until the reconcile
/// starts it.
pub(crate) struct Observer<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) who: &'a Ref,
    /// Failure of parsing the stored resource, if it is unreadable.
    pub(crate) unreadable: Option<Failure>,
    pub(super) used: Mutex<HashSet<String>>,
    pub(super) push: Mutex<Option<Push>>,
    /// Longest time until the next reconcile, if this one requires another.
    pub(super) within: Mutex<Option<Duration>>,
}

impl Observer<'_> {
    /// Requires another reconcile within `wait`.
    pub(crate) fn requeue_within(&self, wait: Duration) {
        let mut within = self.within.lock();
        *within = Some(within.map_or(wait, |earlier| earlier.min(wait)));
    }

    /// Returns the time until the next reconcile: `wait`, or less if this reconcile requires another one earlier.
    pub(crate) fn next_within(&self, wait: Duration) -> Duration {
        let within = *self.within.lock();
        within.map_or(wait, |within| within.min(wait))
    }
}
