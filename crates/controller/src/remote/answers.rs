//! Answers of git servers, registries and the API server, by type of query.

use std::collections::HashSet;
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_core::observed::{GitToken, SourceSeen};
use alustan_source::Revision;
use tokio::sync::mpsc::UnboundedSender;

use crate::metrics::{Metrics, QueryKind};
use crate::remote::polled_cache::{Forward, PolledCache};
use crate::resource::Ref;

/// Caches of answers, by type of query.
pub(crate) struct Answers {
    /// Uids of namespaces.
    pub(crate) namespaces: Arc<PolledCache<String>>,
    /// Revisions that references of git repositories point to.
    pub(crate) revisions: Arc<PolledCache<Revision>>,
    /// Commits and contexts of modules. The argument of the query is the revision.
    pub(crate) modules: Arc<PolledCache<SourceSeen, Revision>>,
    /// Tokens of GitHub Apps for builds.
    pub(crate) tokens: Arc<PolledCache<GitToken>>,
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
    /// Creates empty caches. `wake` receives resources whose answers changed. A new revision starts the query for the module, and requeues the resource
    /// only with the answer of that query: one commit to a repository with many modules would otherwise requeue each of its resources twice.
    pub(crate) fn new(wake: &UnboundedSender<Ref>, metrics: &Arc<Metrics>) -> Self {
        let modules = PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Git("fetch"));
        let forward: Forward<Revision> = {
            let modules = modules.clone();
            Box::new(move |query, revision| modules.set_argument(query, revision.clone()))
        };
        Self {
            namespaces: PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Api),
            revisions: PolledCache::forwarding(
                wake.clone(),
                metrics.clone(),
                QueryKind::Git("resolve"),
                forward,
            ),
            modules,
            tokens: PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Git("token")),
            images: PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Registry("digest")),
            artifacts: PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Registry("push")),
            logs: PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Api),
            pruned: PolledCache::new(wake.clone(), metrics.clone(), QueryKind::Registry("prune")),
        }
    }

    /// Returns whether a query of `resource` has no answer yet for its newest argument. Ignores prunings.
    pub(crate) fn has_open_query(&self, resource: &Ref) -> bool {
        self.namespaces.has_open_query(resource)
            || self.revisions.has_open_query(resource)
            || self.modules.has_open_query(resource)
            || self.tokens.has_open_query(resource)
            || self.images.has_open_query(resource)
            || self.artifacts.has_open_query(resource)
            || self.logs.has_open_query(resource)
    }

    /// Unsubscribes `resource` from queries not in `used`.
    pub(crate) fn keep(&self, resource: &Ref, used: &HashSet<String>) {
        self.namespaces.keep(resource, used);
        self.revisions.keep(resource, used);
        self.modules.keep(resource, used);
        self.tokens.keep(resource, used);
        self.images.keep(resource, used);
        self.artifacts.keep(resource, used);
        self.logs.keep(resource, used);
        self.pruned.keep(resource, used);
    }
}

/// Result of pruning a registry repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub(crate) removed: usize,
    /// Cause, if the pruning is incomplete.
    pub(crate) failure: Option<Failure>,
}
