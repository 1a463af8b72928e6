//! Answers of git servers, registries and pods, by kind of query.

use std::collections::HashSet;
use std::sync::Arc;

use alustan_api::report::Failure;
use alustan_core::observed::SourceSeen;

use crate::remote::polled_cache::PolledCache;
use crate::resource::Ref;

/// Answers by kind of question.
pub(crate) struct Answers {
    /// Uids of namespaces.
    pub(crate) namespaces: Arc<PolledCache<String>>,
    /// Where a branch points.
    pub(crate) revisions: Arc<PolledCache<alustan_source::Revision>>,
    /// What a module needs at a revision, which is the argument.
    pub(crate) modules: Arc<PolledCache<SourceSeen, alustan_source::Revision>>,
    /// Digests of images; `None` where the registry has none.
    pub(crate) images: Arc<PolledCache<Option<String>>>,
    /// Digests of pushed contexts.
    pub(crate) artifacts: Arc<PolledCache<String>>,
    /// Last lines of failed builds.
    pub(crate) logs: Arc<PolledCache<String>>,
    /// What was removed from repositories.
    pub(crate) pruned: Arc<PolledCache<Pruned>>,
}

impl Answers {
    /// Whether the first answer to a question of `who` is still to come.
    pub(crate) fn is_asking(&self, who: &Ref) -> bool {
        self.namespaces.is_asking(who)
            || self.revisions.is_asking(who)
            || self.modules.is_asking(who)
            || self.images.is_asking(who)
            || self.artifacts.is_asking(who)
            || self.logs.is_asking(who)
    }

    /// Forgets the questions of `who` that are not in `used`.
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

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub(crate) removed: usize,
    /// Why there is more that could go.
    pub(crate) trouble: Option<Failure>,
}
