//! Caches the facts of configuration files (module calls and backend) by object id, because many commits and modules contain the same
//! files.

use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};

use crate::module::{self, Syntax, facts::Facts};

/// Maximum size of all cached facts, in bytes. If the facts exceed the maximum, the least used ones are discarded.
const BYTES: u64 = 16 << 20;
/// Estimated size of an entry without its strings, in bytes.
const ENTRY: usize = 256;
/// Estimated number of files in a full cache.
const FILES: usize = 32_768;

/// Cache of the facts of configuration files. Clones are cheap and share the cache.
#[derive(Clone)]
pub(super) struct KnownFacts(Arc<Mutex<Cache<Key, CachedFacts, Size>>>);

/// Object id of the file content, and the syntax of the file.
type Key = (String, Syntax);

#[derive(Clone)]
struct CachedFacts {
    facts: Arc<Facts>,
    /// Size of the entry, in bytes.
    bytes: u64,
}

struct Size;

impl Weighter<Key, CachedFacts> for Size {
    fn weight(&self, _: &Key, cached: &CachedFacts) -> u64 {
        cached.bytes
    }
}

impl Default for KnownFacts {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Cache::with_weighter(
            FILES, BYTES, Size,
        ))))
    }
}

impl KnownFacts {
    /// Returns the cached facts of the file `path`. `object` is the object id of its content.
    pub(super) fn get(&self, path: &str, object: &str) -> Option<Arc<Facts>> {
        let known = self.0.lock();
        let cached = known.get(&key(path, object))?;
        Some(cached.facts.clone())
    }

    /// Reads the facts of the file `path` from `content`, and caches them. `object` is the object id of `content`.
    pub(super) fn read(&self, path: &str, object: &str, content: &[u8]) -> Arc<Facts> {
        let facts = Arc::new(module::read(path, content));
        let texts = facts
            .calls
            .iter()
            .chain(
                facts
                    .host_path
                    .as_ref()
                    .map(|(source, call)| (source, call)),
            )
            .map(|(source, call)| source.len() + call.module.len() + ENTRY);
        let paths = facts.terragrunt.size();
        let cached = CachedFacts {
            facts: facts.clone(),
            bytes: (ENTRY + object.len() + texts.sum::<usize>() + paths) as u64,
        };
        self.0.lock().insert(key(path, object), cached);
        facts
    }
}

fn key(path: &str, object: &str) -> Key {
    (object.to_owned(), Syntax::of(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_kept_by_content_and_syntax() {
        let known = KnownFacts::default();
        assert!(known.get("a/main.tf", "1").is_none());
        let read = known.read("a/main.tf", "1", b"terraform {\n  backend \"s3\" {}\n}\n");
        assert_eq!(read.backend.as_deref(), Some("s3"));
        assert_eq!(known.get("b/other.tf", "1"), Some(read));
        assert!(known.get("a/main.tf.json", "1").is_none());
    }

    #[test]
    fn facts_of_hostile_files_have_a_bound() {
        let known = KnownFacts::default();
        let calls = |file: usize| {
            let call = |n| {
                format!(
                    "module \"m\" {{\n  source = \"./{file}/{n}/{}\"\n}}\n",
                    "x".repeat(2_000)
                )
            };
            (0..1_000).map(call).collect::<String>()
        };
        for file in 0..20 {
            known.read("main.tf", &file.to_string(), calls(file).as_bytes());
        }
        let known = known.0.lock();
        assert!(known.weight() <= BYTES && !known.is_empty() && known.len() < 20);
    }
}
