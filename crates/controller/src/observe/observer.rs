//! The observer of one reconcile of one resource.

use std::collections::HashSet;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use alustan_core::model::image::ImageSeen;
use alustan_core::observed::Seen;
use alustan_registry::DockerConfig;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

use crate::context::Context;
use crate::error::Error;
use crate::recent_reads::{RecentReads, Values};
use crate::reconciliation::Reconciliation;
use crate::remote::git_refs::Login;
use crate::remote::prune_request::PruningSeen;
use crate::remote::push_request::PushRequest;
use crate::resource::Ref;

/// Reads the inputs of one reconcile. Collects the queries that the resource uses.
pub(crate) struct Observer<'a> {
    pub(super) ctx: &'a Context,
    pub(super) tf: &'a Terraform,
    pub(super) resource: &'a Ref,
    /// Failure of parsing the stored resource, if it is unreadable.
    pub(super) unreadable: Option<&'a Failure>,
    pub(super) used_queries: Mutex<HashSet<String>>,
    pub(super) reads: Mutex<InputReads>,
    /// Whether this process has not observed the resource before.
    is_first: bool,
}

/// Everything observed in one reconcile.
pub(crate) struct Observation {
    /// Time of the decision.
    pub(crate) now: Timestamp,
    pub(crate) seen: Seen,
    pub(crate) image: ImageObservation,
}

/// Answers to the queries of a reconcile, and the requests that a decision may start.
pub(crate) struct ImageObservation {
    pub(crate) seen: ImageSeen,
    /// Push of the context. `None` if the context is unknown, or if its credentials are invalid.
    pub(crate) push: Option<PushRequest>,
    /// Pruning of the registry repository, if the pruning is due, finished or impossible. `None` if `spec.containerRegistry.prune` is not set or the
    /// pruning is active.
    pub(crate) pruning: Option<PruningSeen>,
}

/// Credentials of the queries to repository and registry, or the failure if their Secret is missing or invalid.
pub(crate) struct QueryCredentials {
    /// Credentials for the repository.
    pub(super) git: Result<Login, Failure>,
    /// Credentials for the registry. `None`: anonymous access.
    pub(super) docker: Result<Option<DockerConfig>, Failure>,
    /// Credentials in `spec.source.oci.secretRef`. `None`: those for the registry.
    pub(super) artifact: Result<Option<DockerConfig>, Failure>,
}

/// How a reconcile gets the objects that the spec refers to.
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

impl<'a> Observer<'a> {
    /// Creates the observer of one reconcile.
    pub(crate) fn new(reconciliation: &'a Reconciliation<'a>) -> Self {
        Self {
            ctx: reconciliation.ctx,
            tf: reconciliation.tf,
            resource: reconciliation.resource,
            unreadable: reconciliation.unreadable.as_ref(),
            used_queries: Mutex::default(),
            reads: Mutex::default(),
            is_first: reconciliation
                .ctx
                .memory
                .begin_observation(reconciliation.resource),
        }
    }

    pub(super) fn use_query(&self, query: &str) {
        self.used_queries.lock().insert(query.to_owned());
    }

    /// Returns the object `key`: reused from `recent`, or the result of `request`. `None` if the object does not exist. Reuses an object that the
    /// operator does not watch only in the first reconcile of the resource: the cause of a later reconcile may be a user who has just changed the
    /// object.
    pub(super) async fn read<V: Values + Clone, R>(
        &self,
        recent: &RecentReads<Option<V>>,
        key: &Ref,
        request: impl FnOnce() -> R,
    ) -> Result<Option<V>, Error>
    where
        R: Future<Output = Result<Option<V>, Error>> + Send + 'static,
    {
        let may_reuse = self.may_reuse(recent.is_watched);
        let (object, is_reused) = recent.read(key, may_reuse, request).await;
        if is_reused {
            self.record_reuse();
        }
        object
    }

    /// Whether this reconcile may reuse an object that another one has read. `is_watched`: whether the operator watches the object.
    pub(super) fn may_reuse(&self, is_watched: bool) -> bool {
        *self.reads.lock() != InputReads::Fresh && (is_watched || self.is_first)
    }

    /// Records that this reconcile has reused an object.
    pub(super) fn record_reuse(&self) {
        *self.reads.lock() = InputReads::Reused;
    }

    /// Makes the next observation of this reconcile read all objects from the API server. Returns false if the previous observation reused no object:
    /// then a new observation is not needed.
    pub(crate) fn discard_reused_reads(&self) -> bool {
        let mut reads = self.reads.lock();
        let is_reused = *reads == InputReads::Reused;
        *reads = InputReads::Fresh;
        is_reused
    }
}
