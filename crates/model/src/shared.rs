//! Values that many states share.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;

/// Immutable value with a digest of its JSON. Clones share the value; comparison and hash use the digest alone, so that they do not depend on
/// the size of the value.
pub(crate) struct Shared<T> {
    digest: u64,
    value: Arc<T>,
}

impl<T: Serialize> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        let json = serde_json::to_vec(&value).expect("the value has a JSON form");
        Self {
            digest: digest(&json),
            value: Arc::new(value),
        }
    }
}

/// Returns a digest of `value`, the same in each thread.
pub(crate) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            digest: self.digest,
            value: self.value.clone(),
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.digest);
    }
}

impl<T> fmt::Debug for Shared<T> {
    /// Writes the digest: the value has several kilobytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.digest)
    }
}
