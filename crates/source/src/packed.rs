//! Packed contexts in temporary files, so that their size does not matter for the memory.

use std::{
    io::{self, BufWriter, Write},
    path::Path,
};

use sha2::{Digest as _, Sha256};
use tempfile::{NamedTempFile, TempPath};

use crate::{archive::Archive, context::ContextDigest};

/// A packed context.
pub(crate) struct PackedContext {
    pub(crate) digest: ContextDigest,
    /// Size of the tar.gz, in bytes.
    pub(crate) size: u64,
    pub(crate) file: TempPath,
}

/// Packs the entries that `add` adds into a file in `folder`.
pub(crate) fn pack(
    folder: &Path,
    add: impl FnOnce(&mut Archive<ContextFile>) -> io::Result<()>,
) -> io::Result<PackedContext> {
    let mut archive = Archive::new(ContextFile::create(folder)?);
    add(&mut archive)?;
    archive.finish()?.finish()
}

/// File of a context. Computes digest and size of what is written.
pub(crate) struct ContextFile {
    file: BufWriter<NamedTempFile>,
    hash: Sha256,
    size: u64,
}

impl ContextFile {
    fn create(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(NamedTempFile::new_in(folder)?),
            hash: Sha256::new(),
            size: 0,
        })
    }

    fn finish(self) -> io::Result<PackedContext> {
        let file = self.file.into_inner().map_err(io::Error::from)?;
        Ok(PackedContext {
            digest: ContextDigest::of_hash(self.hash),
            size: self.size,
            file: file.into_temp_path(),
        })
    }
}

impl Write for ContextFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
