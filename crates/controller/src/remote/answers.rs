//! Answers of git servers, registries and the API server, by type of query.

use std::collections::HashSet;
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_core::observed::SourceSeen;

use crate::remote::polled_cache::PolledCache;
use crate::resource::Ref;

/// Caches of answers, by type of query.
pub(crate) struct Answers {
    /// Uids of namespaces.
    pub(crate) namespaces: Arc<PolledCache<String>>,
    /// Revisions that references of git repositories point to.
    pub(crate) revisions: Arc<PolledCache<alustan_source::Revision>>,
    /// Commits and contexts of modules. The argument of the query is the revision.
    pub(crate) modules: Arc<PolledCache<SourceSeen, alustan_source::Revision>>,
    /// Digests of images. `None`: the registry does not have the image.
    pub(crate) images: Arc<PolledCache<Option<String>>>,
    /// Digests, in the registry, of contexts that the operator pushed.
    pub(crate) artifacts: Arc<PolledCache<String>>,
    /// Last lines of the logs of failed builds.
    pub(crate) logs: Arc<PolledCache<String>>,
    /// Results of prunings of registry repositories.
    pub(crate) pruned: Arc<PolledCache<Pruned>>,
}

impl Answers {
    /// Returns whether a query of `who` has no answer yet for its newest argument. Ignores prunings.
    pub(crate) fn is_asking(&self, who: &Ref) -> bool {
        self.namespaces.is_asking(who)
            || self.revisions.is_asking(who)
            || self.modules.is_asking(who)
            || self.images.is_asking(who)
            || self.artifacts.is_asking(who)
            || self.logs.is_asking(who)
    }

    /// Unsubscribes `who` from queries not in `used`.
    pub(crate) fn keep(&self, who: &Ref, used: &HashSet<String>) {
        self.namespaces.keep(who, used);
        self.revisions.keep(who, used);
        self.modules.keep(who, used);
        self.images.keep(who, used);
        self.artifacts.keep(who, used);
        self.logs.keep(who, used);
        self.pruned.keep(who, used);
    }
}

/// Result of pruning a registry repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub(crate) removed: usize,
    /// Cause, if the pruning is incomplete.
    pub(crate) trouble: Option<Failure>,
}
