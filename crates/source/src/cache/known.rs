//! Caches digest and size of packed contexts, so that the same files are not packed again.

use std::path::Path;

use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use sha2::{Digest, Sha256};

use crate::{closure::Selection, context::ContextDigest, tree::Kind};

/// Maximum number of cached contexts. At the maximum, the least used ones are discarded, and packed once more on their next use.
const CONTEXTS: usize = 50_000;

/// Digest and size of a packed context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownContext {
    pub(super) digest: ContextDigest,
    /// Size of the tar.gz, in bytes.
    pub(super) size: u64,
}

/// Digest over the folder of a repository in the cache, and over the paths, kinds and object ids of selected files. Selections from different
/// repositories therefore never have the same digest.
#[derive(PartialEq, Eq, Hash, Clone)]
pub(super) struct SelectionId([u8; 32]);

impl SelectionId {
    pub(super) fn of(repository: &Path, selection: &Selection) -> Self {
        let mut hash = Sha256::new();
        let mut add = |text: &[u8]| {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        };
        add(repository.as_os_str().as_encoded_bytes());
        for (path, entry) in &selection.entries {
            add(path.as_bytes());
            add(match entry.kind {
                Kind::File { executable: false } => b"file",
                Kind::File { executable: true } => b"program",
                Kind::Link => b"link",
                Kind::Submodule => b"submodule",
            });
            add(entry.object.as_bytes());
        }
        Self(hash.finalize().into())
    }
}

/// Digests and sizes of packed contexts, by the digest of the selected files.
pub(super) struct KnownContexts(Mutex<Cache<SelectionId, KnownContext>>);

impl Default for KnownContexts {
    fn default() -> Self {
        Self(Mutex::new(Cache::new(CONTEXTS)))
    }
}

impl KnownContexts {
    pub(super) fn get(&self, id: &SelectionId) -> Option<KnownContext> {
        let known = self.0.lock();
        known.get(id).cloned()
    }

    pub(super) fn put(&self, id: SelectionId, context: KnownContext) {
        self.0.lock().insert(id, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Entry;

    fn id(repository: &str, files: &[(&str, bool, &str)]) -> SelectionId {
        let entries = files.iter().map(|(path, executable, object)| {
            let entry = Entry {
                kind: Kind::File {
                    executable: *executable,
                },
                object: (*object).to_owned(),
                size: 1,
            };
            ((*path).to_owned(), entry)
        });
        let selection = Selection {
            entries: entries.collect(),
            submodules: Vec::new(),
            backend: None,
            whole: None,
        };
        SelectionId::of(Path::new(repository), &selection)
    }

    #[test]
    fn selection_id_differs_for_every_difference() {
        let ids = [
            id("r", &[("a", false, "1")]),
            id("s", &[("a", false, "1")]),
            id("r", &[("b", false, "1")]),
            id("r", &[("a", true, "1")]),
            id("r", &[("a", false, "2")]),
            id("r", &[("a", false, "1"), ("b", false, "1")]),
        ];
        for (at, id) in ids.iter().enumerate() {
            assert!(ids.iter().skip(at + 1).all(|other| id != other), "{at}");
        }
        assert!(ids[0] == id("r", &[("a", false, "1")]));
    }

    #[test]
    fn number_of_known_contexts_is_limited() {
        let known = KnownContexts::default();
        let context = KnownContext {
            digest: ContextDigest::of(b"x"),
            size: 1,
        };
        let id = |number: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            SelectionId(bytes)
        };
        for number in 0..=CONTEXTS {
            known.put(id(number), context.clone());
        }
        assert_eq!(known.0.lock().len(), CONTEXTS);
        let kept = (0..=CONTEXTS).filter(|number| known.get(&id(*number)).is_some());
        assert_eq!(kept.count(), CONTEXTS, "only one context was discarded");
    }
}
