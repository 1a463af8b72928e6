//! What happens to a resource is news to those that follow it, and to those that wait for it to go.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::sync::PoisonError;

use alustan_api::Terraform;
use alustan_core::references::{Key, followers, named, standing};
use alustan_core::seen::Standing;
use kube::ResourceExt;

/// What was known of each resource when it was last heard of.
#[derive(Default)]
pub(crate) struct Followers {
    known: Mutex<HashMap<Key, Known>>,
}

struct Known {
    news: u64,
    concerned: BTreeSet<Key>,
}

impl Followers {
    /// Who must look again, now that `tf`, one of `all`, is as it is: nobody, if that is no news.
    pub(crate) fn changed<'a>(
        &self,
        tf: &Terraform,
        all: impl IntoIterator<Item = &'a Terraform>,
    ) -> BTreeSet<Key> {
        let news = news(tf);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&Key::of(tf));
        if before.is_some_and(|before| before.news == news) {
            return BTreeSet::new();
        }
        let concerned = concerned(tf, all);
        let before = known.insert(
            Key::of(tf),
            Known {
                news,
                concerned: concerned.clone(),
            },
        );
        let before = before.map(|before| before.concerned).unwrap_or_default();
        concerned.into_iter().chain(before).collect()
    }

    /// Who must look again, now that `tf` is no longer one of `all`.
    pub(crate) fn gone<'a>(
        &self,
        tf: &Terraform,
        all: impl IntoIterator<Item = &'a Terraform>,
    ) -> BTreeSet<Key> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.remove(&Key::of(tf));
        let before = before.map(|before| before.concerned).unwrap_or_default();
        concerned(tf, all).into_iter().chain(before).collect()
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
        Standing::NotReady { reason, .. } => (false, reason),
        Standing::Missing => (false, String::new()),
    }
    .hash(&mut hasher);
    (tf.uid(), tf.metadata.generation, tf.labels()).hash(&mut hasher);
    hasher.finish()
}
