//! Packs selected files into the tar.gz of a context.

use std::{io, path::Path};

use bytes::Bytes;

use super::collect::Contents;
use crate::{
    archive::{self, Item},
    closure::Selection,
    error::Error,
    git::session::cache_error,
    tree::Kind,
};

/// Packs the files of `selection` on a blocking thread. `contents` contains the content of each file by object id.
pub(super) async fn pack(
    selection: Selection,
    contents: Contents,
) -> Result<(Selection, Bytes), Error> {
    let packed = tokio::task::spawn_blocking(move || {
        let bytes = pack_now(&selection, &contents)?;
        Ok((selection, bytes.into()))
    });
    packed
        .await
        .map_err(io::Error::other)
        .and_then(|packed| packed)
        .map_err(|source| cache_error("pack", Path::new("the context"), source))
}

fn pack_now(selection: &Selection, contents: &Contents) -> io::Result<Vec<u8>> {
    let mut items = Vec::with_capacity(selection.entries.len());
    for (path, entry) in &selection.entries {
        let content = contents
            .get(&entry.object)
            .ok_or_else(|| io::Error::other(format!("no content of {path}")))?;
        items.push((path.as_str(), item(entry.kind, content)?));
    }
    archive::pack(items.into_iter())
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
