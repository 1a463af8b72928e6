//! Requeues the dependents of a changed resource, and the resources that wait for its deletion.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use alustan_api::{Reason, Terraform};
use alustan_core::dependency_graph::{followers, named, standing};
use alustan_core::observed::{Key, Standing};
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::resource::{Guarded, readable};

/// Last known state of each resource, as far as its dependents read it.
#[derive(Default)]
pub(crate) struct Followers {
    known: Mutex<HashMap<Key, Known>>,
}

struct Known {
    /// Result of [`news`]; `None` if it may be stale.
    news: Option<u64>,
    concerned: BTreeSet<Key>,
}

impl Followers {
    /// Marks all known state as stale: the next event of each resource counts as a change.
    pub(crate) fn forget(&self) {
        let mut known = self.known.lock();
        known.values_mut().for_each(|known| known.news = None);
    }

    /// Returns the resources to reconcile after a change of `tf`, one of `all`; none if the change does not affect them.
    pub(crate) fn changed(
        &self,
        tf: &Terraform,
        all: impl FnOnce() -> Vec<Arc<Guarded>>,
    ) -> BTreeSet<Key> {
        let news = news(tf);
        let mut known = self.known.lock();
        let before = known.get(&Key::of(tf));
        if before.is_some_and(|before| before.news == Some(news)) {
            return BTreeSet::new();
        }
        let all = all();
        let concerned = concerned(tf, readable(&all));
        let before = known.insert(
            Key::of(tf),
            Known {
                news: Some(news),
                concerned: concerned.clone(),
            },
        );
        let before = before.map(|before| before.concerned).unwrap_or_default();
        concerned.into_iter().chain(before).collect()
    }

    /// Returns the resources to reconcile after `tf` was removed from `all`.
    pub(crate) fn gone(&self, tf: &Terraform, all: &[Arc<Guarded>]) -> BTreeSet<Key> {
        let mut known = self.known.lock();
        let before = known.remove(&Key::of(tf));
        let before = before.map(|before| before.concerned).unwrap_or_default();
        let concerned = concerned(tf, readable(all));
        concerned.into_iter().chain(before).collect()
    }
}

/// Returns the dependents of `tf`, and its dependencies, which may wait for its deletion.
fn concerned<'a>(tf: &Terraform, all: impl IntoIterator<Item = &'a Terraform>) -> BTreeSet<Key> {
    let followed = named(tf).into_iter().map(|named| named.key);
    followers(tf, all).into_iter().chain(followed).collect()
}

/// Returns a digest of the fields that dependents read.
fn news(tf: &Terraform) -> u64 {
    let mut hasher = DefaultHasher::new();
    match standing(tf) {
        Standing::Ready => (true, String::new()),
        // The message names the resource that `tf` ultimately waits for. The dependents of `tf` report this name, too.
        Standing::NotReady { reason, message } if reason == Reason::DependencyNotReady => {
            (false, message)
        }
        Standing::NotReady { reason, .. } => (false, reason),
        Standing::Missing => (false, String::new()),
    }
    .hash(&mut hasher);
    (tf.uid(), tf.metadata.generation, tf.labels()).hash(&mut hasher);
    hasher.finish()
}
