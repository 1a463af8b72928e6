//! What happens to a resource is news to those that follow it, and to those that wait for it to go.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use alustan_api::Terraform;
use alustan_core::dependency_graph::{NOT_READY, followers, named, standing};
use alustan_core::observed::{Key, Standing};
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::resource::{Guarded, readable};

/// What was known of each resource when it was last heard of.
#[derive(Default)]
pub(crate) struct Followers {
    known: Mutex<HashMap<Key, Known>>,
}

struct Known {
    /// [`news`], unless it may be old.
    news: Option<u64>,
    concerned: BTreeSet<Key>,
}

impl Followers {
    /// What was known may be old: everything is news.
    pub(crate) fn forget(&self) {
        let mut known = self.known.lock();
        known.values_mut().for_each(|known| known.news = None);
    }

    /// Who must look again, now that `tf`, one of `all`, is as it is: nobody, if that is no news.
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

    /// Who must look again, now that `tf` is no longer one of `all`.
    pub(crate) fn gone(&self, tf: &Terraform, all: &[Arc<Guarded>]) -> BTreeSet<Key> {
        let mut known = self.known.lock();
        let before = known.remove(&Key::of(tf));
        let before = before.map(|before| before.concerned).unwrap_or_default();
        let concerned = concerned(tf, readable(all));
        concerned.into_iter().chain(before).collect()
    }
}

/// Who follows `tf`, and whom it follows: they may wait for it to go.
fn concerned<'a>(tf: &Terraform, all: impl IntoIterator<Item = &'a Terraform>) -> BTreeSet<Key> {
    let followed = named(tf).into_iter().map(|named| named.key);
    followers(tf, all).into_iter().chain(followed).collect()
}

/// A digest of what others depend on.
fn news(tf: &Terraform) -> u64 {
    let mut hasher = DefaultHasher::new();
    match standing(tf) {
        Standing::Ready => (true, String::new()),
        // What it waits for in the end is told by those that wait for it.
        Standing::NotReady { reason, message } if reason == NOT_READY => (false, message),
        Standing::NotReady { reason, .. } => (false, reason),
        Standing::Missing => (false, String::new()),
    }
    .hash(&mut hasher);
    (tf.uid(), tf.metadata.generation, tf.labels()).hash(&mut hasher);
    hasher.finish()
}
