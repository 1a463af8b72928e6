//! From what was collected to the context's bytes.

use std::{io, path::Path};

use super::collect::Contents;
use crate::{
    archive::{self, Item},
    closure::Selection,
    context::{Context, ContextDigest},
    error::Error,
    git::session::cache_error,
    tree::Kind,
};

/// What goes into a context, in memory.
pub(super) struct Collected {
    pub(super) selection: Selection,
    pub(super) contents: Contents,
    /// Committer date of the commit, in seconds since 1970.
    pub(super) committed_at: i64,
}

impl Collected {
    /// Packs it on a thread where it may take its time.
    pub(super) async fn pack(self, module_path: String) -> Result<Context, Error> {
        let packed = tokio::task::spawn_blocking(move || self.pack_now(module_path)).await;
        packed
            .map_err(io::Error::other)
            .and_then(|packed| packed)
            .map_err(|source| cache_error("pack", Path::new("the context"), source))
    }

    fn pack_now(self, module_path: String) -> io::Result<Context> {
        let Selection {
            entries,
            submodules,
            backend,
            whole: _,
        } = &self.selection;
        let mut items = Vec::with_capacity(entries.len());
        for (path, entry) in entries {
            let content = self.contents.get(&entry.object);
            let content =
                content.ok_or_else(|| io::Error::other(format!("no content of {path}")))?;
            items.push((path.as_str(), item(entry.kind, content)?));
        }
        let bytes = archive::pack(items.into_iter())?;
        Ok(Context {
            digest: ContextDigest::of(&bytes),
            bytes: bytes.into(),
            module_path,
            module_backend: backend.clone(),
            committed_at: self.committed_at,
            files: entries.len(),
            uncompressed: entries.values().map(|entry| entry.size).sum(),
            submodules: submodules.clone(),
        })
    }
}

fn item(kind: Kind, content: &[u8]) -> io::Result<Item<'_>> {
    match kind {
        Kind::File { executable } => Ok(Item::File {
            executable,
            content,
        }),
        Kind::Link => std::str::from_utf8(content)
            .map(|target| Item::Link { target })
            .map_err(io::Error::other),
        Kind::Submodule => Err(io::Error::other("a submodule has no content")),
    }
}
